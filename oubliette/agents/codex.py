"""The profile `codex`: Codex (`@openai/codex`), tried with 0.169.0.

It speaks OpenAI's Responses API alone, also to an endpoint of `base_url`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from msgspec import Raw, Struct

from oubliette.agents.profile import (
    SERVER,
    START_SECONDS,
    TOOL_SECONDS,
    Begun,
    Calls,
    Ended,
    Heard,
    Profile,
    Said,
    Start,
    used,
)

Value = str | int | bool | list[str]
Tables = Mapping[str, Mapping[str, Value]]

_CONFIG: Final = ".codex/config.toml"
# Codex passes few variables on to its MCP servers. These it passes on by name: their values stand in no file.
_PASSED_ON: Final = ["OUBLIETTE_SOCKET", "OUBLIETTE_API_KEY"]


def _files(start: Start) -> dict[str, bytes]:
    return {_CONFIG: _toml(_tables(start)).encode()}


def _tables(start: Start) -> Tables:
    program, *arguments = start.client
    server: dict[str, Value] = {
        "command": program,
        "args": arguments,
        "env_vars": _PASSED_ON,
        # Without it the model's first request is made before our tools are there.
        "required": True,
        "startup_timeout_sec": START_SECONDS,
        "tool_timeout_sec": TOOL_SECONDS,
        # Nobody is there to ask, so what asks is refused; and two calls of one step wait for each other.
        "default_tools_approval_mode": "approve",
        "supports_parallel_tool_calls": True,
    }
    return {
        "": {"check_for_update_on_startup": False, "approval_policy": "never", **_limits(start), **_model(start)},
        **_provider(start),
        f"mcp_servers.{SERVER}": server,
        # Plugins and apps are looked for on the internet, at every start.
        "features": {"plugins": False, "apps": False, **_tools(start)},
        "agents": {"enabled": start.free_hand},
        "analytics": {"enabled": False},
        "feedback": {"enabled": False},
        "history": {"persistence": "none"},
    }


def _limits(start: Start) -> dict[str, Value]:
    return {} if start.free_hand else {"sandbox_mode": "read-only", "web_search": "disabled"}


def _tools(start: Start) -> dict[str, Value]:
    # A shell that may only read could still read the whole machine.
    return {} if start.free_hand else {"shell_tool": False, "view_image": False}


def _model(start: Start) -> dict[str, Value]:
    model: dict[str, Value] = {"model": start.options.model} if start.options.model else {}
    return {**model, "model_provider": SERVER} if start.options.base_url else model


def _provider(start: Start) -> Tables:
    if not start.options.base_url:
        return {}
    key = start.options.api_key_env
    provider = {"name": SERVER, "base_url": start.options.base_url, "env_key": key, "wire_api": "responses"}
    return {f"model_providers.{SERVER}": provider}


def _toml(tables: Tables) -> str:
    lines = []
    for name, values in tables.items():
        lines += [f"[{name}]"] if name else []
        lines += [f"{key} = {_toml_value(value)}" for key, value in values.items()]
    return "\n".join([*lines, ""])


def _toml_value(value: Value) -> str:
    # JSON's strings are TOML's, where characters stand for themselves, but for DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _arguments(start: Start) -> list[str]:
    arguments = ["exec", "--json", "--skip-git-repo-check"]
    arguments += ["--dangerously-bypass-approvals-and-sandbox"] if start.free_hand else []
    return [*arguments, *(["resume", start.conversation] if start.conversation else []), "-"]


def _environment(start: Start) -> dict[str, str]:
    key = start.variables.get(start.options.api_key_env)
    # Its own endpoint's key has a name of its own where nobody has logged in.
    own = {"CODEX_API_KEY": key} if key and not start.options.base_url else {}
    return {**own, **start.variables, "HOME": start.place.home, "CODEX_HOME": start.path(".codex")}


class _Item(Struct, frozen=True):
    type: str
    id: str = ""
    text: str = ""
    status: str = ""
    server: str = ""
    tool: str = ""
    arguments: Raw = Raw(b"{}")
    command: Raw = Raw(b'""')
    changes: Raw = Raw(b"[]")
    query: Raw = Raw(b'""')
    exit_code: int | None = None


class _Error(Struct, frozen=True):
    message: str = ""


class _Event(Struct, frozen=True):
    type: str
    thread_id: str = ""
    item: _Item | None = None
    usage: dict[str, int] = {}
    error: _Error = _Error()


_decode: Final = msgspec.json.Decoder(_Event).decode
# The items that are tools of its own, and what of them tells what is done.
_OWN_TOOLS: Final = {"command_execution": "command", "file_change": "changes", "web_search": "query"}
# Its names for what `used` counts.
_COUNTS: Final = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cached_input_tokens": "cache_read_input_tokens",
    "cache_write_input_tokens": "cache_creation_input_tokens",
    "reasoning_output_tokens": "reasoning_output_tokens",
}


class _Parser:
    def __init__(self) -> None:
        self._thread = ""
        self._totals: Mapping[str, int] = {}
        self._calls = Calls()

    def hear(self, line: bytes) -> Iterator[Heard]:
        event = _decode(line)
        match event.type:
            case "thread.started":
                self._begin_thread(event.thread_id)
            case "turn.started":
                # A thread that is cut off between its start and here cannot be resumed. Ids begin anew.
                self._calls = Calls()
                yield Begun(self._thread)
            case "item.started" | "item.completed" if event.item is not None:
                yield from self._item(event.item, is_over=event.type == "item.completed")
            case "turn.completed":
                yield self._used_since(event.usage)
            case "turn.failed":
                yield Ended(failure=event.error.message or "the turn failed")

    def _begin_thread(self, thread: str) -> None:
        if thread != self._thread:
            self._thread, self._totals = thread, {}

    def _used_since(self, totals: Mapping[str, int]) -> Heard:
        """It tells what the thread has used so far."""
        before, self._totals = self._totals, totals
        if any(totals.get(name, 0) < count for name, count in before.items()):
            before = {}
        return used({ours: totals.get(name, 0) - before.get(name, 0) for name, ours in _COUNTS.items()})

    def _item(self, item: _Item, *, is_over: bool) -> Iterator[Heard]:
        if item.type == "agent_message" and is_over:
            yield Said(item.text)
        elif item.type == "mcp_tool_call" or item.type in _OWN_TOOLS:
            if item.id not in self._calls:
                yield self._calls.begin(item.id, *_call(item))
            if is_over:
                is_error = item.status in ("failed", "declined") or bool(item.exit_code)
                yield from self._calls.end(item.id, is_error=is_error)


def _call(item: _Item) -> tuple[str, bytes]:
    """Returns the tool that an item is, and its arguments."""
    if item.type == "mcp_tool_call":
        return f"{item.server}.{item.tool}", item.arguments
    member = _OWN_TOOLS[item.type]
    return item.type, b'{"%b":%b}' % (member.encode(), bytes(getattr(item, member)))


CODEX: Final = Profile(files=_files, arguments=_arguments, environment=_environment, parser=_Parser)
