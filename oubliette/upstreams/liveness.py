"""Whether a server over HTTP still lives.

A process that is killed closes its connections. So where a stream stands (the GET stream of the earlier revisions,
`subscriptions/listen` of 2026-07-28) its end is seen at once, and a look at the port tells whether anybody is left; a
ping, whether it is the one that knows the session. Where no stream stands, the port is looked at every PROBE_EVERY
seconds. A port may be a proxy's, which answers for a server that is gone: then the next call says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from oubliette.upstreams.connection import Fate

# In seconds. The issue asks that a dead server be noticed within one.
PROBE_EVERY: Final = 0.5
# A process that was killed refuses at once; so long takes it to give up on a machine that is gone.
PROBE_SECONDS: Final = 5.0
PING_SECONDS: Final = 5.0
# Where no stream stands that could tell of changes, the list is read anew so often.
POLL_SECONDS: Final = 30.0

# Says whether the server knows the session.
Ping = Callable[[], Awaitable[bool]]


class Liveness:
    """What is known of the server at `host`:`port`. `fate` ends where it is gone."""

    def __init__(self, host: str, port: int, fate: Fate) -> None:
        self._host = host
        self._port = port
        self._fate = fate
        self._doubt = trio.Event()
        self._next_poll = 0.0
        self._stood = False
        # How many streams stand over which the server could say something unasked.
        self.standing = 0

    def doubt(self) -> None:
        """Says that something broke, or was refused."""
        self._doubt.set()

    async def watch(self, ping: Ping | None, poll: Callable[[], None] | None) -> None:
        """Looks after the server until it is cancelled.

        `ping` asks about the session, where there is one. `poll` is called now and then while no stream stands, and
        when one has come to stand: there may be changes that nobody heard of.
        """
        self._next_poll = trio.current_time() + POLL_SECONDS
        while True:
            with trio.move_on_after(PROBE_EVERY):
                await self._doubt.wait()
            in_doubt = self._doubt.is_set()
            self._doubt = trio.Event()
            if in_doubt or not self.standing:
                await self._look_at_port()
            if in_doubt and ping is not None:
                await self._ask(ping)
            self._poll(poll)

    def _poll(self, poll: Callable[[], None] | None) -> None:
        """Where a stream has come to stand, what changed before went unheard."""
        now, stands = trio.current_time(), self.standing > 0
        is_due = not self._stood if stands else now >= self._next_poll
        self._stood = stands
        if stands or is_due:
            self._next_poll = now + POLL_SECONDS
        if is_due and poll is not None:
            poll()

    async def _look_at_port(self) -> None:
        with trio.move_on_after(PROBE_SECONDS):
            try:
                stream = await trio.open_tcp_stream(self._host, self._port)
            except OSError:
                self._fate.end(f"nobody listens at {self._host}:{self._port}")
            else:
                await trio.aclose_forcefully(stream)
            return
        self._fate.end(f"nobody answered at {self._host}:{self._port} for {PROBE_SECONDS:g} s")

    async def _ask(self, ping: Ping) -> None:
        with trio.move_on_after(PING_SECONDS):
            if await ping():
                # The ping itself may have been refused, by a server that has none: that is an answer.
                self._doubt = trio.Event()
            else:
                self._fate.end("it has forgotten the session")
            return
        self._fate.end(f"it did not answer a ping for {PING_SECONDS:g} s")
