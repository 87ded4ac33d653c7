"""The methods of MCP as a table, and the one place where a request becomes an answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import oubliette
from oubliette import errors
from oubliette.errors import (
    InvalidParams,
    MethodNotFound,
    MissingClientCapability,
    NotFound,
    OublietteError,
    ResourceNotFound,
)
from oubliette.log import get as get_logger
from oubliette.mcp import completion, prompts, resources, subscriptions
from oubliette.mcp.envelope import SUPPORTED, params_of
from oubliette.mcp.exchange import Exchange
from oubliette.protocol import mcp_results
from oubliette.protocol.jsonrpc import Message, encode_error, encode_result
from oubliette.protocol.mcp import EMPTY_OBJECT, CallToolParams, SetLevelParams
from oubliette.protocol.mcp_results import Caching, Server
from oubliette.protocol.revisions import Revision
from oubliette.toolbox import box
from oubliette.toolbox.call import Services
from oubliette.toolbox.declare import Tool

Method = Callable[[Exchange, Message], Awaitable[bytes]]

SERVER: Final = Server("oubliette", oubliette.__version__)
INSTRUCTIONS: Final = (
    "Start an agent with session_message. Tools of yours that the agent may call go into its context "
    "(caller_id, caller_tools); requests arrive as caller_tool_request events and are answered with "
    "caller_tool_response. Events are log messages: before 2026-07-28 on the GET stream; since then on the answer "
    "of session_message with wait, or of session_events with follow, when the request's _meta has a logLevel. "
    "Without a stream, ask session_events with wait_seconds."
)
# What is listed depends on the asker's scope. Changes are announced too, so a list may be kept for a while; what a
# session has done changes all the time.
_LISTED: Final = Caching(60_000)
_CHANGING: Final = Caching(0)
CACHING: Final = {
    "server/discover": Caching(3_600_000, "public"),
    "tools/list": _LISTED,
    "prompts/list": _LISTED,
    "resources/templates/list": _LISTED,
    "resources/list": _CHANGING,
    "resources/read": _CHANGING,
}

log = get_logger(__name__)


class Answer(NamedTuple):
    """A response, and the HTTP status that it has where the revision wants its errors to show there."""

    text: bytes
    status: int = 200


async def answer(exchange: Exchange, message: Message) -> Answer:
    """Returns the response to a request. Raises nothing of ours: an `OublietteError` becomes an error response."""
    try:
        result = await _method(exchange.revision, message)(exchange, message)
    except OublietteError as error:
        return refuse(exchange.id, error, exchange.revision)
    stamped = mcp_results.stamped(result, exchange.revision, SERVER, CACHING.get(message.method))
    return Answer(encode_result(exchange.id, stamped))


def refuse(id: bytes, error: OublietteError, revision: Revision) -> Answer:
    """Returns the error response for a request of a revision."""
    if revision.stateless and isinstance(error, ResourceNotFound):
        refused = InvalidParams(error.message, field=error.field)
        refused.extra = error.extra
        error = refused
    return Answer(encode_error(id, errors.as_jsonrpc(error)), error.http_status if revision.stateless else 200)


def tool_named(message: Message) -> str | None:
    """Returns the name of the tool that a message calls, None where it calls none."""
    if message.method != "tools/call":
        return None
    try:
        return params_of(CallToolParams, message).name
    except OublietteError:
        return None


def is_immediate(message: Message) -> bool:
    """Whether the answer is there as soon as it is asked for."""
    tool = box.TOOLS.get(tool_named(message) or "")
    return message.method == "ping" or (tool is not None and tool.is_immediate)


def holds(message: Message, services: Services) -> bool:
    """Whether the answer may be long in coming, or be preceded by notifications; that of any pack's tool may."""
    name = tool_named(message)
    if name is None:
        return message.method == "subscriptions/listen"
    tool = box.own(services, name)
    return services.packs.offer.find(name) is not None if tool is None else tool.holds


def _method(revision: Revision, message: Message) -> Method:
    method = _COMMON.get(message.method) or (STATELESS if revision.stateless else _NEGOTIATED).get(message.method)
    if method is None:
        raise MethodNotFound(f"unknown method {message.method!r}")
    return method


async def _discover(exchange: Exchange, message: Message) -> bytes:
    return mcp_results.discover_result(SUPPORTED, INSTRUCTIONS)


async def _ping(exchange: Exchange, message: Message) -> bytes:
    return b"{}"


async def _set_level(exchange: Exchange, message: Message) -> bytes:
    assert exchange.session is not None
    exchange.session.set_level(params_of(SetLevelParams, message).level)
    return b"{}"


async def _list_tools(exchange: Exchange, message: Message) -> bytes:
    call = exchange.call
    own = [declared.entry for declared in box.offered(exchange.principal.scope)]
    entries = own + [{"name": tool.mcp_name, **tool.entry} for tool in call.pack_tools()]
    return mcp_results.list_tools_result(entries, exchange.revision)


async def _call_tool(exchange: Exchange, message: Message) -> bytes:
    params = params_of(CallToolParams, message)
    arguments = EMPTY_OBJECT if bytes(params.arguments) == b"null" else params.arguments
    call = exchange.call
    try:
        tool = box.find(call, params.name)
    except NotFound as error:
        raise InvalidParams(error.message, field="name") from None
    try:
        if not isinstance(tool, Tool):
            return await box.run_pack_tool(call, tool, arguments)
        result = await box.run(call, tool, arguments)
    except MissingClientCapability:
        raise
    except OublietteError as error:
        log.debug("a tool failed", tool=params.name, kind=error.kind, reason=error.message)
        return errors.as_tool_result(error)
    return mcp_results.call_tool_result(result, exchange.revision) if tool.is_structured else result


_COMMON: Final[dict[str, Method]] = {
    "tools/list": _list_tools,
    "tools/call": _call_tool,
    "prompts/list": prompts.list_prompts,
    "prompts/get": prompts.get_prompt,
    "resources/list": resources.list_resources,
    "resources/read": resources.read_resource,
    "resources/templates/list": resources.list_templates,
    "completion/complete": completion.complete,
}
_NEGOTIATED: Final[dict[str, Method]] = {
    "ping": _ping,
    "logging/setLevel": _set_level,
    "resources/subscribe": resources.subscribe,
    "resources/unsubscribe": resources.unsubscribe,
}
STATELESS: Final[dict[str, Method]] = {
    "server/discover": _discover,
    "subscriptions/listen": subscriptions.listen,
}
