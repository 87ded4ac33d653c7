"""The examples as somebody runs them who has just read them, against `python -m oubliette serve`."""

from __future__ import annotations

import ast
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from oubliette.cli.client import DaemonClient
from tests.helpers.http import Api
from tests.helpers.process import DaemonProcess

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE = 30
# The tools that an agent has beside the client's own and its caller's.
OT = "ot_tools, ot_packs, ot_aliases, ot_snippets, ot_config, ot_health, ot_notify"
AGENT = [sys.executable, str(EXAMPLES / "agent.py")]
CALLERS = {"python": [sys.executable, str(EXAMPLES / "caller.py")], "shell": [str(EXAMPLES / "caller.sh")]}
callers = pytest.mark.parametrize("command", CALLERS.values(), ids=CALLERS)
FAILING_AGENT = """
agents:
  profiles:
    command: {type: command, command: [sh, -c, 'echo cannot work; exit 3']}
"""


def environment(daemon: DaemonProcess | None = None, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OUBLIETTE_")}
    if daemon is not None:
        kept |= {"OUBLIETTE_URL": daemon.url, "OUBLIETTE_TOKEN": daemon.admin_token}
    return {**kept, **more}


def run(command: list[str], environ: dict[str, str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environ, input=stdin, capture_output=True, text=True, timeout=PATIENCE)


# The callers


def newest_session(daemon: DaemonProcess) -> Any:
    """Returns the session that was started last, an empty one where there is none."""
    listed = DaemonClient(daemon.url, daemon.admin_token).call_tool("session_list", {"limit": 1})["sessions"]
    return listed[0] if listed else {}


@callers
def test_a_caller_runs_its_tool_for_the_agent(daemon: DaemonProcess, command: list[str]) -> None:
    before = newest_session(daemon)
    done = run(command, environment(daemon))
    assert (done.returncode, done.stderr) == (0, "")
    said = done.stdout.splitlines()
    assert said[-1] == 'agent: myapp_send_notification answered: {"status": "sent"}'
    # The agent's words come through a pipe and its call through a socket: between the two there is no order.
    assert sorted(said[:-1]) == [
        'agent: calling myapp_send_notification {"message": "The build is green"}',
        f"agent: tools: session_message, project_list, myapp_send_notification, {OT}",
        "notification: The build is green",
    ]
    after = newest_session(daemon)
    assert after["session_id"] != before.get("session_id")
    assert after["status"] == "ended"


@callers
def test_a_caller_that_is_refused_says_why(daemon: DaemonProcess, command: list[str]) -> None:
    token = f"oub_0123456789ab_{'ab' * 32}"
    done = run(command, environment(daemon, OUBLIETTE_TOKEN=token))
    assert (done.returncode, done.stdout) == (1, "")
    assert "unauthorized" in done.stderr
    assert token not in done.stderr


@callers
def test_a_caller_hears_of_an_agent_that_failed(command: list[str]) -> None:
    with DaemonProcess(FAILING_AGENT) as daemon:
        done = run(command, environment(daemon))
    assert (done.returncode, done.stdout) == (1, "agent: cannot work\n")
    assert done.stderr == "the agent failed\n"


def test_the_python_caller_is_short_and_stands_alone() -> None:
    source = (EXAMPLES / "caller.py").read_text()
    assert len(source.splitlines()) < 40
    nodes = list(ast.walk(ast.parse(source)))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names


def test_the_shell_caller_keeps_the_token_out_of_every_argument(daemon: DaemonProcess, tmp_path: Path) -> None:
    curl = shutil.which("curl")
    assert curl is not None
    noted = tmp_path / "arguments"
    wrapper = tmp_path / "curl"
    wrapper.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >> {noted}\nexec {curl} "$@"\n')
    wrapper.chmod(0o700)
    done = run(CALLERS["shell"], environment(daemon, PATH=f"{tmp_path}:{os.environ['PATH']}"))
    assert done.returncode == 0
    assert f"{daemon.url}/sessions" in noted.read_text()
    assert daemon.admin_token not in noted.read_text()


# The agent


async def serve_calls(api: Api, session: Any, answers: list[dict[str, Any]], asked: list[Any]) -> None:
    """Plays the caller: answers each request with the next of `answers`."""
    async with api.events(f"/sessions/{session['session_id']}/events?since_index=0") as events:
        for answer in answers:
            _, request = await events.next_of("caller_tool_request")
            asked.append((request["tool"], request["arguments"]))
            await api.answer(session, request["request_id"], **answer)


async def run_agent(
    api: Api, *tools: str, arguments: list[str], answers: list[dict[str, Any]], stdin: bytes = b""
) -> tuple[list[str], list[Any]]:
    """Runs the agent beside a real client; returns what it said, and what the caller was asked."""
    session = await api.start_session(*tools)
    client = shlex.join([sys.executable, "-m", "oubliette_client", "--socket", session["socket"]])
    asked: list[Any] = []
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_calls, api, session, answers, asked)
            done = await trio.run_process(
                [*AGENT, *arguments], stdin=stdin, capture_stdout=True, env=environment(OUBLIETTE_CLIENT=client)
            )
    return done.stdout.decode().splitlines(), asked


async def test_the_agent_makes_the_calls_that_its_prompt_lists(api: Api) -> None:
    prompt = 'Do this:\ncall myapp_one {"text": "Grüße\\n"}\ncall myapp_two\nthat is all'
    said, asked = await run_agent(
        api, "one", "two", arguments=[prompt], answers=[{"result": "fine"}, {"error": "out of order"}]
    )
    assert asked == [("one", {"text": "Grüße\n"}), ("two", {})]
    assert said == [
        f"tools: session_message, project_list, myapp_one, myapp_two, {OT}",
        'calling myapp_one {"text": "Grüße\\n"}',
        'myapp_one answered: "fine"',
        "calling myapp_two {}",
        "myapp_two failed: out of order",
    ]


async def test_the_agent_takes_free_text_to_the_first_tool_of_the_caller(api: Api) -> None:
    said, asked = await run_agent(
        api, "tell", "other", arguments=[], stdin=b"call me Ishmael\n", answers=[{"result": None}]
    )
    assert asked == [("tell", {"message": "call me Ishmael\n"})]
    assert said[-1] == "myapp_tell answered: null"


async def test_the_agent_shows_what_a_tool_returns_besides_text(api: Api) -> None:
    image = {"type": "image", "data": "AA==", "mimeType": "image/png"}
    content = [{"type": "text", "text": "a line\nand another"}, image]
    said, _ = await run_agent(api, "draw", arguments=["call myapp_draw"], answers=[{"result": {"content": content}}])
    assert said[-3:] == ["myapp_draw answered: a line", "and another", "[image]"]


async def test_the_agent_without_a_tool_of_the_caller_only_says_so(api: Api) -> None:
    said, asked = await run_agent(api, arguments=["hello"], answers=[])
    assert asked == []
    assert [line.partition(" ")[0] for line in said] == ["tools:"]


PINGS = """
import json, sys
def answer(id, result): print(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}), flush=True)
answer(json.loads(sys.stdin.readline())["id"], {"protocolVersion": "2025-11-25"})
assert "initialized" in sys.stdin.readline()
listing = json.loads(sys.stdin.readline())["id"]
print(json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {}}), flush=True)
print(json.dumps({"jsonrpc": "2.0", "id": listing, "method": "ping"}), flush=True)
assert json.loads(sys.stdin.readline()) == {"jsonrpc": "2.0", "id": listing, "result": {}}
answer(listing, {"tools": []})
sys.stdin.read()
"""


def test_the_agent_answers_a_ping_and_passes_notifications_over() -> None:
    done = run([*AGENT, "hello"], environment(OUBLIETTE_CLIENT=shlex.join([sys.executable, "-c", PINGS])))
    assert (done.returncode, done.stdout, done.stderr) == (0, "tools: none\n", "")


REFUSES = """
import json, sys
id = json.loads(sys.stdin.readline())["id"]
print(json.dumps({"jsonrpc": "2.0", "id": id, "error": {"code": -32602, "message": "not with me"}}), flush=True)
"""


@pytest.mark.parametrize(
    ("client", "reason"),
    [
        ([], "OUBLIETTE_CLIENT is not set"),
        (["/no/such/program"], "cannot start the MCP server /no/such/program: "),
        (["true"], "the MCP server ended before it answered initialize"),
        (["echo", "hello"], "a message of the MCP server: not JSON: "),
        (["echo", "[]"], "a message of the MCP server: not a JSON object: []"),
        ([sys.executable, "-c", REFUSES], "the MCP server refused initialize: not with me"),
    ],
)
def test_the_agent_says_why_it_cannot_go_on(client: list[str], reason: str) -> None:
    done = run([*AGENT, "hello"], environment(OUBLIETTE_CLIENT=shlex.join(client)))
    assert (done.returncode, done.stdout) == (1, "")
    # A server that is gone may be noticed on writing to it as well.
    assert reason in done.stderr or done.stderr == "the MCP server has ended\n"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ("call myapp_x {broken", "the arguments of myapp_x: not JSON: "),
        ("call nothing_at_all", "the MCP server refused tools/call: "),
    ],
)
async def test_the_agent_says_what_is_wrong_with_its_prompt(api: Api, prompt: str, reason: str) -> None:
    session = await api.start_session("x")
    client = shlex.join([sys.executable, "-m", "oubliette_client", "--socket", session["socket"]])
    with trio.fail_after(PATIENCE):
        done = await trio.run_process(
            [*AGENT, prompt],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env=environment(OUBLIETTE_CLIENT=client),
        )
    assert done.returncode == 1
    assert done.stderr.decode().startswith(reason)


def test_there_is_one_source_of_the_agent() -> None:
    link = EXAMPLES / "agent.py"
    assert link.is_symlink()
    assert os.readlink(link) == "../oubliette/demo/agent.py"


# The configuration


def test_the_shipped_configuration_runs_the_shipped_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """As somebody does who starts the daemon in the checkout with `--config examples/oubliette.yaml`."""
    monkeypatch.chdir(EXAMPLES.parent)
    with DaemonProcess((EXAMPLES / "oubliette.yaml").read_text()) as daemon:
        done = run(CALLERS["python"], environment(daemon))
        assert (done.returncode, done.stderr) == (0, "")
        assert newest_session(daemon)["caller_tools"] == ["send_notification"]


# The README


def test_the_caller_of_the_readme_answers_the_agent(daemon: DaemonProcess, tmp_path: Path) -> None:
    readme = (EXAMPLES.parent / "README.md").read_text()
    source = readme.partition("```python\n")[2].partition("```")[0]
    script = tmp_path / "caller.py"
    # Its own home and port are those of a daemon that runs with the defaults.
    script.write_text(source.replace(", 8080)", f", {daemon.port})"))
    home = tmp_path / "home" / ".local" / "share" / "oubliette"
    home.mkdir(parents=True)
    (home / "admin.token").write_text(daemon.admin_token)
    with subprocess.Popen(
        [sys.executable, "-u", script], env=environment(HOME=str(tmp_path / "home")), stdout=subprocess.PIPE, text=True
    ) as caller:
        assert caller.stdout is not None
        try:
            assert caller.stdout.readline() == "the agent calls send_notification {'message': 'say hello'}\n"
        finally:
            caller.kill()
