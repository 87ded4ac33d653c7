"""The messages of the link, daemon side (WIRE section 1): what a client asks, and what it is told unasked."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import force_setattr

from oubliette.protocol.jsonrpc import NULL, canonical_id, compact, encode_notification

EMPTY_OBJECT: Final = Raw(b"{}")
# The first line that older clients send; it names a project.
GREETING: Final = b"OUBLIETTE-DOWNSTREAM"


class CallerToolParams(Struct, frozen=True):
    """`caller_tool`: a tool's name without the prefix."""

    tool: str
    arguments: Raw = EMPTY_OBJECT

    def __post_init__(self) -> None:
        # WIRE section 1: "Missing or null `arguments` are `{}`."
        if bytes(self.arguments) == NULL:
            force_setattr(self, "arguments", EMPTY_OBJECT)


class CancelledParams(Struct, frozen=True):
    """`notifications/cancelled`: `request_id` is the id of a request on the same link, spelled as `Message.id` is."""

    request_id: Raw = msgspec.field(name="requestId")

    def __post_init__(self) -> None:
        force_setattr(self, "request_id", Raw(canonical_id(self.request_id)))


def caller_tools_config(caller_id: str | None, tools: list[Raw]) -> bytes:
    """Returns the notification that says which tools the caller offers; `tools` are the declarations as given."""
    return _config("caller_tools_config", {"caller_id": caller_id, "tools": tools})


def pack_tools_config(tools: list[Raw]) -> bytes:
    """Returns the notification that says which pack tools the agent may call without a key."""
    return _config("pack_tools_config", {"tools": tools})


def progress(request: bytes, progress: float, total: float | None, message: str | None) -> bytes:
    """Returns the notification that a caller reported progress on `request`, the id of a request on this link."""
    params = {"request": Raw(request), "progress": progress, "total": total, "message": message}
    return encode_notification("notifications/progress", msgspec.json.encode(params))


def _config(type: str, params: dict[str, Any]) -> bytes:
    # A declaration may have come in a body of many lines; here a line end would end the message.
    return compact(msgspec.json.encode({"jsonrpc": "2.0", "type": type, "params": params}))
