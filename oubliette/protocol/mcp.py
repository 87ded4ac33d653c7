"""The MCP messages that a server of the revisions up to 2025-11-25 reads and writes."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct

from oubliette.protocol.revisions import Revision

EMPTY_OBJECT: Final = Raw(b"{}")
LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
Level = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]


class InitializeParams(Struct, frozen=True):
    """`initialize`; what the client says of itself is not needed."""

    protocol_version: str = msgspec.field(name="protocolVersion")


class CallToolParams(Struct, frozen=True):
    """`tools/call`; the arguments are decoded by the tool."""

    name: str
    arguments: Raw = EMPTY_OBJECT


class SetLevelParams(Struct, frozen=True):
    """`logging/setLevel`."""

    level: Level


class CancelledParams(Struct, frozen=True):
    """`notifications/cancelled`."""

    request_id: Raw = msgspec.field(name="requestId")


def delivers_events(level: Level) -> bool:
    """Whether log messages of level `info` pass at `level` (RFC 5424's order)."""
    return LEVELS.index(level) <= LEVELS.index("info")


def initialize_result(revision: Revision, version: str, instructions: str) -> bytes:
    """Returns the result of `initialize` for a server of that `version`."""
    return msgspec.json.encode(
        {
            "protocolVersion": revision.name,
            "capabilities": {"logging": {}, "tools": {"listChanged": False}},
            "serverInfo": {"name": "oubliette", "version": version},
            "instructions": instructions,
        }
    )


def list_tools_result(entries: list[dict[str, Any]], revision: Revision) -> bytes:
    """Returns the result of `tools/list`, without what the revision does not know."""
    unknown = set() if revision.structured_content else {"outputSchema", "title"}
    unknown |= set() if revision.annotations else {"annotations"}
    return msgspec.json.encode(
        {"tools": [{key: value for key, value in entry.items() if key not in unknown} for entry in entries]}
    )


def call_tool_result(structured: bytes, revision: Revision) -> bytes:
    """Returns the `CallToolResult` for a JSON object: as text, and as `structuredContent` where that is known."""
    text = msgspec.json.encode(structured.decode())
    if not revision.structured_content:
        return b'{"content":[{"type":"text","text":%b}]}' % text
    return b'{"content":[{"type":"text","text":%b}],"structuredContent":%b}' % (text, structured)
