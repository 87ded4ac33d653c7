"""Real agents in a real sandbox, asked by a caller over MCP, with a scripted model behind the model door.

Issue 6, "Shown by": each calls a caller tool three times, twice in parallel, gets a tool error once, and ends its turn
with the answer; a second message continues the conversation. The agents see their model and their caller, and no more.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.helpers.mcp_caller import McpCaller, open_mcp_caller
from tests.helpers.process import DaemonProcess
from tests.helpers.scripted_model import ScriptedModel, serve

BIN = Path(__file__).parent.parent / "agents" / "node_modules" / ".bin"
# Beyond anything that a loaded machine needs: OpenCode alone starts for 5 s of CPU.
PATIENCE = 150
KEY = "canary-71c1c0de"
LOOK = {"call": "myapp_look", "arguments": {"at": "here"}}
SCRIPT: list[dict[str, Any]] = [
    {"calls": [LOOK]},
    {"calls": [{"call": "myapp_look", "arguments": {"at": at}} for at in ("left", "right")]},
    {"calls": [{"call": "myapp_fail"}]},
    {"say": "all done: {last}"},
]
TOOLS = [
    {
        "name": "look",
        "description": "Looks",
        "inputSchema": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
        # Claude Code runs calls in parallel only where it is told that they change nothing.
        "annotations": {"readOnlyHint": True},
    },
    {"name": "fail", "description": "Fails", "inputSchema": {"type": "object"}},
]
needs_bubblewrap = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="bubblewrap is not installed: apt install bubblewrap"
)
CONTEXT = {"caller_id": "myapp", "caller_tools": TOOLS}
AGENTS = ("claude", "codex", "opencode", "acp")


def config_of(model: str) -> str:
    """The profiles of all agents, each pointed at `model`, in bubblewrap with `network: model`."""
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{model}/v1", "apiKey": "{env:MODEL_KEY}"},
        "models": {"gpt-5": {"name": "gpt-5"}},
    }
    opencode = {"provider": {"x": provider}, "enabled_providers": ["x"], "model": "x/gpt-5", "small_model": "x/gpt-5"}
    key = {"MODEL_KEY": "${MODEL_KEY}"}
    endpoint = {"model": "gpt-5", "base_url": f"{model}/v1", "api_key_env": "MODEL_KEY", "env": key}
    profiles = {
        "claude": {
            "type": "claude",
            "command": [str(BIN / "claude")],
            "env": {"ANTHROPIC_BASE_URL": model, "ANTHROPIC_API_KEY": "${MODEL_KEY}"},
        },
        "codex": {"type": "codex", "command": [str(BIN / "codex")], **endpoint},
        "opencode": {"type": "opencode", "command": [str(BIN / "opencode")], **endpoint},
        "acp": {
            "type": "acp",
            "command": [str(BIN / "opencode"), "acp"],
            "model": "x/gpt-5",
            "env": {**key, "OPENCODE_CONFIG_CONTENT": json.dumps(opencode)},
        },
    }
    runtime = {"kind": "bubblewrap", "network": "model", "model_hosts": [model.removeprefix("http://")]}
    # JSON is YAML.
    agents = {"default": "claude", "profiles": profiles}
    return f"runtime: {json.dumps(runtime)}\nagents: {json.dumps(agents)}\n"


@pytest.fixture
def world() -> Iterator[tuple[DaemonProcess, ScriptedModel]]:
    with serve(SCRIPT) as model, DaemonProcess(config_of(model.url), environ={"MODEL_KEY": KEY}) as daemon:
        yield daemon, model
        assert daemon.stop() == 0
        # Item 6: provider keys are in no file of the daemon's, events and logs included.
        holding = [path for path in daemon.root.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
        assert holding == []


class Caller:
    """Runs the tools of the caller; `calls` are those that came, `most` how many were open at once."""

    def __init__(self, mcp: McpCaller) -> None:
        self.mcp = mcp
        self.calls: list[Any] = []
        self.events: list[Any] = []
        self.most = 0
        self._open: dict[str, Any] = {}

    async def turn(self, **message: Any) -> Any:
        """Sends a message and answers what the agent asks until its turn has ended; returns the last event."""
        session = await self.mcp.call("session_message", **message)
        while True:
            event = await self.mcp.next()
            self.events.append(event)
            if event["type"] == "caller_tool_request":
                await self._take(event)
            elif event["type"] in ("turn_completed", "session_ended"):
                return {**event, "session_id": session["session_id"]}

    async def _take(self, request: Any) -> None:
        self.calls.append((request["tool"], request["arguments"]))
        self._open[request["request_id"]] = request
        self.most = max(self.most, len(self._open))
        # The two that are to be parallel are answered when both are there.
        if request["arguments"].get("at") in ("left", "right") and len(self._open) < 2:
            return
        for id, one in list(self._open.items()):
            outcome = {"error": "it fails"} if one["tool"] == "fail" else {"result": {"saw": one["arguments"]["at"]}}
            await self.mcp.call("caller_tool_response", session_id=one["session_id"], request_id=id, **outcome)
            del self._open[id]

    def of(self, kind: str) -> list[Any]:
        return [event for event in self.events if event["type"] == kind]


@asynccontextmanager
async def calling(daemon: DaemonProcess) -> AsyncIterator[Caller]:
    with trio.fail_after(PATIENCE):
        async with open_mcp_caller(daemon.url, daemon.admin_token) as mcp:
            yield Caller(mcp)


@needs_bubblewrap
@pytest.mark.parametrize("agent", AGENTS)
async def test_an_agent_works_for_its_caller(agent: str, world: tuple[DaemonProcess, ScriptedModel]) -> None:
    program = BIN / agent.replace("acp", "opencode")
    if not program.exists():
        pytest.skip(f"{program.name} is not installed: npm ci --prefix tests/agents")
    daemon, model = world
    async with calling(daemon) as caller:
        first = await caller.turn(message="do it", agent=agent, context=CONTEXT)
        assert first["type"] == "turn_completed", caller.events[-3:]
        assert first["text"].startswith("all done: ")
        assert "it fails" in first["text"]
        assert sorted(str(call) for call in caller.calls) == sorted(
            str(call)
            for call in [
                ("look", {"at": "here"}),
                ("look", {"at": "left"}),
                ("look", {"at": "right"}),
                ("fail", {}),
            ]
        )
        assert caller.most == 2
        assert [event["tool"] for event in caller.of("tool_call")].count("myapp_look") == 3
        assert sorted(event["is_error"] for event in caller.of("tool_result")) == [False, False, False, True]
        (started,) = caller.of("session_started")
        assert (started["agent"], started["runtime"]) == (agent, "bubblewrap")
        second = await caller.turn(message="and then?", session_id=first["session_id"])
        assert second["type"] == "turn_completed", caller.events[-3:]
        # The model was shown the first turn with the second.
        assert [said for said in model.asked[-1].users if "do it" in said or "and then?" in said][-2:] != []
        assert any("do it" in said for said in model.asked[-1].users)
        assert len(model.asked[-1].results) == 4
        await caller.mcp.call("session_end", session_id=first["session_id"])
