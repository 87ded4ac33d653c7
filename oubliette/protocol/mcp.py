"""What MCP clients send, in the revisions from 2025-03-26 to 2026-07-28: the params of each method."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

EMPTY_OBJECT: Final = Raw(b"{}")
LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
Level = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]

META_PREFIX: Final = "io.modelcontextprotocol/"
PROTOCOL_VERSION: Final = f"{META_PREFIX}protocolVersion"
CLIENT_CAPABILITIES: Final = f"{META_PREFIX}clientCapabilities"
LOG_LEVEL: Final = f"{META_PREFIX}logLevel"
SUBSCRIPTION_ID: Final = f"{META_PREFIX}subscriptionId"
SERVER_INFO: Final = f"{META_PREFIX}serverInfo"
# How JSON text of one begins.
_STRING_OR_NUMBER: Final = b'"-0123456789'


class RequestMeta(Struct, frozen=True):
    """`params._meta` of any request. What a 2026-07-28 request must say of itself is typed by whoever checks it."""

    protocol_version: Any = msgspec.field(name=PROTOCOL_VERSION, default=UNSET)
    client_capabilities: Any = msgspec.field(name=CLIENT_CAPABILITIES, default=UNSET)
    log_level: Level | None = msgspec.field(name=LOG_LEVEL, default=None)
    progress_token: Raw | UnsetType = msgspec.field(name="progressToken", default=UNSET)

    def __post_init__(self) -> None:
        # MCP, progress: "Progress tokens MUST be a string or integer value".
        if self.progress_token is not UNSET and bytes(self.progress_token)[:1] not in _STRING_OR_NUMBER:
            raise ValueError("progressToken must be a string or a number")


class AnyParams(Struct, frozen=True):
    """Of any request: its `_meta`, and what a 2026-07-28 request repeats in the header `Mcp-Name`."""

    meta: RequestMeta | UnsetType = msgspec.field(name="_meta", default=UNSET)
    name: Any = UNSET
    uri: Any = UNSET


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


class PageParams(Struct, frozen=True):
    """Every `…/list`."""

    cursor: str | None = None


class GetPromptParams(Struct, frozen=True):
    """`prompts/get`."""

    name: str
    arguments: dict[str, str] = {}


class ResourceParams(Struct, frozen=True):
    """`resources/read`, `resources/subscribe` and `resources/unsubscribe`."""

    uri: str


class PromptReference(Struct, frozen=True, tag_field="type", tag="ref/prompt"):
    name: str


class TemplateReference(Struct, frozen=True, tag_field="type", tag="ref/resource"):
    uri: str


class CompletedArgument(Struct, frozen=True):
    name: str
    value: str


class CompleteParams(Struct, frozen=True):
    """`completion/complete`."""

    ref: PromptReference | TemplateReference
    argument: CompletedArgument


class SubscriptionFilter(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What a `subscriptions/listen` asks for, and what its acknowledgement grants."""

    tools_list_changed: bool = False
    prompts_list_changed: bool = False
    resources_list_changed: bool = False
    resource_subscriptions: list[str] = []


class ListenParams(Struct, frozen=True):
    """`subscriptions/listen`."""

    notifications: SubscriptionFilter


def delivers_events(level: Level) -> bool:
    """Whether log messages of level `info` pass at `level` (RFC 5424's order)."""
    return passes("info", level)


def passes(level: Level, least: Level) -> bool:
    """Whether a log message of `level` is wanted by who asked for `least` and above."""
    return LEVELS.index(level) >= LEVELS.index(least)
