"""What MCP servers answer and tell, each as its revision has it."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from oubliette.protocol.jsonrpc import encode_notification
from oubliette.protocol.mcp import SERVER_INFO, SUBSCRIPTION_ID, Level, SubscriptionFilter
from oubliette.protocol.revisions import Revision

CAPABILITIES: Final[dict[str, Any]] = {
    "logging": {},
    "completions": {},
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"subscribe": True},
}
# A session that starts is a new resource: told to who asks for it, and not to everybody, as earlier revisions would.
_CAPABILITIES_ASKED_FOR: Final = {**CAPABILITIES, "resources": {"subscribe": True, "listChanged": True}}
_members: Final = msgspec.json.Decoder(dict[str, Raw])
_encode: Final = msgspec.json.Encoder().encode


class ToolContent(Struct, frozen=True, kw_only=True, rename="camel"):
    """A `CallToolResult` as a tool makes it that has no `outputSchema`."""

    content: list[dict[str, Any]]
    is_error: bool | UnsetType = UNSET
    structured_content: Any = UNSET


class Caching(Struct, frozen=True):
    """How long a result may be reused, in milliseconds, and by whom (MCP 2026-07-28, "Caching")."""

    ttl_ms: int
    scope: Literal["public", "private"] = "private"


class Server(Struct, frozen=True):
    """What the server says of itself."""

    name: str
    version: str


def initialize_result(revision: Revision, server: Server, instructions: str) -> bytes:
    """Returns the result of `initialize`."""
    return _encode(
        {
            "protocolVersion": revision.name,
            "capabilities": CAPABILITIES,
            "serverInfo": server,
            "instructions": instructions,
        }
    )


def discover_result(supported: list[str], instructions: str) -> bytes:
    """Returns the result of `server/discover`."""
    capabilities = _CAPABILITIES_ASKED_FOR
    return _encode({"supportedVersions": supported, "capabilities": capabilities, "instructions": instructions})


def list_tools_result(entries: list[dict[str, Any]], revision: Revision) -> bytes:
    """Returns the result of `tools/list`, without what the revision does not know."""
    unknown = set() if revision.structured_content else {"outputSchema", "title"}
    unknown |= set() if revision.annotations else {"annotations"}
    return _encode({"tools": [{key: value for key, value in entry.items() if key not in unknown} for entry in entries]})


def list_result(kind: str, entries: list[dict[str, Any]], next_cursor: str | None = None) -> bytes:
    """Returns the result of `prompts/list`, `resources/list` or `resources/templates/list`; `kind` is its key."""
    more = {} if next_cursor is None else {"nextCursor": next_cursor}
    return _encode({kind: entries, **more})


def call_tool_result(structured: bytes, revision: Revision) -> bytes:
    """Returns the `CallToolResult` for a JSON object: as text, and as `structuredContent` where that is known."""
    text = _encode(structured.decode())
    if not revision.structured_content:
        return b'{"content":[{"type":"text","text":%b}]}' % text
    return b'{"content":[{"type":"text","text":%b}],"structuredContent":%b}' % (text, structured)


def stamped(result: bytes, revision: Revision, server: Server, caching: Caching | None = None) -> bytes:
    """Returns a result with what its revision wants every result to carry.

    MCP 2026-07-28: "The `result` MUST include a `resultType` field"; "Servers SHOULD include `serverInfo` in every
    result's `_meta`"; `caching` for the results that may be reused.
    """
    if not revision.stateless:
        return result
    members: dict[str, Any] = dict(_members.decode(result))
    meta = _members.decode(members.get("_meta", b"{}"))
    hints = {} if caching is None else {"ttlMs": caching.ttl_ms, "cacheScope": caching.scope}
    return _encode({"resultType": "complete", **hints, **members, "_meta": {**meta, SERVER_INFO: server}})


def listening_ended(subscription: bytes) -> bytes:
    """Returns the result of a `subscriptions/listen` that the server ends; `subscription` is its request's id."""
    return _encode({"_meta": {SUBSCRIPTION_ID: Raw(subscription)}})


def acknowledged(subscription: bytes, granted: SubscriptionFilter) -> bytes:
    """Returns the first message of a subscription."""
    return told("notifications/subscriptions/acknowledged", {"notifications": granted}, subscription)


def told(method: str, params: dict[str, Any], subscription: bytes | None = None) -> bytes:
    """Returns a notification, marked as belonging to a subscription where there is one."""
    meta = {} if subscription is None else {"_meta": {SUBSCRIPTION_ID: Raw(subscription)}}
    return encode_notification(method, _encode({**params, **meta}))


def progress(token: Raw, done: float, total: float | None = None, message: str | None = None) -> bytes:
    """Returns a `notifications/progress`."""
    known = {"progressToken": token, "progress": done, "total": total, "message": message}
    params = {key: value for key, value in known.items() if value is not None}
    return encode_notification("notifications/progress", _encode(params))


def log_message(level: Level, logger: str, data: Any) -> bytes:
    """Returns a `notifications/message`."""
    return encode_notification("notifications/message", _encode({"level": level, "logger": logger, "data": data}))
