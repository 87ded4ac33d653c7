"""Turns what a configuration file gives into Structs, strictly, and says what is wrong in the words of their types.

The Structs are the whole schema: names, types, bounds, defaults, and in `Meta.description` the words of the error. A
type that is none of msgspec's own is read by a function of `specials`.
"""

from __future__ import annotations

import difflib
import re
from collections import UserDict
from collections.abc import Callable, Collection, Iterable, Mapping
from types import UnionType
from typing import Any, Final, TypeAlias, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from ot_pack.document import Given, readable

# Beside `Meta` in an Annotated string: it may refer to the environment as ${NAME}, and no error shows it.
REFERENCES: Final = "references"
_REFERENCE: Final = re.compile(r"\$\{([^}]*)(\}?)")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

Special: TypeAlias = "Callable[[Reader, Given], Any]"


class ImpossibleError(ValueError):
    """Values that do not go together: the keys concerned, the likeliest first, and why. Raised by `__post_init__`."""

    def __init__(self, keys: tuple[str, ...], why: str) -> None:
        super().__init__(f"{keys[0]}: {why}")
        self.keys = keys
        self.why = why


class Secrets(UserDict[str, str]):
    """A mapping whose values are secrets: its repr, and so a log, shows their names alone."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {' '.join(self)}>"


class Reader:
    """Turns what was given into the type that a Struct's field has.

    `environ`: what `${NAME}` refers to. Without it references are checked for their form and left as they are, which
    is all that somebody needs who uses no such value. `specials`: the types that are read by a function of their own.
    Every method raises `ConfigError`.
    """

    def __init__(self, environ: Mapping[str, str] | None, specials: Mapping[type, Special] | None = None) -> None:
        self._environ = environ
        self._specials = specials or {}

    def members(self, given: Given, struct: type[Struct], *, besides: Collection[str] = ()) -> dict[str, Any]:
        """Returns the values of the keys that are given; those of `besides` may stand there and are someone else's."""
        known = {info.name: info.type for info in msgspec.structs.fields(struct)}
        entries = given.entries()
        for key, entry in entries.items():
            if key not in known and key not in besides:
                raise entry.error(f"unknown key{_suggestion(key, [*known, *besides])}")
        return {key: self.value(entry, known[key]) for key, entry in entries.items() if key in known}

    def value(self, given: Given, wanted: Any) -> Any:
        """Returns what was given as the type `wanted`."""
        bare, *marks = get_args(wanted) if hasattr(wanted, "__metadata__") else (wanted,)
        if isinstance(bare, type) and bare in self._specials:
            return self._specials[bare](self, given)
        if isinstance(bare, type) and issubclass(bare, Struct):
            return self.struct(given, bare)
        if _is_tagged(bare):
            return self._tagged(given, get_args(bare))
        if get_origin(bare) in (Mapping, tuple):
            return self._many(given, bare, marks)
        if REFERENCES in marks:
            return self._expanded(given, wanted)
        return _checked(given, given.value, wanted)

    def struct(self, given: Given, struct: type[Struct]) -> Any:
        """Returns a mapping's keys as a Struct."""
        values = self.members(given, struct)
        missing = [f.name for f in msgspec.structs.fields(struct) if f.required and f.name not in values]
        if missing:
            raise given.error(f"needs the key {missing[0]}")
        try:
            return struct(**values)
        except ImpossibleError as error:
            blamed = next((given.entries()[key] for key in error.keys if key in values), given)
            raise blamed.error(error.why) from None

    def _tagged(self, given: Given, structs: Iterable[type[Struct]]) -> Struct:
        kinds = {str(struct.__struct_config__.tag): struct for struct in structs}
        entries = dict(given.entries())
        kind = entries.pop("type", None)
        if kind is None:
            raise given.error(f"needs the key type: {either(kinds)}")
        if not (isinstance(kind.value, str) and kind.value in kinds):
            raise kind.error(f"must be {either(kinds)}, not {kind.shown}")
        found: Struct = self.struct(Given(entries, given.where), kinds[kind.value])
        return found

    def _many(self, given: Given, bare: Any, marks: Iterable[Any]) -> Any:
        found = self._named(given, *get_args(bare)) if get_origin(bare) is Mapping else self._items(given, bare)
        for meta in marks:
            if isinstance(meta, Meta) and not (meta.min_length or 0) <= len(found) <= (meta.max_length or len(found)):
                raise given.error(f"must be {meta.description}")
        return found

    def _named(self, given: Given, name: Any, wanted: Any) -> dict[str, Any]:
        entries = given.entries()
        for key, entry in entries.items():
            _checked(Given(key, entry.where, readable(key)), key, name)
        return {key: self.value(entry, wanted) for key, entry in entries.items()}

    def _items(self, given: Given, wanted: Any) -> tuple[Any, ...]:
        if not isinstance(given.value, list):
            raise given.error("must be a list")
        return tuple(self.value(item, get_args(wanted)[0]) for item in given.value)

    def _expanded(self, given: Given, wanted: Any) -> str:
        # No error here shows the value: it may be a secret.
        if not isinstance(given.value, str):
            raise given.error(f"must be {_words(wanted)}")
        text = _REFERENCE.sub(lambda match: self._referred(match, given), given.value)
        if self._environ is None and _REFERENCE.search(text):
            return text
        try:
            return str(msgspec.convert(text, wanted))
        except msgspec.ValidationError:
            raise given.error(f"must be {_words(wanted)}") from None

    def _referred(self, match: re.Match[str], given: Given) -> str:
        name, end = match.groups()
        if not end or not _VARIABLE.match(name):
            raise given.error("${ begins a reference: write ${NAME}, a variable of the daemon's environment")
        if self._environ is None:
            return match[0]
        if name not in self._environ:
            raise given.error(f"${{{name}}} is not set in the daemon's environment")
        return self._environ[name]


def either(names: Iterable[str]) -> str:
    """Returns names as a sentence has them: `a, b or c`."""
    return " or ".join(", ".join(names).rsplit(", ", 1))


def _is_tagged(bare: Any) -> bool:
    return get_origin(bare) is UnionType and all(
        isinstance(kind, type) and issubclass(kind, Struct) for kind in get_args(bare)
    )


def _checked(given: Given, value: Any, wanted: Any) -> Any:
    """Returns `value` as msgspec converts it; what it refuses is told in the words of the type's `Meta`."""
    try:
        return msgspec.convert(value, wanted)
    except msgspec.ValidationError:
        raise given.error(f"must be {_words(wanted)}, not {given.shown}") from None


def _words(wanted: Any) -> str:
    return next(str(item.description) for item in get_args(wanted) if isinstance(item, Meta))


def _suggestion(key: str, known: Iterable[str]) -> str:
    names = sorted(known)
    nearest = difflib.get_close_matches(key, names, n=1)
    return f"; did you mean {nearest[0]}?" if nearest else f"; here may stand {either(names)}"
