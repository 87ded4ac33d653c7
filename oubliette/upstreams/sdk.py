"""The official MCP SDK behind the seam of `connection`. Importing this module takes a second: see `loading`.

    stdio or http ─ JSONRPCDispatcher ─ Tap ─ ClientSession ─ SdkConnection
                    └──────────── of the SDK ───────────┘

The SDK agrees on a revision, matches answers to requests, passes progress and cancellation on, and checks what comes
back. Below it are transports of our own, which are bounded and see the server die. Its `Client` would do no more, and
cannot be given a dispatcher; and that is where `Tap` sits, for what the SDK would not let through as it is.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import mcp_types as types
import msgspec
import trio
from mcp.client import ClientSession
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import RootModel, ValidationError

from oubliette import __version__
from oubliette.upstreams.connection import Attempt, LostError, Page, ProgressListener, RemoteError
from oubliette.upstreams.http import open_http
from oubliette.upstreams.liveness import Liveness
from oubliette.upstreams.messages import CUT_OFF, Ledger
from oubliette.upstreams.stdio import open_stdio
from oubliette.upstreams.tap import ExactCall, Tap

# An answer that was cut off, and the news that the server is gone, come by different ways: so long the second may take,
# in seconds.
NEWS_SECONDS: Final = 1.0
# Between two tries to be told of changes, in seconds.
LISTEN_AGAIN: Final = 1.0
_object: Final = msgspec.json.Decoder(dict[str, Any])

# They log what servers send, and session ids; what is worth telling is told here.
for _name in ("mcp", "client", "httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)


@asynccontextmanager
async def connect(attempt: Attempt) -> AsyncIterator[SdkConnection]:
    """Connects to a server and agrees on a revision with it; see `connection.Connect`."""
    info = types.Implementation(name="oubliette", version=__version__)
    ledger = Ledger()
    async with _open(attempt, ledger) as (dispatcher, liveness):
        tap = Tap(dispatcher, ledger, attempt)
        async with ClientSession(dispatcher=tap, client_info=info, message_handler=tap.hear) as session:
            await _agree(session, attempt)
            connection = SdkConnection(session, tap, attempt, liveness)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connection.listen)
                nursery.start_soon(connection.watch)
                try:
                    yield connection
                finally:
                    connection.is_closing = True
                nursery.cancel_scope.cancel()


class _Any(RootModel[dict[str, Any]]):
    """A result that the SDK has checked already, against the revision that was agreed on."""


class SdkConnection:
    """A session of the SDK, as `connection.Connection`."""

    def __init__(self, session: ClientSession, tap: Tap, attempt: Attempt, liveness: Liveness | None) -> None:
        self._session = session
        self._tap = tap
        self._attempt = attempt
        self._liveness = liveness
        self.is_closing = False
        self.began_with_handshake = session.initialize_result is not None
        self._is_modern = session.protocol_version in MODERN_PROTOCOL_VERSIONS
        capabilities = session.server_capabilities
        self._tools = capabilities.tools if capabilities is not None else None
        tap.revision = session.protocol_version or ""

    async def list_tools(self, cursor: str | None) -> Page:
        """See `connection.Connection`."""
        if self._tools is None:
            return Page(tools=[])
        try:
            result = await self._session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
        except MCPError as error:
            raise await self._told(error) from None
        except ValidationError:
            raise RemoteError("its answer to tools/list is not what MCP says") from None
        refused = self._tap.known - {tool.name for tool in result.tools}
        return Page(
            tools=[tool for tool in self._tap.tools if not (isinstance(tool, dict) and tool.get("name") in refused)],
            next_cursor=result.next_cursor,
            # MCP 2026-07-28: clients must drop a tool whose `x-mcp-header` annotations are not valid.
            refused=dict.fromkeys(sorted(refused), "an x-mcp-header of its inputSchema is not valid"),
        )

    async def call(self, tool: str, arguments: bytes, on_progress: ProgressListener) -> bytes:
        """See `connection.Connection`."""
        call = ExactCall(arguments, on_progress)
        params = types.CallToolRequestParams(name=tool, arguments=_as_sdk_takes(arguments))
        try:
            with call.under_way():
                await self._session.send_request(types.CallToolRequest(params=params), _Any)
        except MCPError as error:
            raise await self._told(error) from None
        except ValidationError:
            raise RemoteError("its answer is no CallToolResult") from None
        return call.result()

    async def listen(self) -> None:
        """MCP 2026-07-28: a server tells of changes to those who listen. Before, it does so unasked."""
        while self._is_modern and self._announces_changes:
            try:
                async with listen(self._session, tools_list_changed=True) as changes:
                    if not changes.honored.tools_list_changed:
                        return
                    # What changed before the server began to tell.
                    self._attempt.on_list_changed()
                    async for _ in changes:
                        self._attempt.on_list_changed()
            except MCPError as error:
                if error.code == types.METHOD_NOT_FOUND:
                    return
            except SubscriptionLost:
                pass
            await trio.sleep(LISTEN_AGAIN)

    async def watch(self) -> None:
        """Ends the fate where an HTTP server is gone; a process's end shows by itself."""
        if self._liveness is not None:
            poll = self._attempt.on_list_changed if self._announces_changes else None
            await self._liveness.watch(None if self._is_modern else self._ping, poll)

    @property
    def _announces_changes(self) -> bool:
        return self._tools is not None and bool(self._tools.list_changed)

    async def _ping(self) -> bool:
        try:
            await self._session.send_ping()
        except MCPError as error:
            # A server without `ping` is one that answers.
            return error.code == types.METHOD_NOT_FOUND
        return True

    async def _told(self, error: MCPError) -> RemoteError:
        if error.code == types.HEADER_MISMATCH:
            # MCP 2026-07-28: arguments travel as headers too, by a list that is out of date.
            self._attempt.on_list_changed()
        if error.code == CUT_OFF:
            with trio.move_on_after(NEWS_SECONDS):
                await self._attempt.fate.wait()
        if self.is_closing or self._attempt.fate.reason is not None:
            return LostError(error.message)
        return RemoteError(error.message, error.code)


def _as_sdk_takes(arguments: bytes) -> dict[str, Any]:
    """What the SDK gets to see: of a 2026-07-28 tool it mirrors some arguments into headers."""
    try:
        return _object.decode(arguments)
    except msgspec.DecodeError:  # such as 1e400, which is a number all the same
        return {}


@asynccontextmanager
async def _open(attempt: Attempt, ledger: Ledger) -> AsyncIterator[tuple[JSONRPCDispatcher, Liveness | None]]:
    config, fate = attempt.config, attempt.fate
    if config.url:
        async with open_http(config, fate, ledger) as (streams, liveness):
            yield JSONRPCDispatcher(*streams), liveness
    else:
        async with open_stdio(config, fate, ledger) as streams:
            yield JSONRPCDispatcher(*streams), None


async def _agree(session: ClientSession, attempt: Attempt) -> None:
    """Agrees on a revision: that of 2026-07-28 where the server has it, else an earlier one."""
    try:
        if not attempt.prefers_handshake and await _has_discovered(session):
            return
        await session.initialize()
    except MCPError as error:
        # A server that was slow to start may have answered discovery when nobody waited for it any more.
        if error.code != types.UNSUPPORTED_PROTOCOL_VERSION or not await _has_discovered(session):
            raise RemoteError(error.message, error.code) from None
    except (RuntimeError, ValidationError):
        raise RemoteError("it speaks no revision of MCP that is spoken here") from None


async def _has_discovered(session: ClientSession) -> bool:
    with suppress(MCPError, RuntimeError, ValidationError):
        await session.discover()
        return True
    return False
