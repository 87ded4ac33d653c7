"""Bytes between a sandbox and an upstream that it may reach: as they are (CONNECT), or as one exchange of HTTP.

Nothing is read before what was read last is written, so a direction never holds more than one read. An agent that goes
ends everything, by an exception; an upstream that takes no more may still say why.
"""

from __future__ import annotations

from typing import Final

import h11
import trio

from oubliette.link.proxy import passed_on, refusal
from oubliette.receiving import receive

# The most that a direction holds.
CHUNK: Final = 64 * 1024
# How long both directions may be silent, in seconds. A model may think before its first byte: the SDKs of the providers
# give it 10 minutes.
IDLE_SECONDS: Final = 1800.0
# The same once the upstream has ended: only an agent that is slow to close is still there, and it holds a place.
LINGER_SECONDS: Final = 30.0
# What the head of a response may take: cookies and reports of rate limits, and room.
MAX_RESPONSE_HEAD: Final = 64 * 1024


class PeerGoneError(Exception):
    """One end of a connection has gone."""


class AgentGoneError(PeerGoneError):
    """The agent's."""


class UpstreamGoneError(PeerGoneError):
    """The upstream's."""


class Idle:
    """How long a connection may be silent: `scope`, in which it lives, ends with that."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self._seconds = IDLE_SECONDS

    def heard(self) -> None:
        """Something came or went."""
        self.scope.deadline = trio.current_time() + self._seconds

    def hurry(self) -> None:
        """Nothing more comes from the upstream."""
        self._seconds = LINGER_SECONDS
        self.heard()


class End:
    """One end of a connection. `idle` is told of all that passes it; `gone` is raised where the peer has gone."""

    def __init__(self, stream: trio.abc.HalfCloseableStream, idle: Idle, gone: type[PeerGoneError]) -> None:
        self._stream = stream
        self._idle = idle
        self._gone = gone

    async def receive(self, most: int = CHUNK) -> bytes:
        """Returns what has come, nothing at the end."""
        try:
            data = await receive(self._stream, most)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise self._gone from None
        self._idle.heard()
        return data

    async def send(self, data: bytes) -> None:
        """Sends data; nothing stands for the end."""
        try:
            await (self._stream.send_all(data) if data else self._stream.send_eof())
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise self._gone from None
        self._idle.heard()


async def tunnel(agent: End, upstream: End, idle: Idle, early: bytes) -> None:
    """Carries bytes until both directions have ended; `early` is what was read of the agent already.

    Raises a group with `AgentGoneError` where the agent goes.
    """
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_send_out, agent, upstream, early)
        try:
            await _pass(upstream, agent)
        except UpstreamGoneError:
            nursery.cancel_scope.cancel()
        idle.hurry()


async def _send_out(agent: End, upstream: End, early: bytes) -> None:
    try:
        if early:
            await upstream.send(early)
        await _pass(agent, upstream)
    except UpstreamGoneError:
        return  # what it still says may be the reason


async def _pass(source: End, sink: End) -> None:
    data = await source.receive()
    while data:
        await sink.send(data)
        data = await source.receive()
    await sink.send(b"")


class Exchange:
    """One request of an agent and its response. `towards_agent` has read the request's head off `agent`.

    Nothing that the agent sends behind its request goes anywhere: a second one might be meant for another host.
    """

    def __init__(self, towards_agent: h11.Connection, agent: End, upstream: End) -> None:
        self._towards_agent = towards_agent
        self._agent = agent
        self._towards_upstream = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_RESPONSE_HEAD)
        self._upstream = upstream

    async def run(self, head: h11.Request) -> None:
        """Sends `head`, the request as the upstream is to see it, and brings the response. Raises as `tunnel` does."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_request, head)
            try:
                await self._bring_response()
            except (UpstreamGoneError, h11.RemoteProtocolError):
                await self._excuse()
            nursery.cancel_scope.cancel()

    async def _send_request(self, head: h11.Request) -> None:
        try:
            await self._to_upstream(head)
            while isinstance(event := await _next(self._towards_agent, self._agent), h11.Data):
                await self._to_upstream(event)
            await self._to_upstream(h11.EndOfMessage())
            while await self._agent.receive():
                pass
            await self._upstream.send(b"")
        except UpstreamGoneError:
            return  # what it still says may be the reason
        except h11.RemoteProtocolError:  # the body is not what the head said
            raise AgentGoneError from None

    async def _bring_response(self) -> None:
        event: h11.Event | None = None
        while not isinstance(event, h11.EndOfMessage):
            event = await _next(self._towards_upstream, self._upstream)
            if isinstance(event, h11.Response):
                await self._to_agent(passed_on(event))
            elif isinstance(event, h11.Data):
                await self._to_agent(event)
            elif isinstance(event, h11.InformationalResponse) and self._towards_agent.their_http_version != b"1.0":
                # RFC 9110, section 15.2: none "to an HTTP/1.0 client"
                await self._to_agent(event)
        await self._to_agent(h11.EndOfMessage())

    async def _excuse(self) -> None:
        """Where a part of the response is out, that it breaks off is all that can be said."""
        if self._towards_agent.our_state is h11.SEND_RESPONSE:
            await self._agent.send(refusal(502, "the upstream closed the connection, or what it said is not HTTP"))

    async def _to_upstream(self, event: h11.Event) -> None:
        if data := self._towards_upstream.send(event):
            await self._upstream.send(data)

    async def _to_agent(self, event: h11.Event) -> None:
        if data := self._towards_agent.send(event):
            await self._agent.send(data)


async def _next(protocol: h11.Connection, end: End) -> h11.Event:
    """Returns the next event. Raises `h11.RemoteProtocolError`, and as `end.receive`."""
    while (event := protocol.next_event()) is h11.NEED_DATA:
        protocol.receive_data(await end.receive())
    assert not isinstance(event, type)  # PAUSED comes behind the end of a message alone, which nobody asks past
    return event
