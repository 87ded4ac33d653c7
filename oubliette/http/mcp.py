"""`/mcp`: MCP streamable HTTP, revisions 2025-03-26 to 2025-11-25 (WIRE section 4.1), as a plain ASGI callable."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec
import trio
from msgspec import Raw

import oubliette
from oubliette import errors
from oubliette.errors import (
    InvalidParams,
    InvalidRequest,
    MethodNotAllowed,
    MethodNotFound,
    NotAcceptable,
    NotFound,
    OublietteError,
    ParseError,
    RequestCancelled,
)
from oubliette.events import Entry
from oubliette.http.mcp_session import McpSession, McpSessions
from oubliette.http.positions import Positions
from oubliette.http.request import JSON, Header, Request
from oubliette.http.stream import HEADERS, KEEP_ALIVE_SECONDS, TAKEN_OVER, write_events
from oubliette.log import get as get_logger
from oubliette.protocol import mcp
from oubliette.protocol.events import as_notification
from oubliette.protocol.jsonrpc import (
    MalformedError,
    Message,
    check_text,
    decode,
    encode_error,
    encode_result,
    split_batch,
)
from oubliette.protocol.revisions import WITHOUT_HEADER, negotiate, spoken
from oubliette.protocol.sse import KEEP_ALIVE, encode
from oubliette.toolbox import box
from oubliette.toolbox.call import Call, Services
from oubliette.toolbox.declare import AnyTool

SESSION_HEADER: Final = b"mcp-session-id"
VERSION_HEADER: Final = b"mcp-protocol-version"
# An answer that is longer in coming than this, in seconds, gets a stream with comments, lest the peer gives up.
HOLD_QUIETLY: Final = 1.0
INSTRUCTIONS: Final = (
    "Start an agent with session_message. Tools of yours that the agent may call go into its context "
    "(caller_id, caller_tools); requests arrive as caller_tool_request events on the GET stream and are answered "
    "with caller_tool_response."
)

ParamsT = TypeVar("ParamsT", bound=msgspec.Struct)
Method = Callable[[McpSession, Message], Awaitable[bytes]]

log = get_logger(__name__)


class McpEndpoint:
    """Serves `/mcp`."""

    def __init__(self, services: Services, mcp_sessions: McpSessions, positions: Positions) -> None:
        self._services = services
        self._mcp_sessions = mcp_sessions
        self._positions = positions
        self._verbs = {"POST": self._post, "GET": self._get, "DELETE": self._delete}
        self._methods: dict[str, Method] = {
            "ping": self._ping,
            "logging/setLevel": self._set_level,
            "tools/list": self._list_tools,
            "tools/call": self._call_tool,
        }

    async def __call__(self, request: Request) -> None:
        """Answers one request, which the door has let in."""
        verb = self._verbs.get(request.method)
        if verb is None:
            raise MethodNotAllowed(f"{request.method} is not allowed on /mcp; POST, GET and DELETE are")
        await verb(request)

    # The three verbs

    async def _post(self, request: Request) -> None:
        try:
            check_text(request.body)
            if request.body.lstrip()[:1] == b"[":
                return await self._post_batch(request)
            message = decode(request.body)
        except MalformedError as error:
            return await _malformed(request, error)
        if message.method == "initialize":
            return await self._initialize(request, message)
        session = self._session(request)
        if message.is_response or not message.raw_id:
            self._notified(session, message)
            return await request.respond(202)
        if not request.accepts("application/json") and not request.accepts("text/event-stream"):
            raise NotAcceptable("Accept must allow application/json or text/event-stream")
        await self._answer(request, session, message)

    async def _post_batch(self, request: Request) -> None:
        """Several messages in one body, which revision 2025-03-26 alone knows."""
        session = self._session(request)
        if not session.revision.batches:
            raise InvalidRequest(f"revision {session.revision.name} has no batches: send one message a request")
        messages = [decode(item) for item in split_batch(request.body)]
        answers = [await self._answer_one(session, message) for message in messages if message.method and message.id]
        for message in messages:
            if message.is_response or not message.raw_id:
                self._notified(session, message)
        if not answers:
            return await request.respond(202)
        await request.respond(200, b"[%b]" % b",".join(answers))

    async def _get(self, request: Request) -> None:
        if not request.accepts("text/event-stream"):
            raise NotAcceptable("Accept must allow text/event-stream")
        session = self._session(request)
        resume_at = self._positions.seq_of(request.header(b"last-event-id"))
        async with session.open_stream(resume_at, self._services.sessions.journal.last_seq) as stream:
            await write_events(request, stream, self._frame, lambda: b"" if session.stream is stream else TAKEN_OVER)

    async def _delete(self, request: Request) -> None:
        self._mcp_sessions.close(self._session(request))
        await request.respond(204)

    def _frame(self, entry: Entry) -> bytes:
        data = as_notification(entry.data)
        head = b"id: %b\n" % self._positions.id_of(entry).encode() if entry.index else b""
        return b"%bevent: message\ndata: %b\n\n" % (head, data)

    # Sessions and versions

    async def _initialize(self, request: Request, message: Message) -> None:
        try:
            asked = _params(mcp.InitializeParams, message).protocol_version
        except OublietteError as error:
            return await _respond(request, 200, encode_error(message.id, errors.as_jsonrpc(error)))
        session = self._mcp_sessions.open(request.known_principal, negotiate(asked, "http"))
        result = mcp.initialize_result(session.revision, oubliette.__version__, INSTRUCTIONS)
        header = (SESSION_HEADER, session.id.encode())
        await _respond(request, 200, encode_result(message.id, result), header)

    def _session(self, request: Request) -> McpSession:
        _check_version(request)
        id = request.header(SESSION_HEADER)
        if not id:
            raise InvalidRequest("Mcp-Session-Id is missing; initialize first")
        return self._mcp_sessions.get(id, request.known_principal)

    # Messages

    async def _answer(self, request: Request, session: McpSession, message: Message) -> None:
        if self._may_hold(message) and request.accepts("text/event-stream"):
            return await self._answer_held(request, session, message)
        await _respond(request, 200, await self._answer_one(session, message))

    def _may_hold(self, message: Message) -> bool:
        if message.method != "tools/call":
            return False
        try:
            name = _params(mcp.CallToolParams, message).name
        except OublietteError:
            return False
        return name in box.TOOLS and box.TOOLS[name].holds

    async def _answer_held(self, request: Request, session: McpSession, message: Message) -> None:
        """Answers when there is an answer, with comments meanwhile. A peer that goes away ends the waiting alone."""
        answers: list[bytes] = []
        async with trio.open_nursery() as nursery:

            async def work() -> None:
                answers.append(await self._answer_one(session, message))
                nursery.cancel_scope.cancel(reason="the answer is there")

            async def leave() -> None:
                await request.disconnected()
                nursery.cancel_scope.cancel(reason="the peer has gone")

            nursery.start_soon(work)
            nursery.start_soon(leave)
            nursery.start_soon(_comment, request)
        for answer in answers:
            if not request.status:
                return await _respond(request, 200, answer)
            await request.write(encode(answer.decode(), type="message"), more=False)

    async def _answer_one(self, session: McpSession, message: Message) -> bytes:
        method = self._methods.get(message.method)
        try:
            if method is None:
                raise MethodNotFound(f"unknown method {message.method!r}")
            return encode_result(message.id, await method(session, message))
        except OublietteError as error:
            return encode_error(message.id, errors.as_jsonrpc(error))

    def _notified(self, session: McpSession, message: Message) -> None:
        if message.method == "notifications/cancelled":
            try:
                id = Message(raw_id=_params(mcp.CancelledParams, message).request_id).id
            except OublietteError:
                return
            if id in session.waiting:
                session.waiting[id].cancel(reason="the client cancelled the request")

    async def _ping(self, session: McpSession, message: Message) -> bytes:
        return b"{}"

    async def _set_level(self, session: McpSession, message: Message) -> bytes:
        session.set_level(_params(mcp.SetLevelParams, message).level)
        return b"{}"

    async def _list_tools(self, session: McpSession, message: Message) -> bytes:
        entries = [declared.entry for declared in box.offered(session.principal.scope)]
        return mcp.list_tools_result(entries, session.revision)

    async def _call_tool(self, session: McpSession, message: Message) -> bytes:
        params = _params(mcp.CallToolParams, message)
        try:
            declared = box.find(params.name)
        except NotFound as error:
            raise InvalidParams(error.message, field="name") from None
        arguments = mcp.EMPTY_OBJECT if bytes(params.arguments) == b"null" else params.arguments
        call = Call(principal=session.principal, services=self._services, on_named=session.cover)
        try:
            result = await _run(session, message.id, call, declared, arguments)
        except OublietteError as error:
            log.debug("a tool failed", tool=declared.name, kind=error.kind, reason=error.message)
            return errors.as_tool_result(error)
        return mcp.call_tool_result(result, session.revision)


async def _comment(request: Request) -> None:
    """Opens a stream in place of an answer that is long in coming, and keeps it alive."""
    await trio.sleep(HOLD_QUIETLY)
    await request.start(200, HEADERS)
    while True:
        await request.write(KEEP_ALIVE)
        await trio.sleep(KEEP_ALIVE_SECONDS)


async def _run(session: McpSession, id: bytes, call: Call, declared: AnyTool, arguments: Raw) -> bytes:
    if not declared.holds:
        return await box.run(call, declared, arguments)
    with trio.CancelScope() as scope:
        session.waiting[id] = scope
        try:
            return await box.run(call, declared, arguments)
        finally:
            session.waiting.pop(id, None)
    raise RequestCancelled("the client cancelled the request")


def _params(kind: type[ParamsT], message: Message) -> ParamsT:
    try:
        return msgspec.json.decode(message.params or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise InvalidParams(f"params of {message.method!r}: {error}", field="params") from None


def _check_version(request: Request) -> None:
    """MCP 2025-06-18, transports: an unsupported `MCP-Protocol-Version` is answered with 400."""
    version = request.header(VERSION_HEADER) or WITHOUT_HEADER.name
    names = [revision.name for revision in spoken("http") if not revision.stateless]
    if version not in names:
        raise InvalidRequest(f"MCP-Protocol-Version {version!r} is not spoken here; these are: {', '.join(names)}")


async def _malformed(request: Request, error: MalformedError) -> None:
    kind = ParseError if error.code == ParseError.code else InvalidRequest
    await _respond(request, 400, encode_error(error.id, errors.as_jsonrpc(kind(str(error)))))


async def _respond(request: Request, status: int, body: bytes, *headers: Header) -> None:
    length = (b"content-length", b"%d" % len(body))
    await request.start(status, [JSON, length, *headers])
    await request.write(body, more=False)
