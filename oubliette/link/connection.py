"""One link: reads requests, runs each in a task of its own, and tells the client what is new (WIRE section 1).

Three kinds of task, in two nested nurseries: the reader and the running requests in the inner one, the teller of news
in the outer one. When the client goes, the inner nursery is cancelled and its requests end as `agent_gone`. When the
session ends, the reader stops, and what the daemon itself was asked for: a caller's tools have their outcomes already.
All of them write their answers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
import trio

from oubliette import errors
from oubliette.errors import Forbidden, InvalidRequest, MethodNotFound, OublietteError, RequestCancelled
from oubliette.link.methods import METHODS, DaemonMethods, Work, decode_params
from oubliette.log import span
from oubliette.outbox import Outbox
from oubliette.protocol import link
from oubliette.protocol.jsonrpc import MalformedError, Message, decode, encode_error, encode_result
from oubliette.protocol.lines import CLOSED, ENVELOPE_ALLOWANCE, NEED_DATA, OVERSIZED, LineReader
from oubliette.receiving import receive
from oubliette.relay import QUOTED, Pending, Progress
from oubliette.session import Session

_CHUNK: Final = 64 * 1024
# A client that takes longer over a write is not reading: its link is closed rather than its answers kept.
WRITE_SECONDS: Final = 10.0
WRITE_RATE: Final = 1024 * 1024

_caller_tool_decoder: Final = msgspec.json.Decoder(link.CallerToolParams)
_cancelled_decoder: Final = msgspec.json.Decoder(link.CancelledParams)


class Connection:
    """One client of `session` on `stream`; `max_message_bytes` bounds a payload, `daemon` answers for the daemon."""

    def __init__(
        self, session: Session, stream: trio.abc.Stream, max_message_bytes: int, daemon: DaemonMethods
    ) -> None:
        self._session = session
        self._stream = stream
        self._daemon = daemon
        self._lines = LineReader(max_message_bytes + ENVELOPE_ALLOWANCE)
        self._reading = trio.CancelScope()
        self._outbox = Outbox(stream, seconds=WRITE_SECONDS, rate=WRITE_RATE)
        # What a cancellation by the client does, by id.
        self._running: dict[bytes, Callable[[], None]] = {}
        self._asked_of_daemon: set[trio.CancelScope] = set()
        # What to tell: the newest state only, so that a slow client costs no memory.
        self._news = trio.Event()
        self._config_due = False
        self._packs_due = False
        self._packs_told = b""
        self._progress: dict[bytes, Progress] = {}
        self._is_first_line = True
        self._methods: dict[str, Callable[[Message, trio.Nursery], None]] = {
            "caller_tool": self._caller_tool,
            **dict.fromkeys(METHODS, self._ask_daemon),
        }

    async def run(self) -> None:
        """Serves the client until it goes, or until `finish` and the last answer."""
        self._session.on_declared.append(self._declared)
        self._daemon.packs.watchers.add(self._packs_changed)
        try:
            await self._send(self._config())
            await self._send(self._packs_config())
            async with trio.open_nursery() as connection:
                connection.start_soon(self._tell)
                async with trio.open_nursery() as requests:
                    with self._reading:
                        await self._read(requests)
                        requests.cancel_scope.cancel(reason="the client has gone")
                connection.cancel_scope.cancel(reason="nothing is left to tell")
        except* (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            pass  # the client went while it was written to; its requests have ended with their tasks
        finally:
            self._session.on_declared.remove(self._declared)
            self._daemon.packs.watchers.discard(self._packs_changed)

    def finish(self) -> None:
        """Reads no more: the connection ends with the answers of what is running."""
        self._reading.cancel(reason="the session is ending")
        for asked in self._asked_of_daemon:
            asked.cancel(reason="the session is ending")

    async def _read(self, requests: trio.Nursery) -> None:
        while True:
            line = self._lines.next_event()
            if line is NEED_DATA:
                self._lines.receive_data(await receive(self._stream, _CHUNK))
            elif line is CLOSED:
                return
            elif line is OVERSIZED:
                await self._refuse(b"", InvalidRequest("the line is longer than relay.max_message_bytes allows"))
            elif isinstance(line, bytes) and not await self._take_line(line, requests):
                return

    async def _take_line(self, line: bytes, requests: trio.Nursery) -> bool:
        """Takes one line; returns False when it is the last one that will be read."""
        is_first, self._is_first_line = self._is_first_line, False
        if is_first and line.startswith(link.GREETING):
            return await self._greet(line)
        try:
            self._take_message(decode(line), requests)
        except MalformedError as error:
            kind = errors.ParseError if error.code == errors.ParseError.code else InvalidRequest
            await self._refuse(error.id, kind(str(error)))
        except _RefusedError as refused:
            await self._refuse(refused.id, refused.error)
        return True

    async def _greet(self, line: bytes) -> bool:
        """Older clients name the project. It proves nothing, so it may only agree with the socket that they opened."""
        project_id = line[len(link.GREETING) :].decode(errors="replace").strip()
        if project_id == self._session.project_id:
            return True
        await self._refuse(b"", Forbidden(f"this socket belongs to another project than {project_id[:QUOTED]!r}"))
        return False

    def _take_message(self, message: Message, requests: trio.Nursery) -> None:
        if message.method.startswith("notifications/"):
            return self._notified(message)
        try:
            handler = self._methods.get(message.method)
            if message.is_response:
                raise InvalidRequest("no method")
            if handler is None:
                raise MethodNotFound(f"unknown method {message.method[:QUOTED]!r}")
            if message.id in self._running:
                raise InvalidRequest(f"the id {message.id.decode()} is still in use on this link")
            handler(message, requests)
        except OublietteError as error:
            raise _RefusedError(message.id, error) from None

    def _caller_tool(self, message: Message, requests: trio.Nursery) -> None:
        params = decode_params(_caller_tool_decoder, message)
        arguments = link.EMPTY_OBJECT if bytes(params.arguments) == b"null" else params.arguments
        pending = self._session.relay.begin(params.tool, arguments, partial(self._progressed, message.id))
        self._note_running(message.id, partial(self._session.relay.cancel, pending))
        requests.start_soon(self._answer, message.id, pending)

    async def _answer(self, id: bytes, pending: Pending) -> None:
        try:
            with span("caller_tool", tool=pending.tool.name, request_id=pending.request_id):
                answer = encode_result(id, await self._session.relay.outcome(pending))
        except OublietteError as error:
            answer = encode_error(id, errors.as_jsonrpc(error))
        finally:
            self._running.pop(id, None)
            self._progress.pop(id, None)
        await self._send(answer)

    def _ask_daemon(self, message: Message, requests: trio.Nursery) -> None:
        work = self._daemon.begin(message, partial(self._reported, message.id))
        scope = trio.CancelScope()
        self._asked_of_daemon.add(scope)
        self._note_running(message.id, scope.cancel)
        requests.start_soon(self._answer_for_daemon, message.id, work, scope)

    async def _answer_for_daemon(self, id: bytes, work: Work, scope: trio.CancelScope) -> None:
        try:
            answer = await _response(id, work, scope)
            self._running.pop(id, None)
            self._progress.pop(id, None)
            await self._send(answer)
        finally:
            self._asked_of_daemon.discard(scope)
            self._daemon.end()

    def _note_running(self, id: bytes, cancel: Callable[[], None]) -> None:
        # Without an id a request cannot be cancelled, nor can its id be in use.
        if id not in (b"", b"null"):
            self._running[id] = cancel

    def _notified(self, message: Message) -> None:
        """Takes a notification; one that is unknown or names what has ended is ignored (JSON-RPC 2.0, section 4.1)."""
        if message.method != "notifications/cancelled":
            return
        try:
            id = Message(raw_id=_cancelled_decoder.decode(message.params).request_id).id
        except msgspec.MsgspecError:
            return
        cancel = self._running.get(id)
        if cancel is not None:
            cancel()

    def _declared(self) -> None:
        self._config_due = True
        self._news.set()

    def _packs_changed(self) -> None:
        self._packs_due = True
        self._news.set()

    def _reported(self, id: bytes, done: float, total: float | None, message: str | None) -> None:
        self._progressed(id, Progress(progress=done, total=total, message=message))

    def _progressed(self, id: bytes, progress: Progress) -> None:
        if id in self._running:
            self._progress[id] = progress
            self._news.set()

    async def _tell(self) -> None:
        while True:
            await self._news.wait()
            self._news = trio.Event()
            # One at a time: what has been answered by the time that it comes to be sent is no news.
            while line := self._next_news():
                await self._send(line)

    def _next_news(self) -> bytes:
        if self._config_due:
            self._config_due = False
            return self._config()
        if self._packs_due:
            self._packs_due = False
            if line := self._new_packs_config():
                return line
        if self._progress:
            id, report = self._progress.popitem()
            return link.progress(id, report.progress, report.total, report.message)
        return b""

    def _config(self) -> bytes:
        declaration = self._session.declaration
        if declaration is None:
            return link.caller_tools_config(None, [])
        return link.caller_tools_config(declaration.caller_id, [tool.source for tool in declaration.tools.values()])

    def _packs_config(self) -> bytes:
        self._packs_told = self._daemon.session_packs.config
        return self._packs_told

    def _new_packs_config(self) -> bytes:
        """What is offered, empty where that is what the client was told last: others' packs change too."""
        told = self._packs_told
        return b"" if self._packs_config() == told else self._packs_told

    async def _refuse(self, id: bytes, error: OublietteError) -> None:
        await self._send(encode_error(id, errors.as_jsonrpc(error)))

    async def _send(self, line: bytes) -> None:
        await self._outbox.send(line + b"\n")


async def _response(id: bytes, work: Work, scope: trio.CancelScope) -> bytes:
    with scope:
        try:
            return encode_result(id, await work())
        except OublietteError as error:
            return encode_error(id, errors.as_jsonrpc(error))
    # WIRE section 1: "Whatever is pending when its session ends or the daemon stops is answered with -32800".
    return encode_error(id, errors.as_jsonrpc(RequestCancelled("the request was cancelled before it had ended")))


class _RefusedError(Exception):
    """A request that is answered with an error at once."""

    def __init__(self, id: bytes, error: OublietteError) -> None:
        super().__init__(str(error))
        self.id = id
        self.error = error
