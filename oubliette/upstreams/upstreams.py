"""Every proxied server of the configuration, each in a task of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import trio

from oubliette.errors import NotFound
from oubliette.upstreams.calls import MAX_RESULT_BYTES, NOT_RUN
from oubliette.upstreams.connection import Connect, ProgressListener, ServerConfig
from oubliette.upstreams.loading import Loader
from oubliette.upstreams.tools import UpstreamTool
from oubliette.upstreams.upstream import Status, ToolListener, Upstream


class Upstreams:
    """The proxied servers (WIRE section 9, `servers`).

    `on_change` is called whenever a status, a list of tools or a problem has changed, `on_tool_changed` with a server's
    name, a tool's and its fingerprint when a tool is not what it was (HAZARDS T26). Both are plain functions, called
    in the middle of things: they must not raise. `max_result_bytes` bounds the result of a call, and may be what one
    message of a server may have at the most (8 MiB). `connect` is how a server is reached: by the official SDK, unless
    a test says otherwise.
    """

    def __init__(
        self,
        *,
        on_change: Callable[[], None],
        on_tool_changed: ToolListener = lambda server, tool, fingerprint: None,
        max_result_bytes: int = MAX_RESULT_BYTES,
        connect: Connect | None = None,
    ) -> None:
        self._on_change = on_change
        self._on_tool_changed = on_tool_changed
        self._max_result_bytes = max_result_bytes
        self._connect = Loader().connect if connect is None else connect
        self._servers: dict[str, Upstream] = {}
        self._to_start: list[Upstream] = []
        self._configured = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Connects and supervises what is configured until it is cancelled; no process of a server survives it.

        It has started before any server is connected.
        """
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                # Started from here, and so in the context of this task: not in the span of whoever configured it.
                for upstream in self._to_start:
                    nursery.start_soon(upstream.run)
                self._to_start = []
                self._configured = trio.Event()
                await self._configured.wait()

    def configure(self, servers: Mapping[str, ServerConfig]) -> None:
        """Makes `servers` those that there are, by name. Whose configuration is the same is left as it is."""
        before = self._servers
        self._servers = {name: self._kept(name, config) or self._made(name, config) for name, config in servers.items()}
        for upstream in before.values():
            if self._servers.get(upstream.name) is not upstream:
                upstream.close()
        self._to_start = [upstream for upstream in self._to_start if self._servers.get(upstream.name) is upstream]
        if self._servers != before:
            self._configured.set()
            self._on_change()

    @property
    def status(self) -> dict[str, Status]:
        """Every server by its name: `connected` where a session is agreed and its list of tools was read."""
        return {name: upstream.status for name, upstream in self._servers.items()}

    @property
    def tools(self) -> Mapping[str, tuple[UpstreamTool, ...]]:
        """The tools of every server by its name: the last list that was read, also while it is being reconnected."""
        return {name: upstream.tools for name, upstream in self._servers.items()}

    @property
    def problems(self) -> Mapping[str, str]:
        """What is broken, and why: servers by their name, tools as `server.tool`."""
        return {what: why for upstream in self._servers.values() for what, why in upstream.problems.items()}

    async def call(
        self,
        server: str,
        tool: str,
        arguments: bytes,
        on_progress: ProgressListener = lambda done, total, message: None,
    ) -> bytes:
        """Calls a server's tool, by the name that the server has for it, with arguments: the text of a JSON object.

        Returns the JSON text of the whole `CallToolResult`, its members as the server sent them. Cancelling the call
        tells the server. Raises an OublietteError: NotFound, InvalidParams, LimitExceeded, ServerDisconnected,
        ServerTimeout after the server's `timeout_seconds`, or ServerError.
        """
        if server not in self._servers:
            known = ", ".join(self._servers) or "none"
            message = f"unknown server {server[:64]!r}; configured: {known}; {NOT_RUN}"
            raise NotFound(message, field="server", retry_safe=True)
        return await self._servers[server].call(tool, arguments, on_progress)

    def _kept(self, name: str, config: ServerConfig) -> Upstream | None:
        known = self._servers.get(name)
        return known if known is not None and known.config == config else None

    def _made(self, name: str, config: ServerConfig) -> Upstream:
        upstream = Upstream(
            name,
            config,
            self._connect,
            on_change=self._on_change,
            on_tool_changed=self._on_tool_changed,
            max_result_bytes=self._max_result_bytes,
        )
        self._to_start.append(upstream)
        return upstream
