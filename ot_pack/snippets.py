"""Snippets: named templates with parameters, and their expansion (Jinja2's sandbox, strict about what is undefined).

The template is the operator's own; its values may be an agent's. So a value is never read as a template, and whatever
it is, no more than `MAX_EXPANSION_CHARACTERS` come out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from enum import Enum
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from jinja2.sandbox import SandboxedEnvironment

# What an agent gets to read in one piece. A template may repeat a value, so the bound is on what comes out.
MAX_EXPANSION_CHARACTERS: Final = 256 * 1024


class Missing(Enum):
    """The type of `MISSING`."""

    MISSING = "missing"


# What has no default, or no example: None is a value.
MISSING: Final = Missing.MISSING


class SnippetError(Exception):
    """Why a snippet is not expanded, in one line."""


class Param(NamedTuple):
    """A parameter of a snippet. `default` and `example` are data: strings, numbers, lists, mappings."""

    description: str = ""
    default: Any = MISSING
    example: Any = MISSING


class Snippet(NamedTuple):
    """A named template. `params` are in the order in which they are shown."""

    name: str
    body: str
    description: str = ""
    params: Mapping[str, Param] = MappingProxyType({})


def expand(snippet: Snippet, values: Mapping[str, Any]) -> str:
    """Returns the body with `values` filled in, and with the defaults of those that are left out.

    As Jinja2 has it, one line break at the end of the body is left out. Raises `SnippetError` where a value is missing
    or unknown, where the body is no template, asks for what is no parameter or fails, and where more than
    `MAX_EXPANSION_CHARACTERS` would come out.
    """
    filled = _filled(snippet, values)
    try:
        return _render(snippet.body, filled)
    except SnippetError:
        raise
    # A template runs expressions, so anything may be raised, a MemoryError and a RecursionError among them.
    except Exception as error:
        why = " ".join(str(error).split())
        raise SnippetError(f"snippet {snippet.name!r}: {why or type(error).__name__}") from None


def _filled(snippet: Snippet, values: Mapping[str, Any]) -> dict[str, Any]:
    unknown = [name for name in values if name not in snippet.params]
    if unknown:
        known = ", ".join(snippet.params) or "none"
        raise SnippetError(f"snippet {snippet.name!r} has no parameter {unknown[0]!r}. It has: {known}")
    filled = {name: values.get(name, param.default) for name, param in snippet.params.items()}
    missing = [name for name, value in filled.items() if value is MISSING]
    if missing:
        raise SnippetError(f"snippet {snippet.name!r} needs a value for {missing[0]!r}")
    return filled


def _render(body: str, values: Mapping[str, Any]) -> str:
    pieces, characters = [], 0
    for piece in _environment().from_string(body).generate(values):
        characters += len(piece)
        _check_length(characters)
        pieces.append(piece)
    return "".join(pieces)


def _check_length(characters: int) -> None:
    if characters > MAX_EXPANSION_CHARACTERS:
        raise SnippetError(f"more than {MAX_EXPANSION_CHARACTERS} characters would come out")


@cache
def _environment() -> SandboxedEnvironment:
    # Not at the top: `import ot_pack` is to take less than 60 ms, and Jinja2 takes as long by itself.
    from jinja2 import StrictUndefined
    from jinja2.sandbox import SandboxedEnvironment

    class Environment(SandboxedEnvironment):
        """Bounds also what is between the pieces: `{{ "-" * width }}` is one piece, of any size."""

        intercepted_binops = frozenset({"*", "**"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _check_operands(operator, left, right)
            return super().call_binop(context, operator, left, right)

    return Environment(undefined=StrictUndefined)


def _check_operands(operator: str, left: Any, right: Any) -> None:
    """Raises `SnippetError` before an operator makes something huge out of something small."""
    for one, other in ((left, right), (right, left)):
        if operator == "*" and isinstance(one, Sized) and isinstance(other, int):
            _check_length(len(one) * other)
    if operator == "**" and isinstance(left, int) and isinstance(right, int):
        _check_length(left.bit_length() * right)
