"""Real agents in a daemon with a scripted model, and the caller that they work for."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.helpers.mcp_caller import McpCaller, open_mcp_caller
from tests.helpers.process import DaemonProcess
from tests.helpers.sandboxed import give_bundle
from tests.helpers.scripted_model import ScriptedModel, serve

BIN = Path(__file__).parent.parent / "agents" / "node_modules" / ".bin"
# Beyond anything that a loaded machine needs: OpenCode alone starts for 5 s of CPU.
PATIENCE = 150
KEY = "canary-71c1c0de"
LOOK = {"call": "myapp_look", "arguments": {"at": "here"}}
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
CONTEXT = {"caller_id": "myapp", "caller_tools": TOOLS}


def program_of(agent: str) -> Path:
    """Returns the program of an agent. Skips the test where it is not installed."""
    program = BIN / agent.replace("acp", "opencode")
    if not program.exists():
        pytest.skip(f"{program.name} is not installed: npm ci --prefix tests/agents")
    return program


def config_of(model: str, runtime: Mapping[str, Any]) -> str:
    """The profiles of all agents, each pointed at `model`, in `runtime` with `network: model`."""
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
    network = {"network": "model", "model_hosts": [model.removeprefix("http://")]}
    # JSON is YAML.
    agents = {"default": "claude", "profiles": profiles}
    return f"runtime: {json.dumps({**runtime, **network})}\nagents: {json.dumps(agents)}\n"


@contextmanager
def agent_world(
    script: Sequence[dict[str, Any]], runtime: Mapping[str, Any], environ: Mapping[str, str] = {}
) -> Iterator[tuple[DaemonProcess, ScriptedModel]]:
    """A daemon whose agents run in `runtime`, and a model that follows `script`, as long as the block."""
    with serve(script) as model:
        daemon = DaemonProcess(config_of(model.url, runtime), environ={"MODEL_KEY": KEY, **environ})
        give_bundle(daemon)
        with daemon:
            yield daemon, model
            assert daemon.stop() == 0
            # Issue 6, item 6: provider keys are in no file of the daemon's, events and logs included.
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
    """A caller over MCP."""
    with trio.fail_after(PATIENCE):
        async with open_mcp_caller(daemon.url, daemon.admin_token) as mcp:
            yield Caller(mcp)
