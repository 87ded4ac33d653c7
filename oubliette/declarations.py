"""What a caller declares in the `context` of `session_message`: who it is, and which tools it offers (WIRE section 2).

A declaration is accepted as a whole or refused as a whole, with an error that names the field. What is accepted is kept
as it was written: key order, number spelling and keys unknown here go on to the agent's side.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from oubliette.errors import InvalidParams
from oubliette.protocol import members, names
from oubliette.protocol.nesting import MAX_DEPTH, too_deep
from oubliette.schemas import Schema, SchemaError, compile_schema

# WIRE section 2: "a description over 16 KiB … more than 128 tools; `timeout_seconds` outside 0.1 to …".
MAX_DESCRIPTION_BYTES: Final = 16 * 1024
MAX_TOOLS: Final = 128
MIN_TIMEOUT_SECONDS: Final = 0.1

_NUMBER: Final = re.compile(r"-?[0-9]")
_NO_SCHEMA: Final = b'{"type":"object"}'
_TYPE_NAMES: Final = {str: "a string", dict: "an object"}


@dataclass(frozen=True, slots=True)
class DeclarationLimits:
    """What the daemon's configuration says about declarations.

    `default_timeout` and `max_timeout` are seconds; `reserved` are the names that no caller may take: of packs, and of
    proxied servers (WIRE section 2).
    """

    default_timeout: float
    max_timeout: float
    reserved: frozenset[str]


@dataclass(frozen=True, slots=True)
class CallerTool:
    """One declared tool. `source` is its declaration as given, in compact JSON; `timeout_seconds` is the effective one,
    which stands in `source` too.
    """

    name: str
    source: msgspec.Raw
    timeout_seconds: float
    schema: Schema


@dataclass(frozen=True, slots=True)
class Declaration:
    """A caller and its tools, by their names without prefix, in the order declared.

    `source` is JSON that `parse_declaration` makes an equal declaration of; `warnings` are for the answer.
    """

    caller_id: str
    tools: dict[str, CallerTool]
    source: bytes
    warnings: tuple[str, ...]


def parse_declaration(context: bytes | msgspec.Raw, limits: DeclarationLimits) -> Declaration | None:
    """Returns what `context`, the JSON text of a `session_message`'s context, declares; None where it declares nothing.

    A `caller_id` without `caller_tools` is an empty declaration: it replaces an earlier one. Null counts as absent,
    also for the context itself. Unknown keys of the context, and of a tool, are ignored. Raises `InvalidParams` for all
    that WIRE section 2 refuses; its `field` begins with `context`.

    The time grows with the schemas: some 0.5 ms for each ordinary one, 0.2 s for a hostile one of 64 KiB.
    """
    found = _members(bytes(context), "context", "the context") if bytes(context).strip() != b"null" else {}
    if "caller_id" not in found and "caller_tools" not in found:
        return None
    caller_id = _caller_id(found, limits)
    tools = _tools(found, caller_id, limits)
    return Declaration(caller_id, tools, _source(caller_id, tools), _warnings(tools))


def _caller_id(found: Mapping[str, str], limits: DeclarationLimits) -> str:
    field = "context.caller_id"
    if "caller_id" not in found:
        raise InvalidParams("caller_tools need a caller_id", field=field)
    caller_id = _string(found["caller_id"], field)
    if not names.is_caller_id(caller_id):
        raise InvalidParams(
            f"caller_id {_quote(caller_id)} must be 1 to 32 letters, digits or '-', and not begin with '-'", field=field
        )
    if caller_id == names.RESERVED_CALLER_ID or caller_id in limits.reserved:
        raise InvalidParams(f"caller_id {caller_id!r} is taken by a pack or a server", field=field)
    return caller_id


def _tools(found: Mapping[str, str], caller_id: str, limits: DeclarationLimits) -> dict[str, CallerTool]:
    sources = _tool_sources(found.get("caller_tools", "[]"))
    tools: dict[str, CallerTool] = {}
    taken: dict[str, str] = {}
    for index, source in enumerate(sources):
        field = f"context.caller_tools[{index}]"
        tool = _tool(source, field, limits)
        _take_name(tool.name, caller_id, taken, limits, f"{field}.name")
        tools[tool.name] = tool
    return tools


def _tool_sources(text: str) -> list[bytes]:
    field = "context.caller_tools"
    if not text.startswith("["):
        raise InvalidParams("caller_tools must be a list", field=field)
    sources = msgspec.json.decode(text, type=list[msgspec.Raw])
    if len(sources) > MAX_TOOLS:
        raise InvalidParams(f"there are {len(sources)} caller tools, more than {MAX_TOOLS}", field=field)
    return [msgspec.json.format(bytes(source), indent=-1) for source in sources]


def _tool(source: bytes, field: str, limits: DeclarationLimits) -> CallerTool:
    found = _members(source, field, "a caller tool")
    name = _name(found, f"{field}.name")
    _check_texts(found, name, field)
    timeout = _timeout(found, name, f"{field}.timeout_seconds", limits)
    schema = _schema(found, name, f"{field}.inputSchema")
    return CallerTool(name, _with_timeout(source, found, timeout), timeout, schema)


def _name(found: Mapping[str, str], field: str) -> str:
    if "name" not in found:
        raise InvalidParams("a caller tool has no name", field=field)
    name = _string(found["name"], field)
    if not names.is_tool_name(name):
        raise InvalidParams(
            f"the caller tool's name {_quote(name)} must be 1 to 64 letters, digits, '_', '.' or '-'", field=field
        )
    return name


def _check_texts(found: Mapping[str, str], name: str, field: str) -> None:
    for key in ("title", "description"):
        text = _string(found[key], f"{field}.{key}") if key in found else ""
        if key == "description" and len(text.encode()) > MAX_DESCRIPTION_BYTES:
            raise InvalidParams(f"the description of caller tool {name!r} is over 16 KiB", field=f"{field}.{key}")
    for key in ("inputSchema", "outputSchema", "annotations"):
        if key in found and not found[key].startswith("{"):
            raise InvalidParams(f"the {key} of caller tool {name!r} must be an object", field=f"{field}.{key}")


def _timeout(found: Mapping[str, str], name: str, field: str, limits: DeclarationLimits) -> float:
    text = found.get("timeout_seconds")
    if text is None:
        return float(limits.default_timeout)
    if not _NUMBER.match(text):
        raise InvalidParams(f"the timeout_seconds of caller tool {name!r} must be a number", field=field)
    if not MIN_TIMEOUT_SECONDS <= float(text) <= limits.max_timeout:
        allowed = f"{MIN_TIMEOUT_SECONDS} to {limits.max_timeout:g}"
        raise InvalidParams(f"the timeout_seconds of caller tool {name!r} must be from {allowed}", field=field)
    return float(text)


def _schema(found: Mapping[str, str], name: str, field: str) -> Schema:
    try:
        return compile_schema(found["inputSchema"].encode() if "inputSchema" in found else _NO_SCHEMA)
    except SchemaError as error:
        raise InvalidParams(f"the inputSchema of caller tool {name!r} {error}", field=field) from None


def _take_name(name: str, caller_id: str, taken: dict[str, str], limits: DeclarationLimits, field: str) -> None:
    """Refuses a name that agents break on, or that another tool goes by (HAZARDS T27: refused, not last wins)."""
    if len(f"{caller_id}_{name}") > names.MAX_MCP_NAME:
        raise InvalidParams(f"'{caller_id}_{name}' is longer than {names.MAX_MCP_NAME} characters", field=field)
    mcp_name = names.mcp_name(caller_id, name)
    if mcp_name in taken:
        raise InvalidParams(f"caller tools {taken[mcp_name]!r} and {name!r} are both called {mcp_name!r}", field=field)
    # A pack `my_server` has tools `my_server_x`: so would a caller `my` with a tool `server_x`.
    pack = next((pack for pack in sorted(limits.reserved) if mcp_name.startswith(f"{pack}_")), None)
    if pack is not None:
        raise InvalidParams(f"{mcp_name!r} would be taken for a tool of {pack!r}", field=field)
    taken[mcp_name] = name


def _with_timeout(source: bytes, found: Mapping[str, str], timeout: float) -> msgspec.Raw:
    """Returns the tool as given, with the effective timeout in the place of a missing or null one."""
    if "timeout_seconds" in found:
        return msgspec.Raw(source)
    return msgspec.Raw(_set_timeout(source, b"%d" % timeout if timeout.is_integer() else msgspec.json.encode(timeout)))


def _set_timeout(text: bytes, spelled: bytes) -> bytes:
    given = members.members(text.decode())
    given["timeout_seconds"] = spelled.decode()
    pairs = (f"{json.dumps(key, ensure_ascii=False)}:{value}" for key, value in given.items())
    return f"{{{','.join(pairs)}}}".encode()


def _source(caller_id: str, tools: Mapping[str, CallerTool]) -> bytes:
    listed = b",".join(bytes(tool.source) for tool in tools.values())
    return b'{"caller_id":"%b","caller_tools":[%b]}' % (caller_id.encode(), listed)


def _warnings(tools: Mapping[str, CallerTool]) -> tuple[str, ...]:
    return tuple(
        f"caller tool {tool.name!r}: arguments are not checked against its inputSchema: {tool.schema.opaque_reason}"
        for tool in tools.values()
        if tool.schema.opaque_reason is not None
    )


def _members(source: bytes, field: str, what: str) -> dict[str, str]:
    """Returns the members of an object that are not null, as they were written."""
    try:
        text = source.decode()
        if too_deep(source):
            raise InvalidParams(f"{what} is nested deeper than {MAX_DEPTH} levels", field=field)
        return {key: value for key, value in members.members(text).items() if value != "null"}
    except members.DuplicateKeyError as error:
        raise InvalidParams(f"{what} has the key {_quote(str(error))} twice", field=field) from None
    except ValueError as error:
        raise InvalidParams(f"{what} must be a JSON object: {error}", field=field) from None


def _string(text: str, field: str) -> str:
    try:
        return msgspec.json.decode(text, type=str)
    except ValueError:
        raise InvalidParams(f"{field.rpartition('.')[2]} must be a string", field=field) from None


def _quote(text: str) -> str:
    return repr(text[:100])
