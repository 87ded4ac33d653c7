"""Proxied servers for tests: the scripted one of `mcp_server` as a process, and `Upstreams` that run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
import trio

from ot_pack.config import Headers, Variables
from ot_pack.config import ServerConfig as Configured
from oubliette.errors import ServerDisconnected
from oubliette.upstreams import ServerConfig, Upstreams
from tests.helpers.waiting import until

SCRIPT = Path(__file__).parent / "mcp_server.py"
MODERN = Path(__file__).parent / "mcp_modern.py"


def stdio(command: str, *args: str, env: dict[str, str] | None = None, timeout: float = 20) -> ServerConfig:
    """A server that is a process."""
    return Configured(command=command, args=args, env=Variables(env or {}), timeout_seconds=timeout)


def http(url: str, headers: dict[str, str] | None = None, timeout: float = 20) -> ServerConfig:
    """A server at a URL."""
    return Configured(url=url, headers=Headers(headers or {}), timeout_seconds=timeout)


def modern() -> ServerConfig:
    """A server of the newest revision on stdio."""
    return stdio(sys.executable, "-P", str(MODERN), "stdio")


def scripted(*, env: dict[str, str] | None = None, timeout: float = 20, **script: Any) -> ServerConfig:
    """The scripted server on stdio; `script` is that of `mcp_server.Script`."""
    return stdio(sys.executable, "-P", str(SCRIPT), "stdio", json.dumps(script), env=env, timeout=timeout)


class HttpProcess:
    """A server over HTTP, as a process that can be killed and started again at the same port."""

    def __init__(self) -> None:
        self.port = 0
        self.start()

    def command(self) -> list[str]:
        """Returns what starts it at `port`, or at any where that is 0."""
        raise NotImplementedError

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.command(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.port = int(line.removeprefix("listening on "))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()


class ScriptedHttp(HttpProcess):
    """The scripted server."""

    def __init__(self, **script: Any) -> None:
        self.script = script
        super().__init__()

    def command(self) -> list[str]:
        return [sys.executable, "-P", str(SCRIPT), "http", json.dumps({**self.script, "port": self.port})]


class ModernHttp(HttpProcess):
    """A server on the official SDK, of the newest revision."""

    def command(self) -> list[str]:
        return [sys.executable, "-P", str(MODERN), "http", str(self.port)]


# The ways over HTTP.
CARRIED: dict[str, Callable[..., HttpProcess]] = {
    "http": ScriptedHttp,
    "http without stream": lambda **script: ScriptedHttp(stream=False, **script),
    "http without session": lambda **script: ScriptedHttp(stream=False, sessions=False, sse=False, **script),
    "http of 2026-07-28": lambda **script: ModernHttp(),
}


class Observed(Upstreams):
    """Upstreams that count their changes, and wait."""

    def __init__(self) -> None:
        self.changes = 0
        self.changed_tools: list[tuple[str, str]] = []
        super().__init__(on_change=self._count, on_tool_changed=self._note)

    def _count(self) -> None:
        self.changes += 1

    def _note(self, server: str, tool: str, fingerprint: str) -> None:
        self.changed_tools.append((server, tool))

    async def until_connected(self, *servers: str) -> None:
        await until(lambda: all(self.status[server] == "connected" for server in servers or self.status))

    async def until_lost(self, server: str) -> float:
        """Waits until a server is disconnected; returns for how many seconds."""
        started = trio.current_time()
        await until(lambda: self.status[server] == "disconnected")
        return trio.current_time() - started

    def names(self, server: str) -> list[str]:
        return [tool.name for tool in self.tools[server]]

    async def answer(self, server: str, tool: str, **arguments: Any) -> dict[str, Any]:
        """Calls a tool; returns its result, read."""
        found: dict[str, Any] = json.loads(await self.call(server, tool, json.dumps(arguments).encode()))
        return found


@asynccontextmanager
async def running(**servers: ServerConfig) -> AsyncIterator[Observed]:
    """Runs `Upstreams` on these servers; connects them first. Leaving it stops them, in bounded time."""
    upstreams = Observed()
    async with trio.open_nursery() as nursery:
        await nursery.start(upstreams.run)
        upstreams.configure(servers)
        await upstreams.until_connected()
        try:
            yield upstreams
        finally:
            nursery.cancel_scope.cancel()


def journal(path: Path) -> list[Any]:
    """What a scripted server wrote into its journal."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def pids(written: Path) -> list[int]:
    """The processes that wrote a journal, in their order."""
    return [entry["pid"] for entry in journal(written) if "pid" in entry]


def exists(pid: int) -> bool:
    """Whether there is such a process, dead and not yet reaped ones included."""
    return Path(f"/proc/{pid}").exists()


def methods(written: Path) -> list[str]:
    """The methods that a server was asked for, in their order."""
    return [entry["method"] for entry in journal(written) if isinstance(entry, dict) and "method" in entry]


async def refused(upstreams: Observed, *call: Any) -> ServerDisconnected:
    """Makes a call that fails because its server is gone."""
    with pytest.raises(ServerDisconnected) as caught:
        await upstreams.call(*call)
    return caught.value
