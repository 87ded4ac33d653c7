"""Real agents with a scripted model, each in a sandbox that is this host, beside a stub of a session's socket.

Issue 6, "Shown by": three calls of a caller's tools, two of them in parallel, a tool's error once, the answer; a second
message continues the conversation.
"""

from __future__ import annotations

import os
import socket
import tempfile
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from oubliette.agents.base import Agent, Conversation, ToolOutcome, ToolUse, TurnResult
from oubliette.agents.known import AGENTS
from oubliette.agents.profile import Options, Permissions
from tests.helpers.sandbox import HostSandbox, Told
from tests.helpers.scripted_model import ScriptedModel, serve
from tests.helpers.stub_relay import Arguments, StubRelay, ToolError, stub_relay
from tests.helpers.waiting import until

pytestmark = pytest.mark.heavy
BIN = Path(__file__).parent.parent / "agents" / "node_modules" / ".bin"
# Beyond anything that a loaded machine needs: OpenCode starts for 5 s of CPU.
PATIENCE = 300
# More than any agent takes to be interrupted.
END_SECONDS = 20
KEY = "canary-model-5f0c2d1e"
CLIENT_KEY = "canary-client-81c3a7f2"
MODEL = "gpt-5"
TOOLS: list[Any] = [
    # Claude Code runs calls in parallel only where it is told that they change nothing.
    {
        "name": "look",
        "inputSchema": {"type": "object", "properties": {"at": {"type": "string"}}},
        "annotations": {"readOnlyHint": True},
        "timeout_seconds": 60,
    },
    {"name": "fail", "inputSchema": {"type": "object"}, "timeout_seconds": 60},
    {"name": "wait", "inputSchema": {"type": "object"}, "timeout_seconds": 60},
]
LOOK = {"call": "myapp_look", "arguments": {"at": "1.10"}}
SCRIPT = [
    {"calls": [LOOK]},
    {"calls": [{"call": "myapp_look", "arguments": {"at": at}} for at in ("left", "right")]},
    {"calls": [{"call": "myapp_fail"}]},
    {"say": "all done: {last}"},
]


def claude(model: str, permissions: Permissions) -> Agent:
    environment = {"ANTHROPIC_BASE_URL": model, "ANTHROPIC_API_KEY": KEY, "CLAUDE_CODE_MAX_RETRIES": "0"}
    return AGENTS["claude"](
        Options(command=(program("claude"),), environment=environment, model="claude-x", permissions=permissions)
    )


def codex(model: str, permissions: Permissions) -> Agent:
    return AGENTS["codex"](endpoint("codex", model, permissions))


def opencode(model: str, permissions: Permissions) -> Agent:
    return AGENTS["opencode"](endpoint("opencode", model, permissions))


def endpoint(name: str, model: str, permissions: Permissions) -> Options:
    return Options(
        command=(program(name),),
        environment={"MODEL_KEY": KEY},
        model=MODEL,
        permissions=permissions,
        base_url=f"{model}/v1",
        api_key_env="MODEL_KEY",
    )


def opencode_acp(model: str, permissions: Permissions) -> Agent:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{model}/v1", "apiKey": "{env:MODEL_KEY}"},
        "models": {name: {"name": name} for name in (MODEL, "other")},
    }
    config = {
        "provider": {"x": provider},
        "enabled_providers": ["x"],
        "model": "x/other",
        "small_model": "x/other",
        "permission": {"*": "ask"},
    }
    environment = {"MODEL_KEY": KEY, "OPENCODE_CONFIG_CONTENT": msgspec.json.encode(config).decode()}
    command = (program("opencode"), "acp")
    return AGENTS["acp"](Options(command=command, environment=environment, model=f"x/{MODEL}", permissions=permissions))


def program(name: str) -> str:
    if not (BIN / name).exists():
        pytest.skip(f"{name} is not installed: npm ci --prefix tests/agents")
    return str(BIN / name)


Make = Callable[[str, Permissions], Agent]
ALL: list[Make] = [claude, codex, opencode, opencode_acp]


class Lab:
    """An agent at work: its model, its caller, its sandbox."""

    def __init__(self, make: Make, permissions: Permissions, script: list[Any]) -> None:
        self._make = make
        self._permissions: Permissions = permissions
        self._script = script
        # Where a test needs it, tools wait here.
        self.gate = trio.Event()
        self.waiting = trio.Event()
        self._pair = 0
        self._paired = trio.Event()
        self.model: ScriptedModel
        self.relay: StubRelay
        self.sandbox: HostSandbox
        self.conversation: Conversation

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Lab]:
        # Short: a socket's path has 107 bytes.
        with tempfile.TemporaryDirectory(prefix="oub-") as name, serve(self._script) as self.model:
            self.sandbox = HostSandbox(Path(name), socket=f"{name}/relay.sock")
            agent = self._make(self.model.url, self._permissions)
            async with (
                stub_relay(f"{name}/relay.sock", self.answer, TOOLS) as self.relay,
                agent.converse(self.sandbox) as self.conversation,
            ):
                yield self

    async def answer(self, tool: str, arguments: Arguments) -> Any:
        if tool == "fail":
            raise ToolError("the disk is full")
        if tool == "wait":
            self.waiting.set()
            await self.gate.wait()
        if arguments.get("at") in ("left", "right"):
            # Neither is answered before both were asked.
            self._pair += 1
            if self._pair == 2:
                self._paired.set()
            await self._paired.wait()
        return {"at": arguments.get("at")}

    async def turn(self, prompt: str) -> tuple[TurnResult, Told]:
        told = Told()
        with trio.fail_after(PATIENCE):
            return await self.conversation.turn(told.turn(prompt, OUBLIETTE_API_KEY=CLIENT_KEY)), told


@pytest.mark.parametrize("make", ALL)
async def test_an_agent_uses_the_callers_tools_and_remembers(make: Make) -> None:
    async with Lab(make, "sandbox", SCRIPT).open() as lab:
        result, told = await lab.turn("-x begin 'here'")
        assert (result.exit_code, result.complaint if result.exit_code else "") == (0, "")
        check_first_turn(lab, result, told)
        result, told = await lab.turn("go on")
        assert (result.exit_code, told.texts) == (0, [result.text])
        # The second turn's model has the whole first turn before it.
        last = lab.model.asked[-1]
        assert len(last.results) == 4
        assert ["begin" in text or "go on" in text for text in last.users[-2:]] == [True, True]
        assert len(lab.relay.calls) == 4
        check_secrets(lab)


def check_first_turn(lab: Lab, result: TurnResult, told: Told) -> None:
    """WIRE section 5: message, tool_call, tool_result, and the answer with its usage."""
    assert result.text.startswith("all done: ")
    assert result.text.endswith("the disk is full")
    assert told.texts[-1] == result.text
    assert result.usage is not None
    assert result.usage["input_tokens"] >= 1
    uses = [report for report in told.reports if isinstance(report, ToolUse)]
    assert [use.tool for use in uses] == ["myapp_look"] * 3 + ["myapp_fail"]
    assert bytes(uses[0].arguments) == b'{"at":"1.10"}'
    assert {bytes(use.arguments) for use in uses[1:3]} == {b'{"at":"left"}', b'{"at":"right"}'}
    ends = [report for report in told.reports if isinstance(report, ToolOutcome)]
    assert [(end.tool, end.is_error) for end in ends] == [("myapp_look", False)] * 3 + [("myapp_fail", True)]
    assert lab.relay.most == 2


def check_secrets(lab: Lab) -> None:
    """Issue 6, item 6: the keys were used, and stand on no command line and in no file."""
    assert {asked.key for asked in lab.model.asked} == {KEY}
    assert set(lab.relay.keys) == {CLIENT_KEY}
    folder = Path(lab.sandbox.place.home).parent
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 2
    for secret in (KEY, CLIENT_KEY):
        assert not [argument for ran in lab.sandbox.programs for argument in ran.argv if secret in argument]
        assert secret not in repr(lab.sandbox.programs)
        assert [path for path in files if secret.encode() in path.read_bytes()] == []
    assert list(Path(lab.sandbox.place.workspace).iterdir()) == []


@pytest.mark.parametrize("make", ALL)
async def test_an_interrupted_turn_is_part_of_the_conversation(make: Make) -> None:
    """WIRE section 5: a message with `interrupt` ends the turn first."""
    script = [{"calls": [{"call": "myapp_wait"}]}, {"say": "after that"}]
    async with Lab(make, "tools", script).open() as lab:
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lab.conversation.turn, Told().turn("remember the walnut"))
                await lab.waiting.wait()
                check_only_ours(lab, make)
                check_ports(lab)
                begun = trio.current_time()
                nursery.cancel_scope.cancel()
        assert trio.current_time() - begun < END_SECONDS
        if make is not opencode_acp:
            # Codex's servers lead groups of their own: this sandbox cannot end them, so they do it themselves.
            await until(lambda: not processes(lab.sandbox.place.socket))
        lab.gate.set()
        result, _ = await lab.turn("go on")
        assert (result.exit_code, result.text) == (0, "after that")
        assert [text for text in lab.model.asked[-1].users if "walnut" in text]
        assert len(lab.sandbox.programs) == (1 if make is opencode_acp else 2)
    await until(lambda: not processes(lab.sandbox.place.socket))


def check_only_ours(lab: Lab, make: Make) -> None:
    """Without a free hand an agent has the caller's tools, and none that reach the machine."""
    kept = {"list_mcp_resources", "list_mcp_resource_templates", "read_mcp_resource", "request_user_input"}
    kept |= {"get_goal", "create_goal", "update_goal"}
    others = [tool for tool in lab.model.asked[-1].tools if "oubliette" not in tool]
    # What an agent does of its own over ACP is up to its configuration: it is asked about, and refused.
    assert make is opencode_acp or set(others) <= kept, others


def check_ports(lab: Lab) -> None:
    """HAZARDS T37: an agent's own server is on loopback, and closed to whoever has no password."""
    for address, port in listening(lab.sandbox.place.socket):
        assert address == "127.0.0.1"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/session", timeout=10)


def listening(path: str) -> Iterator[tuple[str, int]]:
    """Yields where processes listen whose environment names a session's socket."""
    sockets = {
        os.readlink(link) for folder in processes(path) for link in (folder / "fd").iterdir() if link.is_symlink()
    }
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
            address, _, port = fields[1].partition(":")
            yield socket.inet_ntoa(bytes.fromhex(address)[::-1]), int(port, 16)


def processes(path: str) -> list[Path]:
    return [folder for folder in Path("/proc").iterdir() if is_of(folder, path)]


def is_of(process: Path, path: str) -> bool:
    try:
        return f"OUBLIETTE_SOCKET={path}\0".encode() in (process / "environ").read_bytes()
    except OSError:
        return False


@pytest.mark.parametrize("make", [claude, codex])
async def test_an_agent_whose_model_refuses_fails_in_words(make: Make) -> None:
    """OpenCode's words are among the recorded streams: it takes too long to start to hear them again each time."""
    async with Lab(make, "sandbox", SCRIPT).open() as lab:
        lab.model.error = 401
        result, _ = await lab.turn("begin")
        assert result.exit_code != 0
        assert "401" in result.complaint
