"""One proxied server: connected, supervised, and connected again, for as long as it is configured.

    run ─ attempt ─ connection ─┬─ keeps the list: reads it anew when it may have changed
          attempt                └─ waits for the fate of the connection
          …

Calls are made by the tasks of those who want them, over the connection that stands at the moment. Every way in which a
connection can end goes through its `Fate`, and nothing that one does reaches further than its attempt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, Literal

import trio
from trio.lowlevel import checkpoint

from oubliette.errors import LimitExceeded, NotFound, ServerDisconnected
from oubliette.log import get as get_logger
from oubliette.log import span
from oubliette.upstreams.backoff import Backoff
from oubliette.upstreams.calls import NOT_RUN, Call, read_arguments
from oubliette.upstreams.connection import (
    MAX_IN_FLIGHT,
    Attempt,
    Connect,
    Connection,
    Fate,
    ProgressListener,
    RemoteError,
    ServerConfig,
)
from oubliette.upstreams.tools import Listing, Sieve, UpstreamTool

# From the first byte to a list that was read, in seconds: a package runner may have to fetch the server first.
START_SECONDS: Final = 60.0
# A whole list, read anew, in seconds.
LIST_SECONDS: Final = 30.0
# A server that tells of a hundred changes a second is asked for its list five times (HAZARDS F31); in seconds.
GATHER: Final = 0.2
# Between two tries to read a list that could not be read, in seconds.
LIST_AGAIN: Final = 5.0
# Pages are as long as the server likes, and it may go on for ever.
MAX_PAGES: Final = 100

log = get_logger(__name__)
Status = Literal["connected", "disconnected"]
# A tool is not what it was: its server, its name, and its fingerprint.
ToolListener = Callable[[str, str, str], None]


class Upstream:
    """A proxied server. `run` must be running for it to be connected; `close` ends that.

    `on_change` is called when its status, its tools or its problems have changed, `on_tool_changed` when a tool is not
    what it was before; both must not raise.
    """

    def __init__(
        self,
        name: str,
        config: ServerConfig,
        connect: Connect,
        *,
        on_change: Callable[[], None],
        on_tool_changed: ToolListener,
        max_result_bytes: int,
    ) -> None:
        self.name = name
        self.config = config
        self._connect = connect
        self._on_change = on_change
        self._on_tool_changed = on_tool_changed
        self._max_result_bytes = max_result_bytes
        self._scope = trio.CancelScope()
        self._up: tuple[Connection, Fate] | None = None
        self._reason = "it is being connected"
        self._listing = Listing()
        self._list_problem = ""
        self._prefers_handshake = False
        self._rose_at: float | None = None
        self._in_flight = 0

    @property
    def status(self) -> Status:
        """`connected` while a session is agreed and its list was read."""
        return "disconnected" if self._up is None else "connected"

    @property
    def tools(self) -> tuple[UpstreamTool, ...]:
        """The last list that was read, also while the server is away."""
        return self._listing.tools

    @property
    def problems(self) -> Mapping[str, str]:
        """What is broken, and why: the server itself by its name, a tool as `server.tool`."""
        own = self._reason if self._up is None else self._list_problem
        tools = {f"{self.name}.{tool}": problem for tool, problem in self._listing.problems.items()}
        return {**({self.name: own} if own else {}), **tools}

    def close(self) -> None:
        """Ends `run`, and with it the connection: the server is configured away."""
        self._scope.cancel()

    async def run(self) -> None:
        """Keeps the server connected until `close`."""
        backoff = Backoff()
        with self._scope, span("upstream", server=self.name):
            while True:
                stood = await self._attempt()
                await trio.sleep(backoff.after(stood))

    async def call(self, tool: str, arguments: bytes, on_progress: ProgressListener) -> bytes:
        """Calls a tool with arguments, JSON text; returns the `CallToolResult` as JSON text.

        Raises NotFound for a tool that the server does not offer, ServerDisconnected, LimitExceeded beyond
        MAX_IN_FLIGHT calls, InvalidParams for arguments that are no JSON object, and what `Call.run` raises. In each
        error `retry_safe` says whether the tool may have run.
        """
        connection, fate = self._admit(tool)
        value = read_arguments(arguments)
        call = Call(self.name, tool, timeout=self.config.timeout_seconds, max_bytes=self._max_result_bytes)
        self._in_flight += 1
        try:
            return await call.run(connection, fate, value, on_progress)
        finally:
            self._in_flight -= 1

    def _admit(self, tool: str) -> tuple[Connection, Fate]:
        if self._up is None:
            message = f"server {self.name!r} is not connected: {self._reason}; {NOT_RUN}"
            raise ServerDisconnected(message, retry_safe=True)
        if all(tool != offered.name for offered in self.tools):
            message = f"server {self.name!r} offers no tool {tool[:64]!r}; {NOT_RUN}"
            raise NotFound(message, field="tool", retry_safe=True)
        if self._in_flight >= MAX_IN_FLIGHT:
            message = f"{MAX_IN_FLIGHT} calls are under way at server {self.name!r} already; {NOT_RUN}"
            raise LimitExceeded(message, retry_safe=True)
        return self._up

    async def _attempt(self) -> float:
        """Connects, and stays connected as long as may be; returns for how many seconds it was."""
        fate, stale = Fate(), _Flag()
        attempt = Attempt(
            server=self.name,
            config=self.config,
            fate=fate,
            on_list_changed=stale.set,
            prefers_handshake=self._prefers_handshake,
        )
        self._rose_at = None
        # Its deadline is the start's, until the start is over.
        starting = trio.CancelScope(deadline=trio.current_time() + START_SECONDS)
        try:
            with starting:
                async with self._connect(attempt) as connection:
                    await self._read_list(connection)
                    starting.deadline = math.inf
                    await self._stay(connection, fate, stale)
        # The boundary with foreign code: whatever it raises, alone or in a group, is the end of this connection and of
        # nothing else.
        except* Exception as failures:
            fate.end(_in_words(failures))
        return self._account_for(fate.reason or f"it was not ready within {START_SECONDS:g} s")

    async def _stay(self, connection: Connection, fate: Fate, stale: _Flag) -> None:
        self._rise(connection, fate)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_list, connection, stale)
                await fate.wait()
                nursery.cancel_scope.cancel()
        finally:
            # Before what is left of the connection is taken down, which may take a while.
            self._fall(fate.reason or "the connection ended")

    async def _keep_list(self, connection: Connection, stale: _Flag) -> None:
        while True:
            await stale.wait()
            await trio.sleep(GATHER)
            stale.clear()
            problem = await self._try_list(connection)
            if problem != self._list_problem:
                self._list_problem = problem
                self._on_change()
            if problem:
                # The last list stays, and calls under way go on.
                await trio.sleep(LIST_AGAIN)
                stale.set()

    async def _try_list(self, connection: Connection) -> str:
        """Reads the list anew; returns why that failed, or nothing."""
        with trio.move_on_after(LIST_SECONDS):
            try:
                await self._read_list(connection)
            except RemoteError as error:
                return f"its list could not be read again: {error}"
            return ""
        return f"its list could not be read again within {LIST_SECONDS:g} s"

    async def _read_list(self, connection: Connection) -> None:
        sieve, cursor = Sieve(self.name), None
        for _ in range(MAX_PAGES):
            page = await connection.list_tools(cursor)
            for tool in page.tools:
                sieve.add(tool)
                await checkpoint()  # a page may hold megabytes
            for tool, problem in page.refused.items():
                sieve.note(tool, f"left out: {problem}")
            cursor = page.next_cursor
            if cursor is None or sieve.is_full:
                break
        else:
            sieve.note("…", f"left out: the list has more than {MAX_PAGES} pages")
        self._adopt(sieve.result())

    def _adopt(self, listing: Listing) -> None:
        before, self._listing = self._listing, listing
        known = {tool.name: tool.fingerprint for tool in before.tools}
        for tool in listing.tools:
            if known.get(tool.name, tool.fingerprint) != tool.fingerprint:
                # HAZARDS T26, "changed mid-session": whoever trusted it trusted something else.
                log.warning("a tool is not what it was", tool=tool.name, sha256=tool.fingerprint)
                self._on_tool_changed(self.name, tool.name, tool.fingerprint)
        if listing != before:
            self._on_change()

    def _rise(self, connection: Connection, fate: Fate) -> None:
        self._up = (connection, fate)
        self._rose_at = trio.current_time()
        self._list_problem = self._reason = ""
        self._prefers_handshake = connection.began_with_handshake
        log.info("connected", tools=len(self.tools), problems=len(self._listing.problems))
        self._on_change()

    def _fall(self, reason: str) -> None:
        self._up, self._reason = None, reason
        self._on_change()

    def _account_for(self, reason: str) -> float:
        """Tells of the end of an attempt; returns how many seconds it stood."""
        if self._rose_at is not None:
            log.warning("connection lost", reason=reason)
            return trio.current_time() - self._rose_at
        if reason != self._reason:
            # A server that stays away is told of once, not with every try.
            log.warning("cannot connect", reason=reason)
            self._fall(reason)
        # Servers are known that end themselves over a first request other than `initialize`.
        self._prefers_handshake = not self._prefers_handshake
        return 0.0


def _in_words(failures: BaseExceptionGroup[Exception]) -> str:
    failure: BaseException = failures
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    if isinstance(failure, RemoteError):
        return str(failure)
    # Its text may quote a header or an argument, which may be a secret: its kind has to do.
    log.debug("a connection failed", exc_info=failure)
    return f"it failed with {type(failure).__name__}"


class _Flag:
    """Set any number of times, taken once."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        self._event = trio.Event()

    async def wait(self) -> None:
        await self._event.wait()
