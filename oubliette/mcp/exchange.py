"""One request that is being answered: who asks, as which revision, and the way back for what belongs to it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

from msgspec import UNSET, Raw, Struct, UnsetType

from oubliette.audit import Door
from oubliette.mcp.session import McpSession
from oubliette.protocol import mcp_results
from oubliette.protocol.mcp import Level, passes
from oubliette.protocol.revisions import Revision
from oubliette.tokens import Principal
from oubliette.toolbox.call import Call, Follower, Services

LOGGER = "oubliette"


class Channel(Protocol):
    """The way to the peer for the messages that belong to one request."""

    async def send(self, *messages: bytes) -> None:
        """Hands messages, a line of JSON each, to the transport in one write; nothing is awaited before that."""
        ...


class Exchange(Struct, kw_only=True):
    """One request. `level` is the least level of log messages that it wants, None for none; `session` is the MCP
    session of the earlier revisions, `follower` what delivers events with the answer in the later ones.
    """

    id: bytes
    principal: Principal
    revision: Revision
    services: Services
    channel: Channel
    door: Door = "mcp"
    level: Level | None = None
    progress_token: Raw | UnsetType = UNSET
    capabilities: Collection[str] = ()
    session: McpSession | None = None
    follower: Follower | None = None
    has_reported: bool = False

    @property
    def call(self) -> Call:
        """What a tool is called with on behalf of this request."""
        common: dict[str, Any] = {} if self.session is None else {"on_named": self.session.cover}
        return Call(
            principal=self.principal,
            services=self.services,
            door=self.door,
            follower=self.follower,
            reports=self,
            capabilities=self.capabilities,
            **common,
        )

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Sends what a tool reports of its progress, where the request asked for it."""
        self.has_reported = True
        await self.send_progress(done, total, message)

    async def send_progress(self, done: float, total: float | None, message: str | None) -> None:
        """Sends a progress notification, where the request asked for any."""
        if self.progress_token is not UNSET:
            await self.channel.send(mcp_results.progress(self.progress_token, done, total, message))

    async def log(self, level: Level, data: Any) -> None:
        """Sends a log message, where the request wants those of `level`."""
        if self.level is not None and passes(level, self.level):
            await self.channel.send(mcp_results.log_message(level, LOGGER, data))
