"""The messages of the link, daemon side (WIRE section 1): what a client asks, and what it is told unasked."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw, Struct

from oubliette.protocol.jsonrpc import encode_notification

EMPTY_OBJECT: Final = Raw(b"{}")
# The first line that older clients send; it names a project.
GREETING: Final = b"OUBLIETTE-DOWNSTREAM"


class CallerToolParams(Struct, frozen=True):
    """`caller_tool`: a tool's name without the prefix. Missing or null arguments are `{}`."""

    tool: str
    arguments: Raw = EMPTY_OBJECT


class CancelledParams(Struct, frozen=True):
    """`notifications/cancelled`: `request_id` is the JSON text of the id of a request on the same link."""

    request_id: Raw = msgspec.field(name="requestId")


def caller_tools_config(caller_id: str | None, tools: list[Raw]) -> bytes:
    """Returns the notification that says which tools the caller offers; `tools` are the declarations as given."""
    params = msgspec.json.encode({"caller_id": caller_id, "tools": tools})
    return b'{"jsonrpc":"2.0","type":"caller_tools_config","params":%b}' % params


def pack_tools_config(tools: list[Raw]) -> bytes:
    """Returns the notification that says which pack tools the agent may call without a key."""
    return b'{"jsonrpc":"2.0","type":"pack_tools_config","params":%b}' % msgspec.json.encode({"tools": tools})


def progress(request: bytes, progress: float, total: float | None, message: str | None) -> bytes:
    """Returns the notification that a caller reported progress on `request`, the id of a request on this link."""
    params = {"request": Raw(request), "progress": progress, "total": total, "message": message}
    return encode_notification("notifications/progress", msgspec.json.encode(params))
