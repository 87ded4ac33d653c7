"""The names of packs, tools and aliases, and which of them cannot stand side by side (WIRE, "Words"; HAZARDS T27).

A tool has one identity, `pack.tool`, and one MCP name, `pack_tool`. Two tools with one MCP name, or an alias that hides
something, would let one stand for the other: both places are named, and neither is taken.
"""

from __future__ import annotations

from typing import Final

# As long as a caller's id may be: it leaves half of an MCP name for the tool.
PACK: Final = r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}"
TOOL: Final = r"[A-Za-z0-9_.-]{1,64}"
# An alias is called by its name alone: it is an MCP name itself. A dot would make it look like an identity.
ALIAS: Final = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
# "agents break on longer ones" (WIRE section 2)
MAX_MCP_NAME: Final = 64

# What the daemon has itself (WIRE section 6): a test of the daemon holds it true. An alias may stand for one of them,
# and nothing else may be called as they are.
DAEMON_TOOLS: Final = frozenset(
    f"{pack}.{tool}"
    for pack, tools in {
        "project": "create list options get delete",
        "workspace": "create delete list",
        "session": "message list get events end cleanup",
        "caller_tool": "response progress",
        "token": "create list revoke",
        "ot": "tools packs aliases snippets config health notify reload",
    }.items()
    for tool in tools.split()
)
DAEMON_PACKS: Final = frozenset(name.partition(".")[0] for name in DAEMON_TOOLS)
# "Inside a container the daemon's own tools carry the prefix `oubliette_`" (WIRE, "Words").
RESERVED: Final = "oubliette"


def mcp_name(identity: str) -> str:
    """Returns the MCP name of `pack.tool`: "a `.` within a tool's own name becomes `_`"."""
    return identity.replace(".", "_")


def is_reserved(name: str) -> bool:
    """Says whether a pack, a server or an alias of this name could pass for a part of the daemon."""
    return name in DAEMON_PACKS or name == RESERVED or name.startswith(f"{RESERVED}_")
