"""What each function shows: text over a `State` (WIRE section 10). Nothing here reads or changes anything else."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from ot_pack.flow import Below, Literal, block, document, flow, items, string
from ot_pack.nearest import not_found
from ot_pack.snippets import MISSING, Param, Snippet, SnippetError, expand
from ot_pack.state import CONNECTED, LOCAL, Entry, State

_OK: Final = "ok"
_DEGRADED: Final = "degraded"
# What makes two words of one, or a comment of the second.
_NO_WORD: Final = frozenset(" \"'#")


def tools(state: State, *, name: str | None, pattern: str | None, pack: str | None, compact: bool) -> str:
    """Returns the tool `name`, or a line for each tool of `pack` (all where None) whose name matches `pattern`."""
    if name is not None:
        entry = state.by_name.get(name)
        return _tool(entry, compact) if entry else not_found("tool", name, state.by_name)
    if pack is not None and pack not in state.by_pack:
        return not_found("pack", pack, state.by_pack)
    entries = state.entries if pack is None else state.by_pack[pack]
    write = _compact_line if compact else _line
    return "\n".join([write(entry) for entry in entries if _matches(pattern, entry.name)]) or "[]"


def packs(state: State, *, name: str | None, pattern: str | None) -> str:
    """Returns the pack `name` with its instructions and tools, or a line for each pack that matches `pattern`."""
    if name is None:
        return items([_pack_summary(state, pack) for pack in state.by_pack if _matches(pattern, pack)])
    return _pack(state, name) if name in state.by_pack else not_found("pack", name, state.by_pack)


def aliases(state: State, *, name: str | None, pattern: str | None) -> str:
    """Returns `name -> target`, or the mapping of the aliases that match `pattern` by name or target."""
    if name is None:
        return flow({alias: to for alias, to in state.aliases.items() if _matches(pattern, alias, to)})
    return f"{name} -> {state.aliases[name]}" if name in state.aliases else not_found("alias", name, state.aliases)


def snippets(state: State, *, name: str | None, pattern: str | None) -> str:
    """Returns the definition of `name` with an example, or a line for each that matches `pattern` by name or
    description.
    """
    if name is not None:
        return _snippet(state.snippets[name]) if name in state.snippets else not_found("snippet", name, state.snippets)
    return items(
        [
            {"name": each.name, "description": each.description}
            for each in state.snippets.values()
            if _matches(pattern, each.name, each.description)
        ]
    )


def config(state: State) -> str:
    """Returns the aliases, the snippets with their descriptions, and the names of the proxied servers."""
    described = {snippet.name: {"description": snippet.description} for snippet in state.snippets.values()}
    return document({"aliases": state.aliases, "snippets": described, "servers": list(state.servers)})


def health(state: State) -> str:
    """Returns the version, Python's, the working directory, and how the registry and the proxied servers are."""
    return block(
        {
            "version": state.version,
            "python": sys.version.partition(" ")[0],
            "cwd": state.cwd,
            "registry": _registry(state),
            "proxy": _proxy(state),
        }
    )


def _matches(pattern: str | None, *texts: str) -> bool:
    """tool-ot-spec: "matching the pattern (case-insensitive substring)"."""
    return pattern is None or any(pattern.casefold() in text.casefold() for text in texts)


# --- Tools -----------------------------------------------------------------------------------------------------------


# A catalogue has thousands of lines: written out, `flow.items` of the same takes three times as long.
def _line(entry: Entry) -> str:
    first = f"- {{name: {string(entry.name)}, signature: {string(entry.signature)}"
    return f"{first}, description: {string(entry.description)}, source: {string(entry.source)}}}"


def _compact_line(entry: Entry) -> str:
    return f"- {{name: {string(entry.name)}, description: {string(entry.description)}}}"


def _tool(entry: Entry, compact: bool) -> str:
    """WIRE section 10: "`name=` one entry in block style with `args` after `description`"."""
    if compact:
        return block({"name": entry.name, "description": entry.description})
    return block(
        {
            "name": entry.name,
            "signature": entry.signature,
            "description": entry.description,
            "args": entry.args,
            "source": entry.source,
        }
    )


# --- Packs -----------------------------------------------------------------------------------------------------------


def _pack_summary(state: State, pack: str) -> dict[str, Any]:
    return {"name": pack, "source": _pack_source(state, pack), "tool_count": len(state.by_pack[pack])}


def _pack_source(state: State, pack: str) -> str:
    """WIRE section 10: "`local` or `proxy`", without the server."""
    entries = state.by_pack[pack]
    source = entries[0].source if entries else state.packs[pack]
    return source.partition(":")[0]


def _pack(state: State, pack: str) -> str:
    """WIRE section 10: "`name=` block `name`, `source`, `instructions: |` where configured, `tools:` as `- {name,
    description}`".
    """
    shown: dict[str, Any] = {"name": pack, "source": _pack_source(state, pack)}
    if pack in state.instructions:
        shown["instructions"] = Literal(state.instructions[pack])
    shown["tools"] = [{"name": entry.name, "description": entry.description} for entry in state.by_pack[pack]]
    return block(shown)


# --- Snippets --------------------------------------------------------------------------------------------------------


def _snippet(snippet: Snippet) -> str:
    """tool-ot-spec, "Snippet output format"."""
    definition = {
        "name": snippet.name,
        "description": snippet.description,
        "params": Below({name: _param(param) for name, param in snippet.params.items()}),
        "body": Literal(snippet.body),
    }
    # Where the body ends with empty lines, one more would be its own.
    separator = "\n" if snippet.body.endswith("\n\n") else "\n\n"
    return f"{block(definition)}{separator}{_example(snippet)}"


def _param(param: Param) -> dict[str, Any]:
    shown = {} if param.default is MISSING else {"default": param.default}
    return {**shown, "description": param.description} if param.description else shown


def _example(snippet: Snippet) -> str:
    """WIRE section 10: "the example uses `params.<p>.example`, else `<p>`, for what has no default"."""
    values = {
        name: f"<{name}>" if param.example is MISSING else param.example
        for name, param in snippet.params.items()
        if param.default is MISSING
    }
    call = " ".join([f"${_word(snippet.name)}", *(f"{_word(name)}={_word(value)}" for name, value in values.items())])
    return f"# Example with defaults:\n# {call}\n{_expansion(snippet, values)}"


def _expansion(snippet: Snippet, values: Mapping[str, Any]) -> str:
    try:
        return f"# Expands to:\n{expand(snippet, values)}"
    except SnippetError as error:
        return f"# Cannot be expanded: {error}"


def _word(value: Any) -> str:
    """A value as it is written in a call of a snippet: bare where it is one word, such as `<topic>`."""
    if isinstance(value, str) and value.isprintable() and value and not _NO_WORD.intersection(value):
        return value
    with suppress(ValueError):
        return flow(value)
    return "..."


# --- Health ----------------------------------------------------------------------------------------------------------


def _registry(state: State) -> dict[str, Any]:
    """WIRE section 10: "`tool_count` counts local tools"."""
    tool_count = sum(entry.source == LOCAL for entry in state.entries)
    if not state.problems:
        return {"status": _OK, "tool_count": tool_count}
    return {"status": _DEGRADED, "tool_count": tool_count, "problems": state.problems}


def _proxy(state: State) -> dict[str, Any]:
    connected = all(status == CONNECTED for status in state.servers.values())
    status = _OK if connected else _DEGRADED
    return {"status": status, "server_count": len(state.servers), "servers": state.servers}
