"""Every error that someone outside can see, and how it is written for each door (WIRE section 7).

A class carries its JSON-RPC code, its kind and its HTTP status; a raise carries the sentence, and the field that it
concerns, and what else a protocol wants to be told (`extra`).
The translations at the end are the only ones there are.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec


class OublietteError(Exception):
    """What went wrong, in words that its reader can act on.

    `field` names the argument or key that was refused. `retry_safe` (WIRE section 3) is for errors of a caller-tool
    request, where it is true only if no stream was ever given it, and of a call to a proxied server, where it is true
    only if the server never got it.
    """

    code: ClassVar[int] = -32603
    kind: ClassVar[str] = "internal_error"
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, *, field: str | None = None, retry_safe: bool | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.retry_safe = retry_safe
        self.extra: dict[str, Any] = {}


class InternalError(OublietteError):
    """Ours. Details are in the log, never on the wire."""


class ParseError(OublietteError):
    code, kind, http_status = -32700, "parse_error", 400


class InvalidRequest(OublietteError):
    code, kind, http_status = -32600, "invalid_request", 400


class BodyTooLong(InvalidRequest):
    http_status = 413


class UnsupportedMediaType(InvalidRequest):
    http_status = 415


class NotAcceptable(InvalidRequest):
    http_status = 406


class BodyTooSlow(InvalidRequest):
    http_status = 408


class MethodNotAllowed(InvalidRequest):
    http_status = 405


class MethodNotFound(OublietteError):
    code, kind, http_status = -32601, "method_not_found", 404


class InvalidParams(OublietteError):
    code, kind, http_status = -32602, "invalid_params", 400


class CallerToolError(OublietteError):
    """The caller's own error: its text goes to the agent as it is."""

    code, kind, http_status = -32000, "caller_tool_error", 500


class Unauthorized(OublietteError):
    code, kind, http_status = -32001, "unauthorized", 401


class Forbidden(OublietteError):
    code, kind, http_status = -32002, "forbidden", 403


class CallerDisconnected(OublietteError):
    code, kind, http_status = -32003, "caller_disconnected", 409


class CallerTimeout(OublietteError):
    code, kind, http_status = -32004, "caller_timeout", 504


class NotFound(OublietteError):
    code, kind, http_status = -32005, "not_found", 404


class LimitExceeded(OublietteError):
    code, kind, http_status = -32006, "limit_exceeded", 429


class ResourceNotFound(NotFound):
    """An unknown URI. Its code is that of MCP's revisions up to 2025-11-25; the later ones say -32602."""

    code = -32002


class HeaderMismatch(InvalidRequest):
    """MCP 2026-07-28: a header that says something else than the body, or is missing."""

    code = -32020


class MissingClientCapability(InvalidRequest):
    """MCP 2026-07-28: what the client would have to be able to do; `capability` is a key of its capabilities."""

    code = -32021

    def __init__(self, capability: str) -> None:
        super().__init__(f"this needs a client with the capability {capability!r}")
        self.extra = {"requiredCapabilities": {capability: {}}}


class UnsupportedProtocolVersion(InvalidRequest):
    """A revision of MCP that is not spoken here; the error names those that are."""

    code = -32022

    def __init__(self, requested: str, supported: list[str]) -> None:
        super().__init__(f"MCP {requested!r} is not spoken here; these are: {', '.join(supported)}")
        self.extra = {"supported": supported, "requested": requested}


class Conflict(OublietteError):
    code, kind, http_status = -32007, "conflict", 409


class AgentFailed(OublietteError):
    code, kind, http_status = -32008, "agent_failed", 502


class ShuttingDown(OublietteError):
    code, kind, http_status = -32009, "shutting_down", 503


class ServerError(OublietteError):
    """A proxied MCP server's own error, or an answer of it that cannot be passed on."""

    code, kind, http_status = -32000, "server_error", 502


class ServerDisconnected(OublietteError):
    """A proxied MCP server that is not connected, or was lost under a call."""

    code, kind, http_status = -32003, "server_disconnected", 502


class ServerTimeout(OublietteError):
    """A proxied MCP server that did not answer within its `timeout_seconds`."""

    code, kind, http_status = -32004, "server_timeout", 504


class ToolTimeout(OublietteError):
    """A function of a local pack that did not return in time."""

    code, kind, http_status = -32004, "tool_timeout", 504


class RequestCancelled(OublietteError):
    """Not trio's Cancelled: a request that ended before its answer came."""

    code, kind, http_status = -32800, "cancelled", 409


def details(error: OublietteError) -> dict[str, Any]:
    """Returns `kind`, and `field`, `retry_safe` and what else the kind of error has to tell."""
    found: dict[str, Any] = {"kind": error.kind, **error.extra}
    if error.field is not None:
        found["field"] = error.field
    if error.retry_safe is not None:
        found["retry_safe"] = error.retry_safe
    return found


def as_jsonrpc(error: OublietteError) -> dict[str, Any]:
    """Returns the `error` member of a JSON-RPC response."""
    return {"code": error.code, "message": error.message, "data": details(error)}


def as_http(error: OublietteError) -> bytes:
    """Returns the body of an HTTP error outside `/mcp`."""
    return msgspec.json.encode({"error": {"message": error.message, **details(error)}})


def as_tool_result(error: OublietteError) -> bytes:
    """Returns the `CallToolResult` of a known tool that failed (WIRE section 4.1)."""
    return msgspec.json.encode(
        {
            "content": [{"type": "text", "text": error.message}],
            "isError": True,
            "_meta": {"oubliette/error": {"message": error.message, **details(error)}},
        }
    )
