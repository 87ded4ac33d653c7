"""The same caller, unchanged, in both eras: with the official Python SDK and with the official TypeScript SDKs.

It declares a tool, starts a turn and waits for it, answers what the agent asks meanwhile, and gets what the agent said.
The agent is the demo's, with a real `oubliette-client` beside it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import LoggingMessageNotificationParams

from tests.helpers.process import DaemonProcess

LIMIT = 30
CLIENTS = Path(__file__).parents[1] / "clients"
OLDEST_NODE = 20
REVISIONS = {"auto": "2026-07-28", "legacy": "2025-11-25"}
PROMPT = 'call myapp_add {"a": 1, "b": 2}'
ANSWERED = 'myapp_add answered: {"sum":3}'
CONTEXT = {"caller_id": "myapp", "caller_tools": [{"name": "add"}]}

modes = pytest.mark.parametrize("mode", REVISIONS)


# Python


class Caller:
    """What a user of the SDK would write, whatever the revision."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.events: list[str] = []
        self._send, self._receive = trio.open_memory_channel[Any](1000)

    async def log(self, params: LoggingMessageNotificationParams) -> None:
        self._send.send_nowait(params.data)

    async def serve(self, client: Client) -> str:
        """Returns what the agent said in the turn."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._answer, client)
            turn = await client.call_tool("session_message", {"message": PROMPT, "context": CONTEXT, "wait": True})
        assert turn.structured_content is not None
        return str(turn.structured_content["text"])

    async def _answer(self, client: Client) -> None:
        """Answers what comes until the turn has ended."""
        while "turn_completed" not in self.events:
            event = await self._receive.receive()
            self.events.append(event["type"])
            if event["type"] == "caller_tool_request":
                self.asked.append((event["tool"], event["arguments"]))
                result = {"sum": event["arguments"]["a"] + event["arguments"]["b"]}
                answer = {"session_id": event["session_id"], "request_id": event["request_id"], "result": result}
                await client.call_tool("caller_tool_response", answer)


# The SDK leaves the generators of a response stream to the garbage collector once it has the answer.
@pytest.mark.filterwarnings("ignore:Async generator 'http(x|core)2:ResourceWarning")
@modes
async def test_a_python_caller_serves_an_agent(daemon: DaemonProcess, mode: Any) -> None:
    caller = Caller()
    headers = {"Authorization": f"Bearer {daemon.admin_token}"}
    with trio.fail_after(LIMIT):
        async with httpx2.AsyncClient(headers=headers, timeout=LIMIT) as http:
            transport = streamable_http_client(f"{daemon.url}/mcp", http_client=http)
            async with Client(transport, mode=mode, log_level="info", logging_callback=caller.log) as client:
                assert client.session.protocol_version == REVISIONS[mode]
                said = await caller.serve(client)
    assert caller.asked == [("add", {"a": 1, "b": 2})]
    assert said.splitlines()[-1] == ANSWERED
    assert "caller_tool_resolved" in caller.events


# TypeScript


@pytest.fixture(scope="module")
def node() -> str:
    """The `node` that runs the scripts of `tests/clients`."""
    found = shutil.which("node")
    if found is None:
        pytest.skip(f"node, version {OLDEST_NODE} or newer, is not on the PATH")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=True, timeout=LIMIT).stdout
    if int(version.removeprefix("v").partition(".")[0]) < OLDEST_NODE:
        pytest.skip(f"node is {version.strip()}; {OLDEST_NODE} or newer is needed")
    if not (CLIENTS / "node_modules").is_dir():
        pytest.skip("tests/clients/node_modules is missing: npm ci --prefix tests/clients")
    return found


@modes
async def test_a_typescript_caller_serves_an_agent(daemon: DaemonProcess, node: str, mode: str) -> None:
    environ = {**os.environ, "OUBLIETTE_URL": daemon.url, "OUBLIETTE_TOKEN": daemon.admin_token, "PROMPT": PROMPT}
    with trio.fail_after(LIMIT):
        done = await trio.run_process(
            [node, CLIENTS / "caller.mjs", mode], env=environ, capture_stdout=True, capture_stderr=True, check=False
        )
    assert (done.returncode, done.stderr) == (0, b"")
    said = json.loads(done.stdout)
    assert (said["revision"], said["errors"]) == (REVISIONS[mode], [])
    assert said["asked"] == [["add", {"a": 1, "b": 2}]]
    assert said["text"].splitlines()[-1] == ANSWERED
    assert said["events"][-1] == "turn_completed"
