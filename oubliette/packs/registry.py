"""Every pack there is beside the daemon's own: files of this machine and proxied servers, and what is set about them.

What is there is one immutable `Offer`, made anew whenever the configuration is read again or a server's list changes:
whoever has begun with one goes on with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgspec
import trio
from msgspec import Raw, Struct

from ot_pack.config import PackConfig
from ot_pack.state import LOCAL, PROXY, Entry
from oubliette.errors import ToolTimeout
from oubliette.log import get as get_logger
from oubliette.packs.tools import LOCAL_THREADS, LocalPackTool, PackTool, ProxiedTool
from oubliette.scopes import Access, Target
from oubliette.upstreams.tools import UpstreamTool
from oubliette.upstreams.upstream import ToolListener
from oubliette.upstreams.upstreams import Upstreams

OT: Final = "ot"
# To read the configuration is to run the files of local packs, and one may hang. In seconds.
READ_SECONDS: Final = 60.0
# A file that hangs keeps its thread; the next reload, of a mended file, has another.
READ_THREADS: Final = 4

log = get_logger(__name__)


class PackSettings(Struct, frozen=True, kw_only=True):
    """What the configuration says about packs; `project_packs` are those of a project that says nothing of them."""

    config: PackConfig
    project_packs: Sequence[str]


class Offer(Struct, frozen=True, kw_only=True, dict=True):
    """What there is at one moment: the tools by identity, and what is broken or left out, with the reason."""

    settings: PackSettings
    tools: Mapping[str, PackTool] = {}
    broken: Mapping[str, str] = {}

    @cached_property
    def by_mcp_name(self) -> Mapping[str, PackTool]:
        return {tool.mcp_name: tool for tool in self.tools.values()}

    @cached_property
    def packs(self) -> Mapping[str, str]:
        """The packs by name, and whether they are `local` or `proxy`; also those that have no tool at the moment."""
        config = self.settings.config
        return {**dict.fromkeys(config.local, LOCAL), **dict.fromkeys(config.servers, PROXY)}

    @cached_property
    def told(self) -> Mapping[str, Raw]:
        """What clients are told of each tool, by identity (WIRE section 1, `pack_tools_config`)."""
        return {identity: told(tool.pack, tool.name, tool.entry) for identity, tool in self.tools.items()}

    @cached_property
    def problems(self) -> Mapping[str, str]:
        """What is broken, and the aliases that are called as a tool is: a server's are not known when they are read."""
        hidden = {
            f"alias {name}": f"not in force: the tool {self.by_mcp_name[name].identity} is called {name}"
            for name in self.settings.config.aliases
            if name in self.by_mcp_name
        }
        return {**self.broken, **hidden}

    def target(self, name: str) -> str:
        """Returns what an alias stands for; any other name is its own, and so is that of a tool."""
        return name if name in self.by_mcp_name else self.settings.config.aliases.get(name, name)

    def find(self, name: str) -> PackTool | None:
        """Returns a tool by its identity, its MCP name or an alias."""
        return self.tools.get(self.target(name)) or self.by_mcp_name.get(name)


def told(pack: str, name: str, entry: Mapping[str, object]) -> Raw:
    """Returns what a client is told of a tool, whose MCP Tool is `entry`."""
    return Raw(msgspec.json.encode({**entry, "pack": pack, "name": name}))


class OwnTool(Protocol):
    """As much of a tool of the daemon's own as decides who sees it."""

    @property
    def access(self) -> Access: ...
    @property
    def target(self) -> Target: ...
    @property
    def shown(self) -> Entry: ...


class _Listed(NamedTuple):
    """A server's list as it was read, and the tools that were made of it."""

    source: tuple[UpstreamTool, ...]
    tools: list[ProxiedTool]


class Packs:
    """The registry. `watchers` are called when the offer has changed, and stay quick.

    `read` reads the configuration again, in a thread, and raises what tells why it cannot be used; `own` are the
    daemon's own tools by their MCP names, which no pack's tool may have; `topics_folder` is where `ot.notify` writes;
    `on_tool_changed` is told of a server's tool that is not what it was.
    """

    def __init__(
        self,
        settings: PackSettings,
        read: Callable[[], PackSettings],
        own: Mapping[str, OwnTool],
        topics_folder: Path,
        on_tool_changed: ToolListener,
    ) -> None:
        self.own = own
        self.topics_folder = topics_folder
        self.upstreams = Upstreams(on_change=self._changed, on_tool_changed=on_tool_changed)
        self.watchers: set[Callable[[], None]] = set()
        self.offer = Offer(settings=settings)
        self._read = read
        self._calls = trio.CapacityLimiter(LOCAL_THREADS)
        self._reads = trio.CapacityLimiter(READ_THREADS)
        self._turn = trio.Lock()
        self._listed: dict[str, _Listed] = {}
        self._use(settings)

    @property
    def names(self) -> list[str]:
        """The packs that a project can be given."""
        return [OT, *self.offer.packs]

    def allowed(self, packs: Sequence[str] | None) -> frozenset[str]:
        """Returns the packs of a project whose setting is `packs`, None where it says nothing."""
        return frozenset(self.offer.settings.project_packs if packs is None else packs)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keeps the proxied servers connected until cancelled."""
        await self.upstreams.run(task_status=task_status)

    async def reload(self) -> None:
        """Reads the configuration again and uses it. Where it is bad the error goes on, and the old one stays.

        Raises `ToolTimeout` where it has not been read within `READ_SECONDS`.
        """
        # Two at once could end with the older of what they read.
        async with self._turn:
            self._use(await self._settings_again())
        self._tell()
        log.info("configuration reloaded", packs=self.names)

    async def _settings_again(self) -> PackSettings:
        with trio.move_on_after(READ_SECONDS):
            return await trio.to_thread.run_sync(self._read, abandon_on_cancel=True, limiter=self._reads)
        raise ToolTimeout(
            f"the configuration had not been read after {READ_SECONDS:g} s: the file of a local pack may hang. "
            "The old configuration stays"
        )

    def _use(self, settings: PackSettings) -> None:
        self._settings = settings
        packs = settings.config.local.values()
        self._local = [LocalPackTool(pack.name, tool, self._calls) for pack in packs for tool in pack.tools.values()]
        self.upstreams.configure(settings.config.servers)
        self.offer = self._make_offer()

    def _changed(self) -> None:
        """A server's list of tools, its state or its problems are others."""
        before, self.offer = self.offer, self._make_offer()
        if self.offer.tools != before.tools:
            self._tell()

    def _tell(self) -> None:
        for watcher in list(self.watchers):
            watcher()

    def _make_offer(self) -> Offer:
        tools, clashes = without_clashes(self._tools(), self.own)
        broken = {**self._settings.config.problems, **self.upstreams.problems, **clashes}
        return Offer(settings=self._settings, tools=tools, broken=broken)

    def _tools(self) -> Iterator[PackTool]:
        yield from self._local
        self._listed = {server: self._made(server, tools) for server, tools in self.upstreams.tools.items()}
        for listed in self._listed.values():
            yield from listed.tools

    def _made(self, server: str, source: tuple[UpstreamTool, ...]) -> _Listed:
        known = self._listed.get(server)
        if known is not None and known.source == source:
            return known._replace(source=source)
        return _Listed(source, [ProxiedTool(server, tool, self.upstreams) for tool in source])


def without_clashes(tools: Iterable[PackTool], own: Collection[str]) -> tuple[dict[str, PackTool], dict[str, str]]:
    """Returns the tools by identity, and what is wrong with those that share an MCP name.

    Of tools that share one none is offered: neither the first nor the last may win silently (HAZARDS T27).
    """
    by_mcp_name: defaultdict[str, list[PackTool]] = defaultdict(list)
    for tool in tools:
        by_mcp_name[tool.mcp_name].append(tool)
    kept, problems = {}, {}
    for name, rivals in by_mcp_name.items():
        if len(rivals) == 1 and name not in own:
            kept[rivals[0].identity] = rivals[0]
        else:
            named = ", ".join(tool.identity for tool in rivals)
            problems[name] = f"left out: {named} would be called {name}, as another tool is"
    return kept, problems
