"""A daemon whose projects run agents in each runtime that works here, and what the host sees of their sandboxes.

Agents are shell or Python scripts: a session's message is its agent's program.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec import Struct

from oubliette.hiring import BUNDLES
from oubliette.runtimes.cgroups import find_groups
from oubliette.runtimes.engine import SESSION_LABEL, list_command
from oubliette.runtimes.instance import group_prefix
from tests.helpers.http import Api, EventReader
from tests.helpers.mcp_http import initialized
from tests.helpers.process import DaemonProcess
from tests.helpers.runtimes import image, made_bundle, podman_environment
from tests.helpers.waiting import until

# Small enough to be reached in no time, and enough for Python, a client and what starts them.
LIMITS: Mapping[str, Any] = {"memory": "160m", "cpus": 2, "pids": 48}
AGENTS = {
    "default": "shell",
    "profiles": {
        "shell": {"type": "command", "command": ["sh", "-c", "{prompt}"]},
        "python": {"type": "command", "command": ["python3", "-c", "{prompt}"]},
    },
}
# An agent calls `call(tool, arguments)` of this, which is what it is answered, and is shown `TOOLS`.
CLIENT = """
import itertools, json, os, shlex, subprocess, sys, time
client = subprocess.Popen(shlex.split(os.environ["OUBLIETTE_CLIENT"]), stdin=-1, stdout=-1, text=True)
ids = itertools.count(1)
def send(**message):
    client.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\\n")
    client.stdin.flush()
def ask(method, **params):
    id = next(ids)
    send(id=id, method=method, params=params)
    while (answer := json.loads(client.stdout.readline())).get("id") != id:
        pass
    return answer["result"]
def call(tool, **arguments):
    result = ask("tools/call", name=tool, arguments=arguments)
    return ("error: " if result.get("isError") else "") + result["content"][0]["text"]
def say(text):
    print(text, flush=True)
started = ask("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={"name": "a", "version": "1"})
send(method="notifications/initialized")
TOOLS = [tool["name"] for tool in ask("tools/list")["tools"]]
"""


def config_of(runtime: Mapping[str, Any], **more: Any) -> str:
    """Returns a configuration whose agents are scripts."""
    sections = {"runtime": {**LIMITS, **runtime}, "agents": AGENTS, "relay": {"attach_grace_seconds": 20}, **more}
    # JSON is YAML.
    return "\n".join(f"{name}: {json.dumps(section)}" for name, section in sections.items())


def podman_or_why() -> tuple[Mapping[str, str], str, str]:
    """Returns what podman needs in its environment, an image for it, and why it does not work here."""
    try:
        return podman_environment(), image(), ""
    except pytest.skip.Exception as skipped:
        return {}, "", str(skipped)


class Site:
    """A daemon, and a project for each runtime. Used as a context manager: the daemon runs as long as the block."""

    def __init__(self, config: str, environ: Mapping[str, str] | None = None) -> None:
        self.daemon = DaemonProcess(config, environ=dict(environ or {}))
        self.projects: dict[str, str] = {}

    def __enter__(self) -> Site:
        # The bundle takes a second to compile, and is the same for every daemon.
        bundle = made_bundle()
        self.daemon.data_dir.mkdir(mode=0o700)
        shutil.copytree(bundle, self.daemon.data_dir / BUNDLES / bundle.name)
        self.daemon.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self.daemon.__exit__(*raised)

    @property
    def api(self) -> Api:
        return Api(self.daemon.port, self.daemon.admin_token)

    async def tool(self, tool: str, /, **arguments: Any) -> Any:
        """Calls a tool of the daemon's own, which must succeed."""
        result = await (await initialized(self.api)).call(tool, **arguments)
        assert not result.get("isError"), result
        return result["structuredContent"]

    async def project(self, runtime: str, **more: Any) -> str:
        """Makes a project of that runtime and returns its id. Skips the test where the runtime is not to be had."""
        there = (await self.tool("project_options"))["runtimes"]
        if runtime not in there:
            pytest.skip(f"{runtime} does not work here; there is {there}")
        made = await self.tool("project_create", name=f"p-{secrets.token_hex(4)}", runtime=runtime, **more)
        return str(made["project_id"])

    @asynccontextmanager
    async def session(self, project: str, script: str, *, agent: str = "shell", **more: Any) -> AsyncIterator[Watched]:
        """A session whose agent runs `script`, followed from its beginning. It is ended with the block."""
        tools = [{"name": "look"}, {"name": "other"}]
        context = {"caller_id": "myapp", "caller_tools": tools}
        body = {"message": script, "agent": agent, "context": context, "project_id": project, **more}
        reply = await self.api.post("/sessions", body)
        assert reply.status == 201, reply.body
        async with self.api.events(f"/sessions/{reply.json['session_id']}/events?since_index=0") as events:
            watched = Watched(self, reply.json, events)
            try:
                yield watched
            finally:
                with trio.move_on_after(30, shield=True):
                    await watched.end()

    async def view(self, session_id: str) -> Any:
        return (await self.api.get(f"/sessions/{session_id}")).json

    def leavings(self) -> list[str]:
        """What is there of sessions: sockets, homes, control groups, containers; nothing once all have ended."""
        data = self.daemon.data_dir
        left = [str(path) for path in (data / "run").iterdir()]
        left += [str(path) for path in (data / "agents").iterdir() if path.name != ".trash"]
        left += [str(path) for path in (data / "agents").glob(".trash/*")]
        # Asked by a process that made none of them.
        left += [str(sorted(group._folders.values())) for group in find_groups(group_prefix(data)).left()]
        return [*left, *self.containers()]

    def containers(self, *options: str) -> list[str]:
        """The containers of this daemon."""
        if shutil.which("podman") is None:
            return []
        command = [*list_command("podman", self.daemon.data_dir), *options]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


class Watched:
    """A session and its events. `session` is what `session_message` has answered."""

    def __init__(self, site: Site, session: Any, events: EventReader) -> None:
        self.site = site
        self.session = session
        self.id = str(session["session_id"])
        self.events = events
        self.texts: list[str] = []

    async def says(self, wanted: str) -> str:
        """Returns what the agent says that begins so. Other events are passed over, but none is an end."""
        while True:
            event = json.loads((await self.events.next()).data)
            assert event["type"] not in ("turn_completed", "error", "session_ended"), event
            if event["type"] == "message" and event["role"] == "assistant":
                self.texts.append(event["text"])
                if event["text"].startswith(wanted):
                    return str(event["text"])

    async def next_of(self, kind: str) -> Any:
        return (await self.events.next_of(kind))[1]

    async def answer(self, result: Any) -> Any:
        """Answers the next request of the agent, and returns that."""
        request = await self.next_of("caller_tool_request")
        reply = await self.site.api.answer(self.session, request["request_id"], result=result)
        assert reply.status == 204, reply.body
        return request

    async def end(self) -> None:
        reply = await self.site.api.request("DELETE", f"/sessions/{self.id}")
        assert reply.status == 200, reply.body

    def container(self) -> list[str]:
        """The containers of this session."""
        return self.site.containers("--filter", f"label={SESSION_LABEL}={self.id}")

    async def seen(self, *marks: str) -> Seen:
        """Returns the processes of the session, once all that run `sleep MARK` are among them."""
        await until(lambda: all(sleeping(mark) for mark in marks))
        return processes_of(self.id, self.site.daemon.pid)


class Seen(Struct, frozen=True):
    """The processes of a session as the host sees them.

    `inside` the sandbox, by its pid namespace; `first` is process 1 there; `outside` are those that hold it.
    """

    inside: frozenset[int]
    first: int
    outside: frozenset[int]

    @property
    def everyone(self) -> frozenset[int]:
        return self.inside | self.outside

    async def gone(self, limit: float) -> None:
        """Returns when none of them is there any more."""
        await until(lambda: not [pid for pid in self.everyone if Path(f"/proc/{pid}").exists()], limit)


def processes_of(session_id: str, daemon: int) -> Seen:
    """Returns the processes of a session of `daemon`."""
    variable = f"OUBLIETTE_SESSION_ID={session_id}".encode()
    own = [pid for pid in pids() if variable in _read(pid, "environ").split(b"\0")]
    spaces = {_namespace(pid) for pid in own} - {_namespace(os.getpid()), ""}
    inside = frozenset(pid for pid in pids() if _namespace(pid) in spaces)
    (first,) = [pid for pid in inside if _field(pid, "NSpid")[-1:] == ["1"]]
    outside = {parent for pid in inside for parent in _ancestors(pid)} - inside
    outside |= {pid for pid in pids() if session_id.encode() in _read(pid, "cmdline") and daemon in _ancestors(pid)}
    return Seen(inside, first, frozenset(outside) - {1, daemon, *_ancestors(daemon)} - inside)


def new_mark() -> str:
    """Returns seconds for a `sleep` that nobody else sleeps."""
    return str(secrets.randbelow(10**9) + 10**9)


def sleeping(mark: str) -> list[int]:
    """Returns the processes of this host that run `sleep MARK`, in whatever sandbox."""
    wanted = [b"sleep", mark.encode(), b""]
    return [pid for pid in pids() if _read(pid, "cmdline").rpartition(b"/")[2].split(b"\0") == wanted]


def command_lines() -> list[bytes]:
    """Returns the command lines of all processes of this host."""
    return [_read(pid, "cmdline") for pid in pids()]


def pids() -> Iterator[int]:
    yield from [int(name) for name in os.listdir("/proc") if name.isdigit()]


def resident(pid: int) -> int:
    """Returns the bytes of memory that a process has now."""
    return int(_field(pid, "VmRSS")[0]) * 1024


def _read(pid: int, name: str) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""


def _field(pid: int, name: str) -> list[str]:
    lines = [line.split() for line in _read(pid, "status").decode().splitlines()]
    return next((line[1:] for line in lines if line[0] == f"{name}:"), [])


def _namespace(pid: int) -> str:
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/pid")
    return ""


def _ancestors(pid: int) -> Iterator[int]:
    while parent := int((_field(pid, "PPid") or ["0"])[0]):
        yield parent
        pid = parent
