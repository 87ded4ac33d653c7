"""The set of tools that an agent is shown, as the daemon's notifications make it (WIRE section 1).

Every source of tools is one row of `READERS`; a further one is a further row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from oubliette.protocol.members import members
from oubliette.protocol.names import is_tool_name, mcp_name
from oubliette.protocol.revisions import Revision
from oubliette_client import source


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool: what the agent is told of it, and the link's request that calls it."""

    name: str
    """its MCP name"""
    method: str
    """the request's method"""
    target: str
    """the member of the request's params that names the tool, source text"""
    shown: dict[str, str]
    """the members of its MCP entry beside the name, source text"""

    def entry(self, revision: Revision) -> str:
        """Returns the tool as `tools/list` shows it to an agent that speaks `revision`."""
        known = {key: value for key, value in self.shown.items() if _is_known(key, revision)}
        return source.join({"name": source.quote(self.name), **known})

    def params(self, arguments: str) -> str:
        """Returns the params of the request that calls the tool with `arguments`, source text."""
        return f'{{{self.target},"arguments":{arguments}}}'


class ToolSet:
    """The tools of every source, and whether each source has been heard."""

    def __init__(self) -> None:
        self._told: dict[str, list[Tool]] = {}
        self._problems: frozenset[str] = frozenset()
        self.by_name: dict[str, Tool] = {}

    @property
    def complete(self) -> bool:
        """Says whether every source has been heard."""
        return self._told.keys() == READERS.keys()

    def take(self, kind: str, params: str) -> list[str]:
        """Replaces what the source `kind` told before. Returns in words what cannot be shown and could until now.

        A notification of another kind changes nothing: a newer daemon may send some.
        """
        if kind not in READERS:
            return []
        self._told[kind], problems = _read(kind, params)
        self.by_name, clashes = _by_name([tool for tools in self._told.values() for tool in tools])
        known, self._problems = self._problems, frozenset(problems + clashes)
        return sorted(self._problems - known)

    def listing(self, revision: Revision) -> str:
        """Returns the tools, a JSON array, as `tools/list` shows them to an agent that speaks `revision`."""
        tools = list(self.by_name.values())
        if revision.stateless:
            # MCP 2026-07-28: "the same ordering across requests when the underlying set of tools has not changed".
            tools.sort(key=lambda tool: tool.name)
        return "[" + ",".join(tool.entry(revision) for tool in tools) + "]"


def _is_known(key: str, revision: Revision) -> bool:
    if key in ("title", "outputSchema"):
        return revision.structured_content
    return revision.annotations or key != "annotations"


def _by_name(tools: list[Tool]) -> tuple[dict[str, Tool], list[str]]:
    """Of tools that share a name none is shown: neither the first nor the last may win silently (HAZARDS T27)."""
    count = Counter(tool.name for tool in tools)
    clashes = [
        f"more than one tool is called {name}: none of them is shown" for name, times in count.items() if times > 1
    ]
    return {tool.name: tool for tool in tools if count[tool.name] == 1}, clashes


def _read(kind: str, params: str) -> tuple[list[Tool], list[str]]:
    """Returns the tools of a notification, and what is wrong with those that cannot be shown."""
    found = source.fields(params)
    tools, problems = [], []
    try:
        declarations = source.items(found.get("tools", "[]"))
    except ValueError:
        return [], [f"the tools of {kind} are no list"]
    for declaration in declarations:
        try:
            tools.append(READERS[kind](found, source.present(members(declaration))))
        except ValueError as error:
            problems.append(f"a tool of {kind} is left out: {error}")
    return tools, problems


def _caller_tool(params: dict[str, str], declaration: dict[str, str]) -> Tool:
    caller_id, name = _required(params, "caller_id"), _required(declaration, "name")
    return _tool(mcp_name(caller_id, name), "caller_tool", f'"tool":{source.quote(name)}', declaration)


def _pack_tool(params: dict[str, str], declaration: dict[str, str]) -> Tool:
    pack, name = _required(declaration, "pack"), _required(declaration, "name")
    return _tool(mcp_name(pack, name), "pack_tool", f'"name":{source.quote(f"{pack}.{name}")}', declaration)


READERS: Final[dict[str, Callable[[dict[str, str], dict[str, str]], Tool]]] = {
    "caller_tools_config": _caller_tool,
    "pack_tools_config": _pack_tool,
}


def _required(found: dict[str, str], key: str) -> str:
    value = source.string(found.get(key))
    if not value:
        raise ValueError(f"it has no {key}")
    return value


def _tool(name: str, method: str, target: str, declaration: dict[str, str]) -> Tool:
    # Agents break on longer names and on other characters (WIRE section 2), some of them for the whole list.
    if not is_tool_name(name):
        raise ValueError(f"agents do not take the name {name}")
    return Tool(name=name, method=method, target=target, shown=_shown(declaration))


def _shown(declaration: dict[str, str]) -> dict[str, str]:
    """The members of the entry: one that agents would choke on, and the whole list with it, is left out."""
    schema = source.object_schema(declaration.get("inputSchema", source.OBJECT))
    output = source.object_schema(declaration["outputSchema"]) if "outputSchema" in declaration else None
    annotations = declaration.get("annotations", "")
    title = source.string(declaration.get("title"))
    shown = {} if title is None else {"title": declaration["title"]}
    shown["description"] = source.quote(source.string(declaration.get("description")) or "")
    shown["inputSchema"] = schema or source.OBJECT
    shown |= {} if output is None else {"outputSchema": output}
    return shown | ({"annotations": annotations} if annotations.startswith("{") else {})
