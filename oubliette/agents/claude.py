"""The profile `claude`: Claude Code (`@anthropic-ai/claude-code`), tried with 2.1.197.

Its endpoint and its key are variables of its environment: `ANTHROPIC_BASE_URL`, `ANTHROPIC_API_KEY`.
"""

from __future__ import annotations

from collections.abc import Iterator
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

_CONFIG: Final = ".claude/mcp.json"
_SETTINGS: Final = {
    # Updates, telemetry, reports of errors: none of it is the model or the caller.
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "MCP_TIMEOUT": str(START_SECONDS * 1000),
    "MCP_CONNECT_TIMEOUT_MS": str(START_SECONDS * 1000),
    "MCP_TOOL_TIMEOUT": str(TOOL_SECONDS * 1000),
}


def _files(start: Start) -> dict[str, bytes]:
    program, *arguments = start.client
    # Without alwaysLoad it does not wait for the server: its model's first request has no tools of ours.
    server = {"type": "stdio", "command": program, "args": arguments, "env": {}, "alwaysLoad": True}
    server["timeout"] = TOOL_SECONDS * 1000
    return {_CONFIG: msgspec.json.encode({"mcpServers": {SERVER: server}})}


def _arguments(start: Start) -> list[str]:
    arguments = ["-p", "--output-format", "stream-json", "--verbose"]
    arguments += ["--mcp-config", start.path(_CONFIG), "--strict-mcp-config", *_permissions(start)]
    arguments += ["--model", start.options.model] if start.options.model else []
    return arguments + (["--resume", start.conversation] if start.conversation else [])


def _permissions(start: Start) -> list[str]:
    if start.free_hand:
        return ["--dangerously-skip-permissions"]
    # Settings of the workspace might allow more.
    return ["--tools", "", "--allowedTools", f"mcp__{SERVER}__*", "--setting-sources", "user"]


def _environment(start: Start) -> dict[str, str]:
    home = {"HOME": start.place.home, "CLAUDE_CONFIG_DIR": start.path(".claude")}
    # Without it root is refused a free hand, also in a sandbox.
    sandbox = {"IS_SANDBOX": "1"} if start.free_hand else {}
    return {**_SETTINGS, **start.variables, **home, **sandbox}


class _Block(Struct, frozen=True):
    type: str
    text: str = ""
    id: str = ""
    name: str = ""
    input: Raw = Raw(b"{}")
    tool_use_id: str = ""
    is_error: bool | None = None


class _Message(Struct, frozen=True):
    content: list[_Block] | str = ""


class _Usage(Struct, frozen=True):
    input_tokens: int = 0
    output_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0


class _Event(Struct, frozen=True):
    type: str
    subtype: str = ""
    session_id: str = ""
    message: Raw = Raw(b"{}")
    parent_tool_use_id: str | None = None
    result: str | None = None
    errors: list[str] = []
    is_error: bool = False
    usage: _Usage | None = None


_decode_event: Final = msgspec.json.Decoder(_Event).decode
_decode_message: Final = msgspec.json.Decoder(_Message).decode


class _Parser:
    def __init__(self) -> None:
        self._calls = Calls()

    def hear(self, line: bytes) -> Iterator[Heard]:
        event = _decode_event(line)
        if event.type == "system" and event.subtype == "init":
            yield Begun(event.session_id)
        elif event.type in ("assistant", "user"):
            yield from self._blocks(event)
        elif event.type == "result":
            yield from _end(event)

    def _blocks(self, event: _Event) -> Iterator[Heard]:
        content = _decode_message(event.message).content
        for block in content if isinstance(content, list) else []:
            # What a subagent says is for the agent that asked it.
            if block.type == "text" and event.type == "assistant" and event.parent_tool_use_id is None:
                yield Said(block.text)
            elif block.type == "tool_use":
                yield self._calls.begin(block.id, block.name, block.input)
            elif block.type == "tool_result":
                yield from self._calls.end(block.tool_use_id, is_error=bool(block.is_error))


def _end(event: _Event) -> Iterator[Heard]:
    if event.usage is not None:
        yield used(msgspec.structs.asdict(event.usage))
    failure = event.result or "; ".join(event.errors) or event.subtype
    yield Ended(failure=failure) if event.is_error else Ended(answer=event.result)


CLAUDE: Final = Profile(files=_files, arguments=_arguments, environment=_environment, parser=_Parser)
