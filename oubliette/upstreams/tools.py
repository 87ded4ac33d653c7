"""A proxied server's list of tools, as far as it is fit for agents (HAZARDS T26 and T27).

The server is hostile until shown otherwise: what it lists is cleaned, bounded and hashed. A tool that cannot be offered
is left out and the reason is told; of tools whose names collide all are left out, so that none can pose as another.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from oubliette.protocol.names import MAX_MCP_NAME, is_tool_name, mcp_name
from oubliette.protocol.nesting import MAX_DEPTH, too_deep
from oubliette.upstreams.text import clean, clean_line

# An agent reads every tool that it is offered; a server of more than these is no use to one. What a thousand tools hold
# stays in memory, and is sent to every agent: so much, for all of a server's tools together.
MAX_TOOLS: Final = 1000
MAX_LIST_BYTES: Final = 8 * 1024 * 1024
# WIRE section 2, the bounds of a caller's declaration: "a description over 16 KiB", a schema "over 64 KiB".
MAX_DESCRIPTION: Final = 16 * 1024
MAX_SCHEMA_BYTES: Final = 64 * 1024
# A name for people; longer ones are descriptions.
MAX_TITLE: Final = 256
# Hints of a server to a client that knows it: some are useful, such as the URI of a page, and those are short.
MAX_META_BYTES: Final = 4 * 1024
# How many faults of one server are told of one by one.
MAX_PROBLEMS: Final = 50
_QUOTED: Final = 64

_HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
# Keywords of JSON Schema: text for readers, a schema for each of some names, and data, which stays as it is.
_PROSE: Final = frozenset({"title", "description", "$comment"})
_NAMED: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_DATA: Final = frozenset({"const", "enum", "default", "examples"})


class UpstreamTool(Struct, frozen=True, kw_only=True):
    """A tool that can be called: `name` as the server calls it, `entry` the cleaned MCP `Tool`.

    `fingerprint` is the SHA-256 of the `Tool` as the server sent it, in hexadecimal.
    """

    name: str
    entry: dict[str, Any]
    fingerprint: str


class Listing(Struct, frozen=True, kw_only=True):
    """What became of a whole list: the tools, in the server's order, and by name what is wrong with others."""

    tools: tuple[UpstreamTool, ...] = ()
    problems: Mapping[str, str] = {}


class UnfitError(Exception):
    """Why a tool, or a part of it, is left out."""


class Sieve:
    """Takes a server's tools one by one, as its pages arrive, and holds no more than the bounds allow."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._tools: list[UpstreamTool] = []
        self._names: Counter[str] = Counter()
        self._problems: dict[str, str] = {}
        self._count = self._bytes = self._untold = 0
        self.is_full = False

    def add(self, raw: Any) -> None:
        """Takes what should be an MCP `Tool`. Beyond the bounds it `is_full`, and takes no more."""
        if self.is_full:
            return
        self._count += 1
        label = f"number {self._count}"
        try:
            label = _label(raw, label)
            self._admit(_fit_name(self._server, raw), raw)
        except UnfitError as error:
            self.note(label, f"left out: {error}")

    def note(self, tool: str, problem: str) -> None:
        """Tells of a fault; of more than MAX_PROBLEMS only their number is told."""
        if tool in self._problems or len(self._problems) < MAX_PROBLEMS:
            self._problems[tool] = problem
        else:
            self._untold += 1

    def result(self) -> Listing:
        """Returns what was taken, without the tools whose names collide."""
        for tool in self._tools:
            if self._collides(tool):
                self.note(tool.name, f"left out: another tool's name is {mcp_name(self._server, tool.name)!r} too")
        more = {"…": f"{self._untold} more tools have faults"} if self._untold else {}
        kept = tuple(tool for tool in self._tools if not self._collides(tool))
        return Listing(tools=kept, problems={**self._problems, **more})

    def _admit(self, name: str, raw: dict[str, Any]) -> None:
        # Counted whatever else is wrong with it: a tool must not get a name by making its rival unfit.
        self._names[mcp_name(self._server, name)] += 1
        tool, size = self._fit(name, raw)
        if len(self._tools) == MAX_TOOLS or self._bytes + size > MAX_LIST_BYTES:
            self.is_full = True
            bounds = f"{MAX_TOOLS} tools, or {MAX_LIST_BYTES} bytes of them"
            self.note(name, f"left out, with all that follow: the server lists more than {bounds}")
            return
        self._tools.append(tool)
        self._bytes += size

    def _fit(self, name: str, raw: dict[str, Any]) -> tuple[UpstreamTool, int]:
        entry = {"name": name, **_texts(raw), "inputSchema": _fit_schema("inputSchema", raw.get("inputSchema"))}
        entry |= self._optional(name, raw)
        tool = UpstreamTool(name=name, entry=entry, fingerprint=fingerprint(raw))
        return tool, len(_compact("the tool", entry))

    def _optional(self, name: str, raw: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for member, fit in (("outputSchema", _fit_schema), ("annotations", _fit_annotations), ("_meta", _fit_meta)):
            try:
                found |= {} if raw.get(member) is None else {member: fit(member, raw[member])}
            except UnfitError as error:
                self.note(name, f"offered without a part of it: {error}")
        return found

    def _collides(self, tool: UpstreamTool) -> bool:
        return self._names[mcp_name(self._server, tool.name)] > 1


def fingerprint(raw: Any) -> str:
    """Returns the SHA-256 of a tool, whatever the order of its members. Raises UnfitError where it nests too deep."""
    try:
        return hashlib.sha256(json.dumps(raw, sort_keys=True).encode()).hexdigest()
    except (RecursionError, TypeError) as error:
        raise UnfitError("it is nested too deep") from error


def _label(raw: Any, otherwise: str) -> str:
    if isinstance(raw, dict) and isinstance(raw.get("name"), str):
        name = clean_line(raw["name"], _QUOTED)
        return name if is_tool_name(name) and name == raw["name"] else repr(name)
    return otherwise


def _fit_name(server: str, raw: Any) -> str:
    if not isinstance(raw, dict):
        raise UnfitError("it is no object")
    name = raw.get("name")
    if not isinstance(name, str) or not is_tool_name(name):
        raise UnfitError("its name must be 1 to 64 characters, each a letter of A to Z, a digit, or one of _ . -")
    if len(mcp_name(server, name)) > MAX_MCP_NAME:
        # "agents break on longer ones"
        raise UnfitError(f"{mcp_name(server, name)!r} has more than {MAX_MCP_NAME} characters")
    return name


def _texts(raw: dict[str, Any]) -> dict[str, str]:
    found = {}
    if isinstance(raw.get("title"), str):
        found["title"] = clean_line(raw["title"], MAX_TITLE)
    if isinstance(raw.get("description"), str):
        found["description"] = clean(raw["description"], MAX_DESCRIPTION)
    return found


def _fit_annotations(member: str, raw: Any) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise UnfitError(f"its {member} are no object")
    found: dict[str, Any] = {hint: raw[hint] for hint in _HINTS if isinstance(raw.get(hint), bool)}
    if isinstance(raw.get("title"), str):
        found["title"] = clean_line(raw["title"], MAX_TITLE)
    return found


def _fit_meta(member: str, raw: Any) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise UnfitError(f"its {member} is no object")
    if len(_compact(f"its {member}", raw)) > MAX_META_BYTES:
        raise UnfitError(f"its {member} is over {MAX_META_BYTES // 1024} KiB")
    return raw


def _fit_schema(member: str, schema: Any) -> dict[str, Any]:
    # WIRE section 2: "`type` missing counts as `object`".
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise UnfitError(f"its {member} is not an object schema")
    text = _compact(f"its {member}", schema)
    if len(text) > MAX_SCHEMA_BYTES:
        raise UnfitError(f"its {member} is over {MAX_SCHEMA_BYTES // 1024} KiB")
    if too_deep(text):
        raise UnfitError(f"its {member} is nested deeper than {MAX_DEPTH} levels")
    return {"type": "object", **_tidy(schema)}


def _tidy(schema: Any) -> Any:
    """A schema whose texts for readers are clean."""
    if isinstance(schema, list):
        return [_tidy(part) for part in schema]
    if isinstance(schema, dict):
        return {keyword: _tidy_keyword(keyword, value) for keyword, value in schema.items()}
    return schema


def _tidy_keyword(keyword: str, value: Any) -> Any:
    if keyword in _PROSE and isinstance(value, str):
        return clean(value, MAX_DESCRIPTION)
    if keyword in _NAMED and isinstance(value, dict):
        return {name: _tidy(schema) for name, schema in value.items()}
    return value if keyword in _DATA else _tidy(value)


def _compact(what: str, value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except RecursionError:
        raise UnfitError(f"{what} is nested deeper than {MAX_DEPTH} levels") from None
    except (ValueError, TypeError):  # NaN, or half a surrogate pair
        raise UnfitError(f"{what} holds what JSON cannot say") from None
