"""`/mcp`: MCP streamable HTTP (WIRE section 4.1), as a plain ASGI callable.

Revisions 2025-03-26 to 2025-11-25, with their sessions and their GET stream, are served here; a request of a later
one says so itself and is handed on.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import trio

from oubliette import errors
from oubliette.errors import (
    InvalidRequest,
    MethodNotAllowed,
    NotAcceptable,
    OublietteError,
    ParseError,
    RequestCancelled,
    UnsupportedProtocolVersion,
)
from oubliette.events import Entry
from oubliette.http.mcp_answer import PostAnswer, hold, respond
from oubliette.http.mcp_socket import McpSockets
from oubliette.http.mcp_stateless import StatelessEndpoint
from oubliette.http.positions import Positions
from oubliette.http.request import Header, Request
from oubliette.http.stream import TAKEN_OVER, write_events
from oubliette.mcp import held, methods, subscriptions
from oubliette.mcp.envelope import SUPPORTED, is_stateless, meta_of, params_of
from oubliette.mcp.exchange import Exchange
from oubliette.mcp.methods import INSTRUCTIONS, SERVER, Answer
from oubliette.mcp.session import McpSession, McpSessions
from oubliette.protocol import mcp, mcp_headers, mcp_results
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
from oubliette.protocol.revisions import BY_NAME, WITHOUT_HEADER, negotiate
from oubliette.streams import Stream
from oubliette.toolbox.call import Services

SESSION_HEADER: Final = b"mcp-session-id"


class McpEndpoint:
    """Serves `/mcp`."""

    def __init__(self, services: Services, mcp_sessions: McpSessions, positions: Positions, max_message: int) -> None:
        self._services = services
        self._mcp_sessions = mcp_sessions
        self._positions = positions
        self._stateless = StatelessEndpoint(services)
        self._sockets = McpSockets(services, mcp_sessions, max_message)
        self._verbs = {"POST": self._post, "GET": self._get, "DELETE": self._delete}

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
        if is_stateless(message, request.headers):
            return await self._stateless(request, message)
        if message.method == "initialize":
            return await self._initialize(request, message)
        session = self._session(request)
        if message.is_response or not message.raw_id:
            _notified(session, message)
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
        silent = PostAnswer(request)
        answers = [
            (await self._answer_one(session, message, silent)).text
            for message in messages
            if message.method and message.id
        ]
        for message in messages:
            if message.is_response or not message.raw_id:
                _notified(session, message)
        if not answers:
            return await request.respond(202)
        await request.respond(200, b"[%b]" % b",".join(answers))

    async def _get(self, request: Request) -> None:
        if request.wants_websocket:
            return await self._sockets(request)
        if not request.accepts("text/event-stream"):
            raise NotAcceptable("Accept must allow text/event-stream")
        session = self._session(request)
        resume_at = self._positions.seq_of(request.header(b"last-event-id"))
        async with session.open_stream(resume_at, self._services.sessions.journal.last_seq) as stream:
            await self._write_stream(request, session, stream)

    async def _write_stream(self, request: Request, session: McpSession, stream: Stream) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(subscriptions.tell, session.watch, PostAnswer(request))
            await write_events(request, stream, self._frame, lambda: b"" if session.stream is stream else TAKEN_OVER)
            nursery.cancel_scope.cancel(reason="the stream has ended")

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
            asked = params_of(mcp.InitializeParams, message).protocol_version
        except OublietteError as error:
            return await respond(request, Answer(encode_error(message.id, errors.as_jsonrpc(error))))
        session = self._mcp_sessions.open(request.known_principal, negotiate(asked, "http"))
        result = mcp_results.initialize_result(session.revision, SERVER, INSTRUCTIONS)
        header: Header = (SESSION_HEADER, session.id.encode())
        await respond(request, Answer(encode_result(message.id, result)), header)

    def _session(self, request: Request) -> McpSession:
        _check_version(request)
        id = request.header(SESSION_HEADER)
        if not id:
            raise InvalidRequest("Mcp-Session-Id is missing; initialize first")
        return self._mcp_sessions.get(id, request.known_principal)

    # Messages

    async def _answer(self, request: Request, session: McpSession, message: Message) -> None:
        if methods.holds(message, self._services) and request.accepts("text/event-stream"):
            return await hold(request, partial(self._answer_held, session, message))
        await respond(request, await self._answer_one(session, message, PostAnswer(request)))

    async def _answer_held(self, session: McpSession, message: Message, channel: PostAnswer) -> Answer:
        """An answer that `notifications/cancelled` may end."""
        exchange = self._exchange(session, message, channel)
        exchange.level = session.level
        exchange.progress_token = meta_of(message).progress_token
        with trio.CancelScope() as scope:
            session.waiting[message.id] = scope
            try:
                return await held.answer(exchange, message)
            finally:
                session.waiting.pop(message.id, None)
        return methods.refuse(message.id, RequestCancelled("the client cancelled the request"), session.revision)

    async def _answer_one(self, session: McpSession, message: Message, channel: PostAnswer) -> Answer:
        return await methods.answer(self._exchange(session, message, channel), message)

    def _exchange(self, session: McpSession, message: Message, channel: PostAnswer) -> Exchange:
        return Exchange(
            id=message.id,
            principal=session.principal,
            revision=session.revision,
            services=self._services,
            channel=channel,
            session=session,
        )


def _notified(session: McpSession, message: Message) -> None:
    if message.method == "notifications/cancelled":
        try:
            id = Message(raw_id=params_of(mcp.CancelledParams, message).request_id).id
        except OublietteError:
            return
        if id in session.waiting:
            session.waiting[id].cancel(reason="the client cancelled the request")


def _check_version(request: Request) -> None:
    """MCP 2025-06-18, transports: an unsupported `MCP-Protocol-Version` is answered with 400."""
    version = request.header(mcp_headers.VERSION) or WITHOUT_HEADER.name
    revision = BY_NAME.get(version)
    if revision is None or not revision.http:
        raise UnsupportedProtocolVersion(version, SUPPORTED)
    if revision.stateless:
        refusal = InvalidRequest if request.method == "POST" else MethodNotAllowed
        raise refusal(f"MCP {version} has neither sessions nor batches: POST one request at a time")


async def _malformed(request: Request, error: MalformedError) -> None:
    kind = ParseError if error.code == ParseError.code else InvalidRequest
    await respond(request, Answer(encode_error(error.id, errors.as_jsonrpc(kind(str(error)))), 400))
