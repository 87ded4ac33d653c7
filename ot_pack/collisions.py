"""Names of a configuration that cannot stand side by side: refused, naming both places (HAZARDS T27).

The tools of proxied servers are not known here: the daemon's catalogue watches over their names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from ot_pack.document import Given
from ot_pack.local import LocalPack, LocalTool
from ot_pack.names import DAEMON_PACKS, DAEMON_TOOLS, MAX_MCP_NAME, PACK, TOOL, is_reserved, mcp_name

_TARGET: Final = re.compile(rf"{PACK}\.{TOOL}\Z", re.ASCII)
_DAEMON_MCP_NAMES: Final = {mcp_name(tool): tool for tool in DAEMON_TOOLS}
_ITS_OWN: Final = "which is a name of the daemon's own"


def check(given: Given, local: Mapping[str, LocalPack], *, some_are_broken: bool) -> dict[str, str]:
    """Returns the aliases that have no tool at the moment, each with the reason; whose pack may be a broken one.

    `given` holds the keys of the `ot` pack, `local` its local packs by name, besides which there may be files that are
    broken. Raises `ConfigError` where names collide, and where an alias stands for nothing.
    """
    return _Names(given, local).check(some_are_broken)


class _Names:
    def __init__(self, given: Given, local: Mapping[str, LocalPack]) -> None:
        sections = given.entries()
        nothing = Given({}, given.where)
        self._packs = sections.get("packs", nothing)
        self._servers = sections.get("servers", nothing).entries()
        self._aliases = sections.get("aliases", nothing).entries()
        self._local = local
        self._tools: dict[str, LocalTool] = {}

    def check(self, some_are_broken: bool) -> dict[str, str]:
        for name, server in self._servers.items():
            if is_reserved(name):
                raise server.error(f"is called {name}, {_ITS_OWN}")
        for pack in self._local.values():
            self._check_pack(pack)
            for tool in pack.tools.values():
                self._check_tool(tool)
        for name, alias in self._aliases.items():
            self._check_hides_nothing(name, alias)
            self._check_target(name, alias)
        return self._without_a_tool(some_are_broken)

    def _check_pack(self, pack: LocalPack) -> None:
        if is_reserved(pack.name):
            raise self._packs.error(f"{pack.place} is the pack {pack.name}, {_ITS_OWN}")
        if pack.name in self._servers:
            raise self._servers[pack.name].error(f"is called as a local pack is ({pack.place})")

    def _check_tool(self, tool: LocalTool) -> None:
        identity = tool.entry.name
        name = mcp_name(identity)
        other = self._tools.setdefault(name, tool)
        if other is not tool:
            both = f"{other.entry.name} ({other.place}) and {identity} ({tool.place})"
            raise self._packs.error(f"{both} would both be called {name}")
        if name in _DAEMON_MCP_NAMES:
            raise self._packs.error(f"{identity} ({tool.place}) would be called {name}, {_ITS_OWN}")

    def _check_hides_nothing(self, name: str, alias: Given) -> None:
        if is_reserved(name) or name in _DAEMON_MCP_NAMES:
            raise alias.error(f"is called {name}, {_ITS_OWN}")
        if name in self._servers:
            raise alias.error(f"is called as a server is ({self._servers[name].where})")
        if name in self._local:
            raise alias.error(f"is called as a local pack is ({self._local[name].place})")
        if name in self._tools:
            tool = self._tools[name]
            raise alias.error(f"is called as the tool {tool.entry.name} is for agents ({tool.place})")

    def _check_target(self, name: str, alias: Given) -> None:
        target: str = alias.value
        if target == name:
            raise alias.error("is an alias of itself: it stands for a tool, pack.tool")
        if target in self._aliases:
            raise alias.error(f"is an alias of another alias ({self._aliases[target].where}): it stands for a tool")
        if not _TARGET.match(target) or len(mcp_name(target)) > MAX_MCP_NAME:
            raise alias.error(f"must be a tool's name, pack.tool, not {alias.shown}")

    def _without_a_tool(self, some_are_broken: bool) -> dict[str, str]:
        reasons = {name: self._why_nothing(alias) for name, alias in self._aliases.items()}
        missing = {name: why for name, why in reasons.items() if why}
        for name, why in missing.items():
            pack = self._aliases[name].value.partition(".")[0]
            if not some_are_broken or self._is_there(pack):
                raise self._aliases[name].error(why)
        return {f"alias {name}": f"{self._aliases[name].where}: {why}" for name, why in missing.items()}

    def _why_nothing(self, alias: Given) -> str:
        """Returns why an alias stands for nothing, an empty text where it stands for something."""
        pack, _, tool = alias.value.partition(".")
        if not self._is_there(pack):
            packs = ", ".join(sorted([*self._local, *self._servers, *DAEMON_PACKS]))
            return f"there is no pack {pack}; there are {packs}"
        if pack in self._local and tool not in self._local[pack].tools:
            return f"the pack {pack} has no tool {tool} ({self._local[pack].place})"
        if pack in DAEMON_PACKS and alias.value not in DAEMON_TOOLS:
            return f"the daemon has no tool {alias.value}"
        return ""

    def _is_there(self, pack: str) -> bool:
        return pack in self._local or pack in self._servers or pack in DAEMON_PACKS
