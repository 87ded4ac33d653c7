"""`/mcp` over WebSocket: "one JSON-RPC message per text frame, the semantics of stdio; the connection is one MCP
session and one stream" (WIRE section 4.1). Both eras may be spoken on one connection, as on stdio.

    run: the reader
    ├─ the keep-alive
    ├─ the writer of what requests have to say
    ├─ a task for each request that may wait
    ├─ the events of the MCP session, once there is one
    └─ the end, when the daemon stops
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

import trio
from msgspec import UNSET

from oubliette import errors
from oubliette.errors import InvalidParams, InvalidRequest, LimitExceeded, OublietteError, ParseError
from oubliette.events import FellBehindError
from oubliette.gate import ENDED
from oubliette.http.request import Request
from oubliette.http.websocket import WebSocket
from oubliette.log import get as get_logger
from oubliette.mcp import held, methods, subscriptions
from oubliette.mcp.envelope import meta_of, open_envelope, params_of, says_its_revision
from oubliette.mcp.exchange import Exchange
from oubliette.mcp.methods import INSTRUCTIONS, SERVER
from oubliette.mcp.session import McpSession, McpSessions
from oubliette.protocol import mcp, mcp_results
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
from oubliette.protocol.revisions import negotiate
from oubliette.tokens import Principal
from oubliette.toolbox.call import Services

SUBPROTOCOL: Final = "mcp"
# Requests of one connection that may wait at a time, as on a link: each holds its message, and a task.
MAX_RUNNING: Final = 1000
# RFC 6455, section 7.4.1, and IANA's registry: "going away", "violates its policy", "try again later".
GOING_AWAY: Final = 1001
POLICY_VIOLATION: Final = 1008
TRY_AGAIN_LATER: Final = 1013

log = get_logger(__name__)


class McpSockets:
    """Serves the upgrades of `/mcp`; a message has `max_message` bytes at the most."""

    def __init__(self, services: Services, mcp_sessions: McpSessions, max_message: int) -> None:
        self._services = services
        self._mcp_sessions = mcp_sessions
        self._max_message = max_message

    async def __call__(self, request: Request) -> None:
        """Takes the connection of `request` over, until either side closes it. Raises what the handshake raises."""
        socket = await WebSocket.accept(request, subprotocol=SUBPROTOCOL, max_message=self._max_message)
        try:
            await McpSocket(socket, request.known_principal, self._services, self._mcp_sessions).run()
        finally:
            if self._services.gate.has_ended:
                await socket.close(POLICY_VIOLATION, ENDED)


class McpSocket:
    """One connection of `principal`. It is the channel of all its requests."""

    def __init__(self, socket: WebSocket, principal: Principal, services: Services, mcp_sessions: McpSessions) -> None:
        self._socket = socket
        self._principal = principal
        self._services = services
        self._mcp_sessions = mcp_sessions
        self._session: McpSession | None = None
        self._running: dict[bytes, trio.CancelScope] = {}
        self._stopping = trio.Event()
        self._has_news = trio.Event()
        self._written = trio.Event()
        self._delivered = trio.Event()
        self._answered = trio.Event()

    async def run(self) -> None:
        """Serves the peer until it leaves or is sent away. Agent sessions go on."""
        self._services.standing.add(self)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._socket.keep_alive)
                nursery.start_soon(self._write)
                nursery.start_soon(self._leave_in_order)
                while messages := await self._socket.receive():
                    for message in messages:
                        await self._take(message, nursery)
                    await self._socket.flush()
                nursery.cancel_scope.cancel(reason="the peer has gone")
        finally:
            self._services.standing.discard(self)
            if self._session is not None:
                self._mcp_sessions.close(self._session)

    async def send(self, *messages: bytes) -> None:
        """Sends messages in one write, which goes on when the request that they belong to is cancelled."""
        self._put(messages)
        written = self._written
        self._has_news.set()
        await written.wait()

    async def _write(self) -> None:
        """Writes for the tasks of requests: half a message must not be out when one of them is cancelled."""
        while True:
            await self._has_news.wait()
            self._has_news = trio.Event()
            written, self._written = self._written, trio.Event()
            await self._socket.flush()
            written.set()

    def _put(self, messages: Iterable[bytes]) -> None:
        for message in messages:
            self._socket.put(message)

    def finish(self) -> None:
        """Ends the connection behind what there is to say: the daemon stops."""
        self._stopping.set()

    async def _leave_in_order(self) -> None:
        await self._stopping.wait()
        if self._session is not None and self._session.stream is not None:
            self._session.stream.finish()
            await self._delivered.wait()
        while self._running:
            self._answered = trio.Event()
            await self._answered.wait()
        await self._socket.close(GOING_AWAY, "the daemon stops")

    # Messages

    async def _take(self, text: bytes, nursery: trio.Nursery) -> None:
        """Takes one message; what answers it at once is put, and goes out with the rest of the read."""
        try:
            check_text(text)
            if text.lstrip()[:1] == b"[":
                return self._take_batch(split_batch(text), nursery)
            await self._take_message(decode(text), nursery)
        except MalformedError as error:
            kind = ParseError if error.code == ParseError.code else InvalidRequest
            self._refuse(error.id, kind(str(error)))
        except InvalidRequest as error:
            self._refuse(b"null", error)

    async def _take_message(self, message: Message, nursery: trio.Nursery) -> None:
        if message.is_response:
            return  # this server asks nothing
        if not message.raw_id:
            return self._notified(message)
        try:
            exchange = self._exchange(message)
        except OublietteError as error:
            return self._refuse(message.id, error)
        if exchange is None:
            await self._initialize(message, nursery)
        elif methods.is_immediate(message):
            self._socket.put((await methods.answer(exchange, message)).text)
        else:
            self._start(exchange, message, nursery)

    def _take_batch(self, batch: list[bytes], nursery: trio.Nursery) -> None:
        """Several messages in one, which revision 2025-03-26 alone knows: one array answers its requests."""
        if self._session is None or not self._session.revision.batches:
            raise InvalidRequest("there are no batches in this revision: send one message a frame")
        nursery.start_soon(self._answer_batch, [decode(item) for item in batch])

    async def _answer_batch(self, messages: list[Message]) -> None:
        answers = []
        for message in messages:
            if message.method and message.raw_id and (exchange := self._exchange(message)) is not None:
                answers.append((await methods.answer(exchange, message)).text)
        if answers:
            await self.send(b"[%b]" % b",".join(answers))

    def _exchange(self, message: Message) -> Exchange | None:
        """Returns what the request is answered with, None for an `initialize`. Raises `OublietteError` for neither."""
        whose = partial(Exchange, principal=self._principal, services=self._services, channel=self, door="websocket")
        common = partial(whose, id=message.id)
        if says_its_revision(message) or message.method in methods.STATELESS:
            envelope = open_envelope(message, None)
            return common(
                revision=envelope.revision,
                level=envelope.level,
                progress_token=envelope.progress_token,
                capabilities=envelope.capabilities,
            )
        if message.method == "initialize":
            return None
        if self._session is None:
            raise InvalidRequest("initialize first, or say the revision in each request's _meta (2026-07-28)")
        session = self._session
        token = meta_of(message).progress_token if methods.holds(message, self._services) else UNSET
        return common(revision=session.revision, session=session, level=session.level, progress_token=token)

    async def _initialize(self, message: Message, nursery: trio.Nursery) -> None:
        try:
            if self._session is not None:
                raise InvalidRequest("this connection is initialized already")
            asked = params_of(mcp.InitializeParams, message).protocol_version
            self._session = self._mcp_sessions.open(self._principal, negotiate(asked, "http"))
        except OublietteError as error:
            return self._refuse(message.id, error)
        # It counts as its owner's presence before the peer hears that it may go on.
        await nursery.start(self._deliver, self._session)
        result = mcp_results.initialize_result(self._session.revision, SERVER, INSTRUCTIONS)
        self._socket.put(encode_result(message.id, result))

    def _notified(self, message: Message) -> None:
        if message.method != "notifications/cancelled":
            return
        try:
            id = Message(raw_id=params_of(mcp.CancelledParams, message).request_id).id
        except InvalidParams:
            return
        if (scope := self._running.pop(id, None)) is not None:
            scope.cancel(reason="the client cancelled the request")

    def _refuse(self, id: bytes, error: OublietteError) -> None:
        self._socket.put(encode_error(id, errors.as_jsonrpc(error)))

    # Requests that may wait

    def _start(self, exchange: Exchange, message: Message, nursery: trio.Nursery) -> None:
        if exchange.id in self._running:
            return self._refuse(b"null", InvalidRequest(f"the id {exchange.id.decode()} is still in use"))
        if len(self._running) >= MAX_RUNNING:
            return self._refuse(exchange.id, LimitExceeded(f"{MAX_RUNNING} requests are under way already"))
        self._running[exchange.id] = scope = trio.CancelScope()
        nursery.start_soon(self._run, exchange, message, scope)

    async def _run(self, exchange: Exchange, message: Message, scope: trio.CancelScope) -> None:
        """MCP: a request that was cancelled is not answered."""
        with scope:
            answer = await (held if methods.holds(message, self._services) else methods).answer(exchange, message)
            self._socket.put(answer.text)
        # A cancelled id is free at once, so it may be another request's by now.
        if self._running.get(exchange.id) is scope:
            del self._running[exchange.id]
        await self.send()
        self._answered.set()

    # Events

    async def _deliver(
        self, session: McpSession, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Writes what the MCP session covers, and what has changed, until the daemon stops."""
        async with session.open_stream(None, 0) as stream, trio.open_nursery() as nursery:
            nursery.start_soon(subscriptions.tell, session.watch, self)
            task_status.started()
            try:
                while batch := await stream.batch():
                    self._put(as_notification(entry.data) for entry in batch)
                    await self._socket.flush()
            except FellBehindError:
                await self._socket.close(TRY_AGAIN_LATER, "the events were not read as fast as they came")
            nursery.cancel_scope.cancel(reason="the stream has ended")
        self._delivered.set()
