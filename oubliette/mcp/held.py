"""Answers that are long in coming: the events and the progress that the peer is sent meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Self

import trio
from msgspec import UNSET

from oubliette.errors import LimitExceeded
from oubliette.events import FellBehindError
from oubliette.following import Following
from oubliette.mcp import methods
from oubliette.mcp.exchange import Channel, Exchange
from oubliette.mcp.methods import Answer
from oubliette.protocol.events import as_notification
from oubliette.protocol.jsonrpc import Message
from oubliette.protocol.mcp import delivers_events
from oubliette.session import Session
from oubliette.streams import Stream

# WIRE section 1 has the client send progress "at least every 10 s": what keeps an agent's timer from ending a healthy
# call keeps a caller's too.
PROGRESS_EVERY: Final = 10.0


async def answer(exchange: Exchange, message: Message) -> Answer:
    """Returns the response to a request; what belongs to it goes through its channel before that."""
    if exchange.level is None or not exchange.revision.stateless or not delivers_events(exchange.level):
        return await _answer(exchange, message, None)
    with Delivery.open(exchange) as delivery:
        exchange.follower = delivery
        return await _answer(exchange, message, delivery)


async def _answer(exchange: Exchange, message: Message, delivery: Delivery | None) -> Answer:
    answers: list[Answer] = []
    is_there = trio.Event()
    async with trio.open_nursery() as nursery:
        if exchange.progress_token is not UNSET:
            nursery.start_soon(_report_waiting, exchange, is_there)
        if delivery is not None:
            nursery.start_soon(delivery.run, nursery.cancel_scope)
        answers.append(await methods.answer(exchange, message))
        # Both then end by themselves: a write that is cancelled takes the connection with it, and the answer too.
        is_there.set()
        if delivery is not None:
            delivery.end_when_read()
    if delivery is not None and delivery.fell_behind:
        return methods.refuse(exchange.id, LimitExceeded(_FELL_BEHIND), exchange.revision)
    return answers[0]


_FELL_BEHIND: Final = "the events were not read as fast as they came; go on with session_events and since_index"


async def _report_waiting(exchange: Exchange, is_there: trio.Event) -> None:
    """Says how long the request has waited, until its answer is there or its tool reports something better."""
    begun = trio.current_time()
    while True:
        with trio.move_on_after(PROGRESS_EVERY):
            await is_there.wait()
        if is_there.is_set() or exchange.has_reported:
            return
        await exchange.send_progress(round(trio.current_time() - begun), None, "waiting")


class Delivery:
    """The events that a request follows, on its own response stream (WIRE section 4.1, revision 2026-07-28).

    While it is open it counts as a stream of its principal; leaving it ends the following, never a session.
    """

    def __init__(self, channel: Channel, stream: Stream, following: Following) -> None:
        self.fell_behind = False
        self._channel = channel
        self._stream = stream
        self._following = following
        self._over = trio.Event()

    @classmethod
    @contextmanager
    def open(cls, exchange: Exchange) -> Iterator[Self]:
        """Opens the stream of a request for the length of the block; the daemon finishes it when it stops."""
        services, owner = exchange.services, exchange.principal.token_id
        stream = Stream(owner, services.events).stay_open()
        with stream, Following(stream, services.sessions, owner) as following:
            services.standing.add(stream)
            try:
                yield cls(exchange.channel, stream, following)
            finally:
                services.standing.discard(stream)

    def family(self, root: Session, after: int | None) -> None:
        """Delivers the events of a session and its descendants."""
        self._stream.cover(root, after)
        self._following.descendants(root)

    async def everything(self) -> None:
        """Delivers the events of every session of the principal; returns when the daemon stops."""
        self._following.everything()
        await self._over.wait()

    async def run(self, scope: trio.CancelScope) -> None:
        """Writes events until `end_when_read` has been reached; cancels `scope` where the peer does not keep up."""
        try:
            while batch := await self._stream.batch():
                await self._channel.send(*[as_notification(entry.data) for entry in batch])
        except FellBehindError:
            self.fell_behind = True
            scope.cancel(reason="the peer fell behind")
        finally:
            self._over.set()

    def end_when_read(self) -> None:
        """Makes `run` return when all that has happened was written."""
        self._stream.end_when_read()
