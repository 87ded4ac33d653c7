"""What a proxied MCP server is to the rest of the package: a configuration, a connection, and the end of it.

Nothing here knows the official SDK: it takes a second to import, and supervision is tested without it. `sdk.connect`
is what fills these seams in earnest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol

import trio
from msgspec import Struct

from oubliette.upstreams.text import clean

# A server's own words within a message of ours: a sentence or two.
MAX_WORDS: Final = 500
# Calls under way at one server. More would only wait for each other there; each may hold a result of 4 MiB here.
MAX_IN_FLIGHT: Final = 64


class ServerConfig(Protocol):
    """One server of the configuration's `servers` (WIRE section 9), with its `${VAR}`s replaced.

    Either `command` (with `args` and `env`) is not empty, or `url` (with `headers`). `timeout_seconds` is how long one
    call may take. Two are equal where nothing differs.
    """

    @property
    def command(self) -> str | None: ...
    @property
    def args(self) -> tuple[str, ...]: ...
    @property
    def env(self) -> Mapping[str, str]: ...
    @property
    def url(self) -> str | None: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def timeout_seconds(self) -> float: ...


# What a server reports of a call under way: how much is done, of how much, and a sentence about it.
ProgressListener = Callable[[float, float | None, str | None], None]


class RemoteError(Exception):
    """What the server did wrong, or refused, in words; `code` is that of its JSON-RPC error, where it sent one."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(clean(message, MAX_WORDS))
        self.code = code


class LostError(RemoteError):
    """The connection ended before the answer came."""


class Fate:
    """Why a connection ended. The first reason counts: what follows is only its consequence."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._ended = trio.Event()

    def end(self, reason: str) -> None:
        """Says that the connection is over. `reason` continues "server 'x' is not connected: "."""
        if self.reason is None:
            self.reason = clean(reason, MAX_WORDS)
            self._ended.set()

    async def wait(self) -> str:
        """Waits for the end and returns the reason."""
        await self._ended.wait()
        assert self.reason is not None
        return self.reason


class Page(Struct, frozen=True, kw_only=True):
    """One page of a server's `tools/list`, as it came: `tools` may hold anything that JSON can say.

    `refused` are tools that the SDK may not use, by name, and why.
    """

    tools: list[Any]
    next_cursor: str | None = None
    refused: Mapping[str, str] = {}


class Connection(Protocol):
    """A server with which a session is agreed. Its methods may be called by several tasks at once.

    `began_with_handshake` says whether that took `initialize`, as the revisions before 2026-07-28 do.
    """

    @property
    def began_with_handshake(self) -> bool: ...

    async def list_tools(self, cursor: str | None) -> Page:
        """Returns the first page of its tools, or the one at `cursor`. Raises RemoteError."""
        ...

    async def call(self, tool: str, arguments: bytes, on_progress: ProgressListener) -> bytes:
        """Calls a tool with arguments, a JSON object on one line; returns its `CallToolResult`, the text as it came.

        Cancelling it tells the server.

        Raises RemoteError, and LostError where the connection ended meanwhile.
        """
        ...


class Attempt(Struct, frozen=True, kw_only=True):
    """One try to connect to a server.

    `fate` is what ends the connection, whoever finds out; `on_list_changed` is called whenever its tools may be others
    than before. `prefers_handshake` asks for `initialize` at once, without `server/discover` before it.
    """

    server: str
    config: ServerConfig
    fate: Fate
    on_list_changed: Callable[[], None]
    prefers_handshake: bool = False


# Entering connects; leaving ends the server's process, or says goodbye to it, in bounded time.
Connect = Callable[[Attempt], AbstractAsyncContextManager[Connection]]
