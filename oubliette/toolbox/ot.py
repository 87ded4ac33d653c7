"""The pack `ot`: what there is, as compact text (WIRE section 10).

The functions are those of the package `ot_pack`; here they get their arguments checked and the state that the asker may
see. The same declarations serve agents without a key, whose state is another one (`link/packs.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

import msgspec
import trio
from msgspec import UNSET, Meta, Struct

import ot_pack
from ot_pack.state import State, bound
from oubliette.protocol.mcp_results import ToolContent
from oubliette.toolbox.call import Call
from oubliette.toolbox.declare import AnyTool, tool
from oubliette.toolbox.token import Nothing

Pattern = Annotated[str | None, Meta(description="Only those with this in their name, whatever its case")]


class ToolsArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str | None, Meta(description="One tool, by its exact name: pack.tool")] = None
    pattern: Pattern = None
    pack: Annotated[str | None, Meta(description="Only the tools of this pack")] = None
    compact: Annotated[bool, Meta(description="Names and descriptions alone")] = False


class PacksArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str | None, Meta(description="One pack, with its instructions and tools")] = None
    pattern: Pattern = None


class AliasesArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str | None, Meta(description="One alias")] = None
    pattern: Annotated[str | None, Meta(description="Only those with this in their name or target")] = None


class SnippetsArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str | None, Meta(description="One snippet, whole, with an example")] = None
    pattern: Annotated[str | None, Meta(description="Only those with this in their name or description")] = None


class Notification(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    topic: Annotated[str, Meta(description="What it is about; the configuration says which topics are kept")]
    message: Annotated[str, Meta(description="What is to be noted")]


@tool("ot.tools", access="read", target="global")
async def ot_tools(call: Call, arguments: ToolsArguments) -> ToolContent:
    """Lists the tools there are: name, signature, description, source."""
    return await answer(ot_tools, call.state, arguments)


@tool("ot.packs", access="read", target="global")
async def ot_packs(call: Call, arguments: PacksArguments) -> ToolContent:
    """Lists the packs of tools, or shows one with its instructions."""
    return await answer(ot_packs, call.state, arguments)


@tool("ot.aliases", access="read", target="global")
async def ot_aliases(call: Call, arguments: AliasesArguments) -> ToolContent:
    """Lists the short names of tools, or shows what one stands for."""
    return await answer(ot_aliases, call.state, arguments)


@tool("ot.snippets", access="read", target="global")
async def ot_snippets(call: Call, arguments: SnippetsArguments) -> ToolContent:
    """Lists the snippets, or shows one with its parameters and an example."""
    return await answer(ot_snippets, call.state, arguments)


@tool("ot.config", access="read", target="global")
async def ot_config(call: Call, arguments: Nothing) -> ToolContent:
    """Shows which aliases, snippets and servers are configured."""
    return await answer(ot_config, call.state, arguments)


@tool("ot.health", access="read", target="global")
async def ot_health(call: Call, arguments: Nothing) -> ToolContent:
    """Shows whether packs are loaded and servers connected."""
    return await answer(ot_health, call.state, arguments)


@tool("ot.notify", access="write", target="global")
async def ot_notify(call: Call, arguments: Notification) -> ToolContent:
    """Notes a message in the file of its topic."""
    return await answer(ot_notify, call.state, arguments)


@tool("ot.reload", access="admin", target="global")
async def ot_reload(call: Call, arguments: Nothing) -> ToolContent:
    """Reads the configuration again: packs, servers, aliases, snippets, topics and prompts take effect at once."""
    return await answer(ot_reload, call.state, arguments)


FOR_AGENTS: Final = (ot_tools, ot_packs, ot_aliases, ot_snippets, ot_config, ot_health, ot_notify)
"""WIRE section 1, what agents may call of this pack without a key: "the `ot` read tools and `ot.notify`"."""


async def answer(declared: AnyTool, state: Callable[[], State], arguments: Struct) -> ToolContent:
    """Returns what the function of `ot_pack` behind a tool says about the state.

    In a thread: some work on files, and a server's thousand tools take a tenth of a second the first time.
    """
    return await trio.to_thread.run_sync(_show, declared.shown.tool, state, arguments)


def _show(function: str, state: Callable[[], State], arguments: Struct) -> ToolContent:
    with bound(state()):
        return content(getattr(ot_pack, function)(**msgspec.structs.asdict(arguments)))


def content(text: str) -> ToolContent:
    """ "One text block, byte for byte what the function returns; a text that begins with `Error:` sets `isError`"."""
    failed = text.startswith("Error:")
    return ToolContent(content=[{"type": "text", "text": text}], is_error=True if failed else UNSET)
