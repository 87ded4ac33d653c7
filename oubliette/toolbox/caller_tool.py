"""The pack `caller_tool`: what a caller says of a request that it was given (WIRE section 3, "Answers")."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from oubliette.errors import CallerToolError, InvalidParams
from oubliette.log import span
from oubliette.relay import Progress
from oubliette.toolbox.call import Call
from oubliette.toolbox.declare import tool

SessionId = Annotated[str, Meta(description="The session that the request belongs to")]
RequestId = Annotated[str, Meta(description="The request_id of the caller_tool_request event")]


class Response(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    session_id: SessionId
    request_id: RequestId
    result: Annotated[Raw | UnsetType, Meta(description="What the tool returned, any JSON value, null included")] = (
        UNSET
    )
    error: Annotated[str | None, Meta(description="Why the tool failed; the agent gets this text")] = None


class Report(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    session_id: SessionId
    request_id: RequestId
    progress: Annotated[float, Meta(description="How far it is; grows with each report")]
    total: Annotated[float | None, Meta(description="How far it will get, where that is known")] = None
    message: Annotated[Annotated[str, Meta(max_length=4096)] | None, Meta(description="What it is doing")] = None


class Accepted(Struct, frozen=True, kw_only=True):
    accepted: bool


@tool("caller_tool.response", access="write", target="project", is_immediate=True)
async def caller_tool_response(call: Call, arguments: Response) -> Accepted:
    """Answers a caller_tool_request event with the tool's result or its error. Only the session's owner may."""
    # The span makes of a refused answer what WIRE section 3 asks for: "logged as a warning".
    with span("caller_tool.response", session=arguments.session_id, request_id=arguments.request_id):
        outcome = _outcome(arguments)
        session = await call.own_session(arguments.session_id)
        session.relay.resolve(arguments.request_id, outcome)
    return Accepted(accepted=True)


@tool("caller_tool.progress", access="write", target="project", is_immediate=True)
async def caller_tool_progress(call: Call, arguments: Report) -> Accepted:
    """Reports progress on a caller_tool_request event. It does not extend the deadline."""
    with span("caller_tool.progress", session=arguments.session_id, request_id=arguments.request_id):
        session = await call.own_session(arguments.session_id)
        report = Progress(progress=arguments.progress, total=arguments.total, message=arguments.message)
        session.relay.progress(arguments.request_id, report)
    return Accepted(accepted=True)


def _outcome(arguments: Response) -> bytes | CallerToolError:
    """ "With a non-null `error` … `result` must be absent or null … A `result` key without error is a success"."""
    result = None if arguments.result is UNSET else bytes(arguments.result)
    if arguments.error is None:
        if result is None:
            raise InvalidParams("neither 'result' nor 'error' was given; the request goes on waiting", field="result")
        return result
    if result not in (None, b"null"):
        raise InvalidParams("both 'result' and 'error' were given; the request goes on waiting", field="error")
    return CallerToolError(arguments.error)
