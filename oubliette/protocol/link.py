"""The messages of the link, daemon side (WIRE section 1): what a client asks, and what it is told unasked."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw, Struct
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


class SessionMessageParams(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`session_message`: what a child session is asked to do; without its id a new one is."""

    message: str
    session_id: str | None = None


class SessionEventsParams(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`session_events`: a child's events after an index; `wait_seconds` for one where there is none."""

    session_id: str
    since_index: Annotated[int, Meta(ge=0)] = 0
    wait_seconds: Annotated[float, Meta(ge=0, le=30)] = 0


class SessionEvents(Struct, frozen=True, kw_only=True):
    """The result of `session_events`. `last_index` is the session's newest; `completed`: no turn is under way."""

    session_id: str
    status: str
    last_index: int
    events: list[Raw]
    completed: bool
    failed: bool


class PackToolParams(Struct, frozen=True):
    """`pack_tool`: a tool's identity, `pack.tool`, or another name that it goes by."""

    name: str
    arguments: Raw = EMPTY_OBJECT

    def __post_init__(self) -> None:
        force_setattr(self, "arguments", EMPTY_OBJECT if bytes(self.arguments) == NULL else self.arguments)


class ProjectListParams(Struct, frozen=True, forbid_unknown_fields=True):
    """`project_list`: none."""


class ListedProject(Struct, frozen=True, kw_only=True):
    """As much of its project as a session's agents are shown."""

    project_id: str
    name: str
    description: str
    created_at: str


class ToolsParams(Struct, frozen=True):
    """`oubliette_tools`: the key whose scope decides."""

    api_key: str | None = None

    def __repr__(self) -> str:
        # What is shown is logged sooner or later, and the key must not be.
        return f"{type(self).__name__}(…)"


class CallToolParams(ToolsParams, frozen=True, kw_only=True):
    """`oubliette_call_tool`: a tool's MCP name without the prefix."""

    tool: str
    arguments: Raw = EMPTY_OBJECT

    def __post_init__(self) -> None:
        # A copy, as what was decoded refers to the whole line, and so to the key in it.
        force_setattr(self, "arguments", EMPTY_OBJECT if bytes(self.arguments) == NULL else self.arguments.copy())


class CancelledParams(Struct, frozen=True):
    """`notifications/cancelled`: `request_id` is the id of a request on the same link, spelled as `Message.id` is."""

    request_id: Raw = msgspec.field(name="requestId")

    def __post_init__(self) -> None:
        force_setattr(self, "request_id", Raw(canonical_id(self.request_id)))


def tools_result(entries: list[dict[str, Any]]) -> bytes:
    """Returns the result of `oubliette_tools`: MCP Tool objects with the names that the daemon has for them."""
    return msgspec.json.encode({"tools": entries})


def session_message_result(session_id: str, *, spawned: bool) -> bytes:
    """Returns the result of `session_message`."""
    return msgspec.json.encode({"session_id": session_id, "spawned": spawned})


def session_events_result(page: SessionEvents) -> bytes:
    """Returns the result of `session_events`."""
    return msgspec.json.encode(page)


def project_list_result(projects: list[ListedProject]) -> bytes:
    """Returns the result of `project_list`."""
    return msgspec.json.encode({"projects": projects})


def caller_tools_config(caller_id: str | None, tools: list[Raw]) -> bytes:
    """Returns the notification that says which tools the caller offers; `tools` are the declarations as given."""
    return _config("caller_tools_config", {"caller_id": caller_id, "tools": tools})


def pack_tools_config(tools: list[Raw], aliases: list[str] | None = None) -> bytes:
    """Returns the notification that says which pack tools the agent may call without a key; `aliases` are other names
    by which it may call some of them.
    """
    return _config("pack_tools_config", {"tools": tools, **({"aliases": aliases} if aliases else {})})


def progress(request: bytes, progress: float, total: float | None, message: str | None) -> bytes:
    """Returns the notification that a caller reported progress on `request`, the id of a request on this link."""
    params = {"request": Raw(request), "progress": progress, "total": total, "message": message}
    return encode_notification("notifications/progress", msgspec.json.encode(params))


def _config(type: str, params: dict[str, Any]) -> bytes:
    # A declaration may have come in a body of many lines; here a line end would end the message.
    return compact(msgspec.json.encode({"jsonrpc": "2.0", "type": type, "params": params}))
