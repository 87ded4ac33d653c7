"""Registries of packs for tests: without a daemon, over a configuration that a test changes, with servers it plays."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import trio

from ot_pack.config import PackConfig, read
from ot_pack.document import Document
from oubliette.packs import registry
from oubliette.packs.registry import Packs, PackSettings
from oubliette.toolbox import box
from oubliette.upstreams.connection import Attempt, Page, ProgressListener
from oubliette.upstreams.upstreams import Upstreams

DEMO = '''
"""A pack for tests."""

pack = "demo"
__all__ = ["greet", "wait"]


def greet(name: str, times: int = 1) -> str:
    """Greets somebody.

    Args:
        name: Who is greeted
        times: How often
    """
    return " ".join([f"hello {name}"] * times)


async def wait(seconds: float) -> dict[str, float]:
    """Waits."""
    import trio

    await trio.sleep(seconds)
    return {"waited": seconds}
'''


class PlayedServer:
    """A proxied server that a test plays. `calls` are those that it was asked for; it answers with their arguments.

    `reports` are what it says of its progress in each call, one a second; `connections` are counted.
    """

    began_with_handshake = True

    def __init__(self, *tools: str) -> None:
        self.tools: list[Any] = [tool_entry(tool) for tool in tools]
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.connections = 0
        self.reports: list[tuple[float, float | None, str | None]] = []
        self._attempt: Attempt | None = None

    def list_again(self, *tools: str) -> None:
        """Has these tools from now on, and says so."""
        self.tools = [tool_entry(tool) for tool in tools]
        self.say_changed()

    def say_changed(self) -> None:
        """Says that its list is another one."""
        assert self._attempt is not None
        self._attempt.on_list_changed()

    def drop(self) -> None:
        """Ends the connection."""
        assert self._attempt is not None
        self._attempt.fate.end("it was dropped")

    @asynccontextmanager
    async def connect(self, attempt: Attempt) -> AsyncIterator[PlayedServer]:
        self._attempt = attempt
        self.connections += 1
        await trio.lowlevel.checkpoint()
        yield self

    async def list_tools(self, cursor: str | None) -> Page:
        await trio.lowlevel.checkpoint()
        return Page(tools=self.tools)

    async def call(self, tool: str, arguments: bytes, on_progress: ProgressListener) -> bytes:
        self.calls.append((tool, json.loads(arguments)))
        for report in self.reports:
            on_progress(*report)
            await trio.sleep(1)
        await trio.lowlevel.checkpoint()
        return json.dumps({"content": [{"type": "text", "text": arguments.decode()}]}).encode()


def tool_entry(name: str, **more: Any) -> dict[str, Any]:
    """An MCP Tool with one argument."""
    schema = {"type": "object", "properties": {"q": {"type": "string", "description": "What"}}, "required": ["q"]}
    return {"name": name, "description": f"The tool {name}", "inputSchema": schema, **more}


class ObservedPacks(Packs):
    """A registry over `settings`, which a test changes. `told` counts its watcher's calls, `reads` those of the
    configuration, `changed_tools` are those of servers that are not what they were.
    """

    def __init__(self, settings: PackSettings, topics_folder: Path, servers: dict[str, PlayedServer]) -> None:
        self.settings: PackSettings | Callable[[], PackSettings] = settings
        self.told = self.reads = 0
        self.changed_tools: list[tuple[str, str]] = []
        played = partial(Upstreams, connect=lambda attempt: servers[attempt.server].connect(attempt))
        with mock.patch.object(registry, "Upstreams", played):
            super().__init__(settings, self._read_settings, box.TOOLS, topics_folder, self._note)
        self.watchers.add(self._count)

    async def use(self, config: PackConfig, allowed: Sequence[str] | None = None) -> None:
        """Reloads what is now `config`."""
        self.settings = settings_of(config, allowed)
        await self.reload()

    def _read_settings(self) -> PackSettings:
        self.reads += 1
        return self.settings() if callable(self.settings) else self.settings

    def _note(self, server: str, tool: str, fingerprint: str) -> None:
        self.changed_tools.append((server, tool))

    def _count(self) -> None:
        self.told += 1


def packs_of(
    config: PackConfig | None = None,
    allowed: Sequence[str] | None = None,
    *,
    folder: Path = Path("/nonexistent"),
    **servers: PlayedServer,
) -> ObservedPacks:
    """Returns a registry of `config`, of nothing without one, which is still to be run. `allowed` are the packs of
    projects that say nothing, without it all that there are; `folder` is the data directory.
    """
    return ObservedPacks(settings_of(config or PackConfig(), allowed), folder / "topics", servers)


def settings_of(config: PackConfig, allowed: Sequence[str] | None = None) -> PackSettings:
    everything = ["ot", *config.local, *config.servers]
    return PackSettings(config=config, project_packs=everything if allowed is None else allowed)


def configured(folder: Path, text: str = "packs: ['*.py']", **sources: str) -> PackConfig:
    """Writes a configuration and local packs, files by their names, into `folder`; returns what it says."""
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)
    path = folder / "oubliette.yaml"
    path.write_text(text)
    return read(Document(path).read(), folder, os.environ)


@asynccontextmanager
async def running(packs: ObservedPacks) -> AsyncIterator[ObservedPacks]:
    """Runs a registry, and waits until its servers are connected."""
    async with trio.open_nursery() as nursery:
        await nursery.start(packs.run)
        await connected(packs)
        yield packs
        nursery.cancel_scope.cancel()


async def connected(packs: Packs) -> None:
    """Returns when every server is."""
    with trio.fail_after(20):
        while set(packs.upstreams.status.values()) - {"connected"}:  # noqa: ASYNC110  # no event tells of it
            await trio.sleep(0.01)
