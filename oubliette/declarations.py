"""What a caller declares: its id and its tools (WIRE section 2).

A declaration is taken whole or refused with the field at fault; each tool is kept as the source text that it was given
in, so that what an agent sees is what the caller wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from oubliette.errors import InvalidParams
from oubliette.protocol import members, names
from oubliette.protocol.nesting import too_deep
from oubliette.schemas import Schema, SchemaError, compile_schema

MAX_TOOLS: Final = 128
MAX_DESCRIPTION: Final = 16 * 1024
MIN_TIMEOUT: Final = 0.1
_CONTEXT: Final = "context"
_ANY_OBJECT: Final = "{}"


class DeclarationLimits(Struct, frozen=True, kw_only=True):
    """Seconds a caller may take unless its tool says otherwise, the most a tool may ask for, and ids that are taken."""

    default_timeout: float
    max_timeout: float
    reserved: frozenset[str]


class CallerTool(Struct, frozen=True, kw_only=True):
    """One tool of a caller. `source` is its declaration as given, with the effective `timeout_seconds`."""

    name: str
    source: Raw
    timeout_seconds: float
    schema: Schema


class Declaration(Struct, frozen=True, kw_only=True):
    """A checked declaration. `source` declares the same again; `warnings` are for the caller to see."""

    caller_id: str
    tools: Mapping[str, CallerTool]
    source: bytes
    warnings: tuple[str, ...]


def parse_declaration(context: Raw | bytes, limits: DeclarationLimits) -> Declaration | None:
    """Returns what the `context` of `session_message`, JSON text, declares; None where it declares nothing.

    Raises `InvalidParams` with the field at fault. Keys of `context` and of a tool that are not known are ignored, and
    null counts as absent.
    """
    source = bytes(context)
    if too_deep(source):
        raise InvalidParams("context is nested too deep", field=_CONTEXT)
    given = _given(source.decode(), _CONTEXT)
    if "caller_id" not in given and "caller_tools" not in given:
        return None
    caller_id = _caller_id(given, limits)
    tools = _tools(given, caller_id, limits)
    warnings = tuple(
        f"{tool.name}: its inputSchema is passed on but not evaluated: {tool.schema.opaque_reason}"
        for tool in tools.values()
        if tool.schema.opaque_reason is not None
    )
    declared = msgspec.json.encode({"caller_id": caller_id, "caller_tools": [tool.source for tool in tools.values()]})
    return Declaration(caller_id=caller_id, tools=tools, source=declared, warnings=warnings)


def _given(source: str, field: str) -> dict[str, str]:
    """The members of an object that are not null, as source text."""
    try:
        found = members.members(source)
    except members.DuplicateKeyError as error:
        raise InvalidParams(f"{field} has the key {str(error)!r} twice", field=field) from None
    except ValueError:
        raise InvalidParams(f"{field} must be an object", field=field) from None
    return {key: value for key, value in found.items() if value != "null"}


def _caller_id(given: dict[str, str], limits: DeclarationLimits) -> str:
    field = f"{_CONTEXT}.caller_id"
    caller_id: str = _decode(given.get("caller_id", "null"), str, field, "a string")
    if not names.is_caller_id(caller_id):
        sentence = f"{field} {caller_id!r} must be 1 to 32 letters, digits and '-', beginning with a letter or digit"
        raise InvalidParams(sentence, field=field)
    if caller_id in limits.reserved:
        raise InvalidParams(f"{field} {caller_id!r} is taken by a pack of that name", field=field)
    return caller_id


def _tools(given: dict[str, str], caller_id: str, limits: DeclarationLimits) -> dict[str, CallerTool]:
    field = f"{_CONTEXT}.caller_tools"
    sources = _decode(given.get("caller_tools", "[]"), list[Raw], field, "a list of tools")
    if len(sources) > MAX_TOOLS:
        raise InvalidParams(f"{field} has {len(sources)} tools; at most {MAX_TOOLS} are allowed", field=field)
    tools: dict[str, CallerTool] = {}
    taken: dict[str, str] = {}
    for number, source in enumerate(sources):
        tool = _tool(bytes(source).decode(), caller_id, f"{field}[{number}]", limits)
        _refuse_collision(tool.name, names.mcp_name(caller_id, tool.name), taken, f"{field}[{number}].name")
        tools[tool.name] = tool
    return tools


def _refuse_collision(name: str, mcp_name: str, taken: dict[str, str], field: str) -> None:
    if len(mcp_name) > names.MAX_MCP_NAME:
        raise InvalidParams(f"{field}: {mcp_name!r} is longer than {names.MAX_MCP_NAME} characters", field=field)
    if mcp_name in taken:
        raise InvalidParams(f"{field}: {name!r} and {taken[mcp_name]!r} are both {mcp_name!r} to an agent", field=field)
    taken[mcp_name] = name


def _tool(source: str, caller_id: str, field: str, limits: DeclarationLimits) -> CallerTool:
    given = _given(source, field)
    name = _decode(given.get("name", "null"), str, f"{field}.name", "a string")
    if not names.is_tool_name(name):
        sentence = f"{field}.name {name!r} must be 1 to 64 letters, digits, '_', '.' and '-'"
        raise InvalidParams(sentence, field=f"{field}.name")
    _check_texts(given, field)
    timeout = _timeout(given, f"{field}.timeout_seconds", limits)
    return CallerTool(
        name=name,
        source=_with_timeout(source, timeout),
        timeout_seconds=timeout,
        schema=_schema(given, f"{field}.inputSchema"),
    )


def _check_texts(given: dict[str, str], field: str) -> None:
    description = _decode(given.get("description", '""'), str, f"{field}.description", "a string")
    if len(description.encode()) > MAX_DESCRIPTION:
        sentence = f"{field}.description is longer than {MAX_DESCRIPTION} bytes"
        raise InvalidParams(sentence, field=f"{field}.description")
    _decode(given.get("title", '""'), str, f"{field}.title", "a string")
    for key in ("outputSchema", "annotations"):
        _decode(given.get(key, _ANY_OBJECT), dict[str, Any], f"{field}.{key}", "an object")


def _timeout(given: dict[str, str], field: str, limits: DeclarationLimits) -> float:
    if "timeout_seconds" not in given:
        return limits.default_timeout
    timeout: float = _decode(given["timeout_seconds"], float, field, "a number of seconds")
    if not MIN_TIMEOUT <= timeout <= limits.max_timeout:
        sentence = f"{field} must be from {MIN_TIMEOUT} to {limits.max_timeout:g} seconds, not {timeout:g}"
        raise InvalidParams(sentence, field=field)
    return timeout


def _schema(given: dict[str, str], field: str) -> Schema:
    try:
        return compile_schema(given.get("inputSchema", _ANY_OBJECT).encode())
    except SchemaError as error:
        raise InvalidParams(f"{field} {error}", field=field) from None


def _with_timeout(source: str, timeout: float) -> Raw:
    """The declaration as given, with the timeout that counts."""
    given = members.members(source)
    given["timeout_seconds"] = str(int(timeout)) if timeout == int(timeout) else repr(timeout)
    return Raw(msgspec.json.encode({key: Raw(value.encode()) for key, value in given.items()}))


def _decode(source: str, kind: Any, field: str, expected: str) -> Any:
    try:
        return msgspec.json.decode(source, type=kind)
    except msgspec.DecodeError:
        raise InvalidParams(f"{field} must be {expected}", field=field) from None
