"""A caller tool's `inputSchema`, and arguments checked against it (WIRE section 2, and section 3 step 1).

A caller's schema is hostile code (HAZARDS section 1, item 6). It is read within bounds, its references are resolved
among what it holds, it is checked against the meta-schema, and it is evaluated by an engine whose patterns take linear
time and which is told to fetch nothing. What cannot be evaluated within bounds is opaque: accepted, passed on, not
evaluated. One call whose arguments would take too long is not evaluated either.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, NoReturn, TypeGuard

import jsonschema_rs
import msgspec

from oubliette.protocol.nesting import MAX_DEPTH, too_deep
from oubliette.schema_bounds import (
    MAX_CHECK_COST,
    UNUSUAL_FACTOR,
    Bounds,
    Measure,
    UnboundedError,
    bounds_of,
    measure,
)
from oubliette.schema_survey import SchemaError, Survey, pattern_options

__all__ = ["MAX_SCHEMA_BYTES", "Schema", "SchemaError", "ViolationError", "compile_schema"]

# WIRE section 2: "or is over 64 KiB", measured as compact JSON.
MAX_SCHEMA_BYTES: Final = 64 * 1024
# A message quotes names that the agent or the caller chose; of that much it gets to see so many characters.
MAX_MESSAGE: Final = 500
# An integer of more digits is taken as the nearest floating point number.
MAX_EXACT_DIGITS: Final = 40
# The meta-schema explains what is wrong at a cost that grows with the schema: of more bytes, no place is named.
_MAX_EXPLAINED: Final = 16 * 1024
_VALUE: Final = "the value"


class ViolationError(Exception):
    """Arguments that do not fit. `path` is the argument that does not, "" for all of them; the message names it too."""

    def __init__(self, message: str, path: str) -> None:
        super().__init__(message[:MAX_MESSAGE])
        self.path = path[:MAX_MESSAGE]


@dataclass(frozen=True, slots=True)
class _Evaluator:
    validator: jsonschema_rs.Draft202012Validator
    bounds: Bounds

    def allows(self, arguments: Measure | None) -> TypeGuard[Measure]:
        return arguments is not None and self.bounds.cost(arguments) <= MAX_CHECK_COST

    def violation(self, value: Any, arguments: Measure) -> ViolationError:
        if self.bounds.explanation_cost(arguments) <= MAX_CHECK_COST:
            try:
                self.validator.validate(value)
            except jsonschema_rs.ValidationError as error:
                message = f"{_spell('arguments', error.instance_path)}: {error.message}"
                return ViolationError(message, _spell("", error.instance_path).removeprefix("."))
        return ViolationError("the arguments do not fit the inputSchema of the tool", "")


@dataclass(frozen=True, slots=True)
class Schema:
    """An accepted schema. Two are equal when their text is.

    `opaque_reason` is None, or says why arguments are not checked against it.
    """

    source: bytes
    opaque_reason: str | None = field(compare=False)
    _evaluator: _Evaluator | None = field(compare=False, repr=False)

    def evaluates(self, arguments: bytes) -> bool:
        """Says whether `arguments`, JSON text, can be checked within bounds: 40 ms of estimated time.

        Arguments of over 1 MiB, or with over some 50,000 values, are not, and fewer where the schema is costly.
        """
        return self._evaluator is not None and self._evaluator.allows(measure(arguments))

    def check(self, arguments: bytes) -> None:
        """Raises `ViolationError` where `arguments`, JSON text, do not fit the schema.

        Arguments that are not evaluated (see `evaluates`) pass: a call is not refused for what cannot be decided (WIRE
        section 2: "accepted, not evaluated"). Numbers are compared by value, however they are spelled.
        """
        measured = measure(arguments)
        if self._evaluator is None or not self._evaluator.allows(measured):
            return
        if too_deep(measured.structure):
            raise ViolationError(f"the arguments are nested deeper than {MAX_DEPTH} levels", "")
        value = _read_arguments(arguments, measured.has_unusual_numbers)
        if not self._evaluator.validator.is_valid(value):
            raise self._evaluator.violation(value, measured)


def compile_schema(source: bytes) -> Schema:
    """Returns the schema in `source`, JSON text.

    Raises `SchemaError` for what WIRE section 2 refuses: what is not an object schema, is not valid JSON Schema
    2020-12, refers outside itself, is over 64 KiB or nested deeper than 128 levels. A pattern that the linear-time
    engine does not take makes the schema opaque, whatever else it may be: JSON Schema only says that patterns should
    be of ECMA-262, and callers write other dialects too.
    """
    text, document = _read_schema(source)
    if document.get("type", "object") != "object":
        raise SchemaError('is not an object schema: its "type" must be "object"')
    survey = Survey(document)
    # What `$schema` names is settled by the survey; the engine would look for it.
    document = {"type": "object", **{keyword: value for keyword, value in document.items() if keyword != "$schema"}}
    _check_meta_schema(document, len(text))
    try:
        bounds = bounds_of(survey, _factor(text))
        return Schema(text, None, _Evaluator(_build(document), bounds))
    except UnboundedError as error:
        return Schema(text, str(error), None)


def _read_schema(source: bytes) -> tuple[bytes, dict[str, Any]]:
    """Returns the schema as compact JSON, and read."""
    if too_deep(source):
        raise SchemaError(f"is nested deeper than {MAX_DEPTH} levels")
    try:
        text = msgspec.json.format(source, indent=-1)
        if len(text) > MAX_SCHEMA_BYTES:
            raise SchemaError("is over 64 KiB")
        document = _read(text, _unambiguous)
    except SchemaError:
        raise
    except ValueError as error:
        raise SchemaError(f"is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise SchemaError("is not a JSON object")
    return text, document


def _factor(text: bytes) -> int:
    measured = measure(text)
    return 1 if measured is not None and not measured.has_unusual_numbers else UNUSUAL_FACTOR


def _check_meta_schema(document: dict[str, Any], size: int) -> None:
    if _meta_schema().is_valid(document):
        return
    if size > _MAX_EXPLAINED:
        raise SchemaError("is not valid JSON Schema 2020-12")
    try:
        _meta_schema().validate(document)
    except jsonschema_rs.ValidationError as error:
        place = _spell("inputSchema", error.instance_path)
        raise SchemaError(f"is not valid JSON Schema 2020-12: {place}: {error.message}") from None


@cache
def _meta_schema() -> jsonschema_rs.Draft202012Validator:
    """The engine knows it by heart. Its own `meta` would look for what a part's `$schema` names."""
    reference = {"$ref": "https://json-schema.org/draft/2020-12/schema"}
    return jsonschema_rs.Draft202012Validator(reference, offline=True, mask=_VALUE)


def _build(document: dict[str, Any]) -> jsonschema_rs.Draft202012Validator:
    try:
        # `offline` alone keeps it from fetching; a registry of one's own does not.
        return jsonschema_rs.Draft202012Validator(
            document, validate_formats=False, offline=True, mask=_VALUE, pattern_options=pattern_options()
        )
    except (ValueError, jsonschema_rs.ReferencingError) as error:  # such as a `$ref` that is no URI
        raise UnboundedError(f"the engine cannot build it: {str(error).splitlines()[0][:200]}") from None


def _read_arguments(arguments: bytes, has_unusual_numbers: bool) -> Any:
    if not has_unusual_numbers:
        with suppress(ValueError):
            return msgspec.json.decode(arguments)
    try:
        # JSON may spell half a character, such as "\\ud800", which the engine cannot take: it sees `?` for it.
        return json.loads(json.dumps(_read(arguments), ensure_ascii=False).encode(errors="replace"))
    except ValueError as error:
        raise ViolationError(f"the arguments are not JSON: {error}", "") from None


def _read(text: bytes, make_object: Callable[[list[tuple[str, Any]]], dict[str, Any]] = dict) -> Any:
    """Reads JSON with numbers that the engine can work with. Raises ValueError."""
    return json.loads(
        text.decode(),
        object_pairs_hook=make_object,
        parse_int=_integer,
        parse_float=_float,
        parse_constant=_refuse_constant,
    )


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Parsers disagree about which of two equal keys counts; a schema must mean one thing (HAZARDS T29)."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise SchemaError("has a key that stands twice in one object")
    return found


def _integer(text: str) -> float:
    return int(text) if len(text) <= MAX_EXACT_DIGITS else _float(text)


def _float(text: str) -> float:
    """Returns what `text` means, or what comes nearest: 1e400 is a number all the same, and 1e-400 is not zero."""
    value = float(text)
    if value == 0 and text.lstrip("-0.")[:1].isdigit():
        return math.copysign(math.ulp(0.0), value)
    return max(-sys.float_info.max, min(sys.float_info.max, value))


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _spell(start: str, path: Sequence[str | int]) -> str:
    return start + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
