"""The set of tools that an agent is shown: the client's own, and what the daemon tells of others (WIRE section 1).

Every source of tools that the daemon tells of is one row of `READERS`; a further one is a further row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from oubliette.protocol.members import members
from oubliette.protocol.names import RESERVED_CALLER_ID, is_tool_name, mcp_name
from oubliette.protocol.revisions import Revision
from oubliette_client import children, source


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool: what the agent is told of it, and the link's request that calls it."""

    name: str
    """its MCP name"""
    method: str
    """the request's method"""
    target: str
    """the member of the request's params that names the tool, source text; empty where the method is the tool"""
    shown: dict[str, str]
    """the members of its MCP entry beside the name, source text"""
    needs_key: bool = False
    """whether the request must carry the agent's key"""

    def entry(self, revision: Revision) -> str:
        """Returns the tool as `tools/list` shows it to an agent that speaks `revision`."""
        known = {key: value for key, value in self.shown.items() if _is_known(key, revision)}
        return source.join({"name": source.quote(self.name), **known})

    def params(self, arguments: str) -> str:
        """Returns the params of the request that calls the tool with `arguments`, source text."""
        return f'{{{self.target},"arguments":{arguments}}}' if self.target else arguments


class ToolSet:
    """The tools of every source, and whether each source has been heard; with `keyed`, the tools of a key are one."""

    def __init__(self, *, keyed: bool = False) -> None:
        self._expected = READERS.keys() if keyed else READERS.keys() - {KEYED}
        self._told: dict[str, list[Tool]] = {}
        self._problems: frozenset[str] = frozenset()
        self.by_name, _ = _by_name([*OWN])
        # Called by name like any tool and listed nowhere: an alias is another name of a tool that is listed.
        self.aliases: dict[str, Tool] = {}

    @property
    def complete(self) -> bool:
        """Says whether every source has been heard."""
        return self._told.keys() == self._expected

    def take(self, kind: str, params: str) -> list[str]:
        """Replaces what the source `kind` told before. Returns in words what cannot be shown and could until now.

        A notification of another kind changes nothing: a newer daemon may send some.
        """
        if kind not in self._expected:
            return []
        self._told[kind], problems = _read(kind, params)
        if kind == PACKS:
            self.aliases = _aliases(source.fields(params).get("aliases", "[]"))
        self.by_name, clashes = _by_name([*OWN, *(tool for tools in self._told.values() for tool in tools)])
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


def _keyed_tool(params: dict[str, str], declaration: dict[str, str]) -> Tool:
    name = _required(declaration, "name")
    target = f'"tool":{source.quote(name)}'
    # No caller may have this name, so no caller's tool can be taken for one of these.
    shown_name = mcp_name(RESERVED_CALLER_ID, name)
    return _tool(shown_name, "oubliette_call_tool", target, declaration, needs_key=True)


def _aliases(names: str) -> dict[str, Tool]:
    """The daemon knows what an alias stands for."""
    try:
        found = [name for name in map(source.string, source.items(names)) if name]
    except ValueError:  # no array
        return {}
    return {
        name: Tool(name=name, method="pack_tool", target=f'"name":{source.quote(name)}', shown={}) for name in found
    }


PACKS: Final = "pack_tools_config"
KEYED: Final = "oubliette_tools"
READERS: Final[dict[str, Callable[[dict[str, str], dict[str, str]], Tool]]] = {
    "caller_tools_config": _caller_tool,
    PACKS: _pack_tool,
    KEYED: _keyed_tool,
}
# Those that are there whatever the daemon tells.
OWN: Final = (
    Tool(
        name="session_message",
        method=children.METHOD,
        target="",
        shown={
            "title": '"Child session"',
            "description": source.quote(
                "Has a child session work on a message and returns what it says: another agent like this one, in the "
                "same project and workspace, with the same tools of the caller. With session_id it goes on with a "
                "child that was started before; without message it waits for the turn that the child is at. A child "
                "goes on when the call is cancelled or runs out of time: call again with its session_id."
            ),
            "inputSchema": children.INPUT_SCHEMA,
            "outputSchema": children.OUTPUT_SCHEMA,
            "annotations": '{"readOnlyHint":false,"openWorldHint":true}',
        },
    ),
    Tool(
        name="project_list",
        method="project_list",
        target="",
        shown={
            "title": '"Own project"',
            "description": '"Returns the project that this session works in: its id, name and description."',
            "inputSchema": '{"type":"object","properties":{},"additionalProperties":false}',
            "annotations": '{"readOnlyHint":true,"openWorldHint":false}',
        },
    ),
)


def _required(found: dict[str, str], key: str) -> str:
    value = source.string(found.get(key))
    if not value:
        raise ValueError(f"it has no {key}")
    return value


def _tool(name: str, method: str, target: str, declaration: dict[str, str], *, needs_key: bool = False) -> Tool:
    # Agents break on longer names and on other characters (WIRE section 2), some of them for the whole list.
    if not is_tool_name(name):
        raise ValueError(f"agents do not take the name {name}")
    return Tool(name=name, method=method, target=target, shown=_shown(declaration), needs_key=needs_key)


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
