"""The link to the daemon: one connection at a time, made anew while the agent lives (WIRE section 1).

A request belongs to the connection that it was sent on. When that one ends, its requests end with it, at once and in
words: nothing is ever sent twice, since the tool may have run.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Final, NoReturn

import trio

from oubliette.protocol.lines import CLOSED
from oubliette.protocol.members import NotJSONError, members
from oubliette.protocol.nesting import too_deep
from oubliette_client import messages, source
from oubliette_client.stdio import leaf, note
from oubliette_client.streams import MAX_LINE_BYTES, LineStream, Outbox

# The daemon makes the socket before it starts the agent, so this is for slow mounts.
START_SECONDS: Final = 10.0
FIRST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 5.0
# At start an agent waits for its list of tools, and gives up after 5 s (ARCHITECTURE, traps).
LONGEST_START_PAUSE_SECONDS: Final = 0.5
# As much as the agent may have under way (requests.MAX_RUNNING_CHARACTERS): more than that is only there when a daemon
# that reads nothing meets an agent that cancels and calls again.
MAX_UNSENT_BYTES: Final = 32 * 1024 * 1024
# HAZARDS F14: calls fail within 1 s of the daemon's death.
LAST_WORDS_SECONDS: Final = 0.5

LOST: Final = (
    "The connection to Oubliette was lost while this call was under way. Outcome unknown: the tool may or may not have "
    "run. Do not simply call it again; check first whether it took effect."
)
NOT_CONNECTED: Final = (
    "There is no connection to Oubliette at the moment. The request was not sent and the tool has not run: it is safe "
    "to call it again in a few seconds."
)
TOO_BUSY: Final = (
    "Oubliette takes no more requests at the moment. The request was not sent and the tool has not run: it is safe to "
    "call it again in a few seconds."
)
TOO_LONG: Final = f"The arguments are too long: a request must not exceed {MAX_LINE_BYTES} bytes. The tool has not run."
NO_REASON: Final = "Oubliette refused the call without saying why."

Report = Callable[[dict[str, str]], None]
OnConfig = Callable[[str, str], None]
Room = Callable[[], Awaitable[None]]
Connect = Callable[[str], Awaitable[trio.abc.Stream]]


class SocketUnavailableError(Exception):
    """The socket could not be opened within `START_SECONDS` of the start."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How a request ended: with the source text of a result, or with an error in words for the agent.

    `is_lost`: there was no connection, or none any more, before the daemon's answer was there.
    """

    result: str | None = None
    error: str = NO_REASON
    is_lost: bool = False


@dataclass(slots=True)
class _Pending:
    """A request that the daemon has not answered. `report` is None once the agent has cancelled it."""

    size: int
    report: Report | None
    answer: Answer | None = None
    ended: trio.Event = field(default_factory=trio.Event)

    def end(self, answer: Answer) -> None:
        self.answer = answer
        self.ended.set()


class Connection:
    """One connection, from its first line to its last."""

    def __init__(self, stream: trio.abc.Stream, on_config: OnConfig, room: Room) -> None:
        self._stream = stream
        self._on_config = on_config
        self._room = room
        self._outbox = Outbox(MAX_UNSENT_BYTES)
        self._ids = count(1)
        self.agent_has_gone = False
        self._pending: dict[str, _Pending] = {}

    async def run(self) -> str:
        """Serves until the connection ends, and ends what is pending on it. Returns in words why it ended."""
        why = "it broke"
        try:
            async with self._stream, trio.open_nursery() as nursery:
                nursery.start_soon(self._write, nursery.cancel_scope)
                why = await self._read()
                nursery.cancel_scope.cancel()
        finally:
            for pending in self._pending.values():
                pending.end(Answer(error=LOST, is_lost=True))
        return why

    async def request(self, method: str, params: str, report: Report) -> Answer:
        """Sends a request and waits for its end; `report` is called with what the caller reports meanwhile.

        Cancelling this tells the daemon (`notifications/cancelled`). It has no deadline of its own: the daemon's ends
        the call (FIELD section 2, defect 1).
        """
        id = str(next(self._ids))
        line = source.encode(messages.request(id, method, params))
        if len(line) > MAX_LINE_BYTES:
            return Answer(error=TOO_LONG)
        if self._outbox.full:
            return Answer(error=TOO_BUSY)
        self._outbox.put(line)
        return await self._ending(id, _Pending(len(line), report))

    async def _ending(self, id: str, pending: _Pending) -> Answer:
        self._pending[id] = pending
        try:
            await pending.ended.wait()
        finally:
            if pending.answer is None:
                # It stays pending until the daemon says that it has ended it, so that `_unread` knows of it.
                pending.report = None
                if not self.agent_has_gone:
                    self._outbox.put(_cancelled(id))
        return pending.answer or Answer(error=LOST, is_lost=True)

    async def _write(self, scope: trio.CancelScope) -> None:
        await self._outbox.run(self._stream)
        # A daemon that takes nothing any more may have answered before it went: what it said is still to be read.
        scope.deadline = trio.current_time() + LAST_WORDS_SECONDS

    async def _read(self) -> str:
        lines = LineStream(self._stream)
        while isinstance(event := await lines.receive(), bytes):
            try:
                found = _members_untrusted(event)
            except ValueError as error:
                # Whose answer this was is unknown, and that call would wait for ever.
                return f"a line that is no message: {error}"
            self._receive(found)
            await self._room()
        return "it was closed" if event is CLOSED else f"a line of more than {MAX_LINE_BYTES} bytes"

    def _receive(self, found: dict[str, str]) -> None:
        kind = source.string(found.get("type"))
        if kind is not None:
            self._on_config(kind, found.get("params", "{}"))
        elif source.string(found.get("method")) == "notifications/progress":
            self._report(source.fields(found.get("params")))
        elif "result" in found or "error" in found:
            self._settle(found)

    def _report(self, progress: dict[str, str]) -> None:
        pending = self._pending.get(progress.get("request", ""))
        if pending is not None and pending.report is not None:
            pending.report(progress)

    def _settle(self, found: dict[str, str]) -> None:
        answer, id = _answer(found), found.get("id", messages.NULL)
        if id == messages.NULL and answer.result is None:
            id = self._unread()
        pending = self._pending.pop(id, None)
        if pending is not None:
            pending.end(answer)

    def _unread(self) -> str:
        """The id of the request that an error without id is about.

        Every line of ours is sound JSON, so only its length can have kept the daemon from reading its id, and
        `relay.max_message_bytes` may be below our bound. If one of them was too long, the longest was.
        """
        return max(self._pending, key=lambda id: self._pending[id].size, default=messages.NULL)


async def open_socket(path: str) -> trio.SocketStream:
    """Returns a connection to the unix socket at `path`. Raises `OSError`."""
    stream = await trio.open_unix_socket(path)
    try:
        # A full backlog refuses a non-blocking connect() with EAGAIN (connect(2)), which trio takes for "under way".
        stream.socket.getpeername()
    except OSError:
        await stream.aclose()
        raise
    return stream


class Link:
    """The way to the daemon, whichever connection is up.

    `on_config` takes the type and the params, source text, of each notification that says what there is; `room` is
    awaited before each further line of the daemon; `connect` opens `path` or raises `OSError`.
    """

    def __init__(self, path: str, on_config: OnConfig, room: Room, connect: Connect = open_socket) -> None:
        self._path = path
        self._on_config = on_config
        self._room = room
        self._connect = connect
        self._connection: Connection | None = None
        self._up = trio.Event()

    @property
    def connected(self) -> bool:
        """Says whether a request can be sent."""
        return self._connection is not None

    async def run(self) -> NoReturn:
        """Keeps a connection up until cancelled. Raises `SocketUnavailableError` where there never was one."""
        stream = await self._first()
        pauses = Pauses(LONGEST_PAUSE_SECONDS)
        while True:
            began = trio.current_time()
            why = await self._serve(stream)
            note(f"the connection to Oubliette is lost, {why}; trying again")
            # A connection that held was a good one; a daemon that ends each at once is asked ever less often.
            if trio.current_time() - began >= LONGEST_PAUSE_SECONDS:
                pauses = Pauses(LONGEST_PAUSE_SECONDS)
            stream = await self._again(pauses)
            note("connected to Oubliette again")

    async def up(self) -> None:
        """Waits until a request can be sent."""
        await self._up.wait()

    async def request(self, method: str, params: str, report: Report) -> Answer:
        """Sends a request, waits for its end and returns how it ended. See `Connection.request`."""
        if self._connection is None:
            return Answer(error=NOT_CONNECTED, is_lost=True)
        return await self._connection.request(method, params, report)

    def leave(self) -> None:
        """Says that the agent has gone: what it asked for ends with the connection, and is not called cancelled."""
        if self._connection is not None:
            self._connection.agent_has_gone = True

    async def _serve(self, stream: trio.abc.Stream) -> str:
        self._connection = Connection(stream, self._on_config, self._room)
        self._up.set()
        try:
            return await self._connection.run()
        except Exception as failure:
            # A mistake of ours with one line must not end the client (HAZARDS T31).
            return f"internal error, {type(leaf(failure)).__name__}"
        finally:
            self._connection = None
            self._up = trio.Event()

    async def _first(self) -> trio.abc.Stream:
        pauses, why = Pauses(LONGEST_START_PAUSE_SECONDS), "no answer"
        with trio.move_on_after(START_SECONDS):
            while True:
                try:
                    return await self._connect(self._path)
                except OSError as error:
                    why = error.strerror or str(error)
                await trio.sleep(pauses.next())
        raise SocketUnavailableError(f"cannot open the socket {self._path} within {START_SECONDS:g} s: {why}")

    async def _again(self, pauses: Pauses) -> trio.abc.Stream:
        while True:
            await trio.sleep(pauses.next())
            try:
                return await self._connect(self._path)
            except OSError:
                continue


class Pauses:
    """The pauses between attempts: doubling from `FIRST_PAUSE_SECONDS` to `longest` seconds, each with jitter."""

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._ceiling = FIRST_PAUSE_SECONDS

    def next(self) -> float:
        """Returns the next pause in seconds. Jitter keeps the clients of a restarted daemon from coming all at once."""
        ceiling = self._ceiling
        self._ceiling = min(ceiling * 2, self._longest)
        return random.uniform(ceiling / 2, ceiling)  # noqa: S311 - spreads load, keeps no secret


def _members_untrusted(line: bytes) -> dict[str, str]:
    """Raises `ValueError` alone."""
    if too_deep(line):
        raise NotJSONError("nested too deep")
    return members(line.decode())


def _cancelled(id: str) -> bytes:
    return source.encode(messages.notification("notifications/cancelled", f'{{"requestId":{id}}}'))


def _answer(found: dict[str, str]) -> Answer:
    if found.get("error", messages.NULL) == messages.NULL:
        return Answer(result=found.get("result", messages.NULL))
    return Answer(error=source.string(source.fields(found["error"]).get("message")) or NO_REASON)
