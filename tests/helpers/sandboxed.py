"""A daemon whose projects run agents in each runtime that works here, and what the host sees of their sandboxes.

Agents are scripts: a session's message is its agent's program.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec import Struct

from oubliette.runtimes.cgroups import find_groups
from oubliette.runtimes.configured import BUNDLES
from oubliette.runtimes.engine import SESSION_LABEL, list_command
from oubliette.runtimes.instance import group_prefix
from tests.helpers.http import Api, EventReader
from tests.helpers.mcp_http import initialized
from tests.helpers.process import DaemonProcess
from tests.helpers.runtimes import image, made_bundle, podman_environment
from tests.helpers.waiting import is_running, until

# Small enough to be reached in no time, and enough for Python, a client and what starts them.
LIMITS: Mapping[str, Any] = {"memory": 160 * 2**20, "cpus": 2, "pids": 48}
SANDBOXES = ("bubblewrap", "podman")
AGENTS = {
    "default": "shell",
    "profiles": {
        "shell": {"type": "command", "command": ["sh", "-c", "{prompt}"]},
        "python": {"type": "command", "command": ["python3", "-c", "{prompt}"]},
    },
}
# The beginning of a Python agent that has a client: `ask(method, ...)` and `call(tool, ...)` return what it answers.
CLIENT = """
import hashlib, itertools, json, os, shlex, subprocess, time
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
    return ask("tools/call", name=tool, arguments=arguments)["content"][0]["text"]
def say(*words):
    print(*words, flush=True)
server = ask("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={"name": "a", "version": "1"})
send(method="notifications/initialized")
"""
CONTEXT = {"caller_id": "myapp", "caller_tools": [{"name": "look"}]}


def config_of(runtime: Mapping[str, Any]) -> str:
    """Returns a configuration whose agents are scripts."""
    sections = {"runtime": {**LIMITS, **runtime}, "agents": AGENTS, "relay": {"attach_grace_seconds": 20}}
    # JSON is YAML.
    return "\n".join(f"{name}: {json.dumps(section)}" for name, section in sections.items())


def podman_here() -> tuple[str, Mapping[str, str], str]:
    """Returns an image for podman, what that needs in its environment, and why it does not work here."""
    try:
        environment = podman_environment()
        return image(), environment, ""
    except pytest.skip.Exception as skipped:
        return "", {}, str(skipped)


class Site:
    """A daemon, and what its sessions have on this host. `missing` says why a runtime does not work here."""

    def __init__(self, daemon: DaemonProcess, missing: Mapping[str, str]) -> None:
        self.daemon = daemon
        self._missing = missing

    @property
    def api(self) -> Api:
        return Api(self.daemon.port, self.daemon.admin_token)

    async def tool(self, tool: str, /, **arguments: Any) -> Any:
        """Calls a tool of the daemon's own, which must succeed."""
        result = await (await initialized(self.api)).call(tool, **arguments)
        assert not result.get("isError"), result
        return result["structuredContent"]

    async def runtimes(self) -> list[str]:
        """The names of the runtimes that are to be had."""
        return list((await self.tool("project_options"))["runtimes"])

    def need(self, runtime: str) -> None:
        """Skips the test where a runtime is not to be had. For fixtures that are not async: the others lose reasons."""
        if runtime not in trio.run(self.runtimes):
            pytest.skip(self._missing.get(runtime) or f"{runtime}: {self.chosen['passed_over'].get(runtime)}")

    @property
    def chosen(self) -> Any:
        """What the daemon's log says of the choice of its runtime."""
        (line,) = [line for line in self.daemon.log_text.splitlines() if '"runtime chosen"' in line]
        return json.loads(line)

    async def project(self, runtime: str, **more: Any) -> str:
        """Makes a project of that runtime and returns its id."""
        made = await self.tool("project_create", name=f"p-{secrets.token_hex(4)}", runtime=runtime, **more)
        return str(made["project_id"])

    @asynccontextmanager
    async def session(
        self, project: str | None, script: str, *, agent: str = "shell", **more: Any
    ) -> AsyncIterator[Watched]:
        """A session whose agent runs `script`, followed from its beginning. It ends with the block."""
        place = {"project_id": project} if project else {}
        reply = await self.api.post(
            "/sessions", {"message": script, "agent": agent, "context": CONTEXT, **place, **more}
        )
        assert reply.status == 201, reply.body
        path = f"/sessions/{reply.json['session_id']}"
        try:
            async with self.api.events(f"{path}/events?since_index=0") as events:
                yield Watched(self, reply.json, events)
        finally:
            with trio.move_on_after(30, shield=True):
                await self.api.request("DELETE", path)

    def leavings(self) -> list[str]:
        """What is there of sessions: sockets, homes, control groups, containers; nothing once all have ended."""
        data = self.daemon.data_dir
        folders = [*(data / "run").iterdir(), *(data / "agents").iterdir(), *(data / "agents" / ".trash").iterdir()]
        left = [str(folder.relative_to(data)) for folder in folders if folder.name != ".trash"]
        left += ["a control group" for _ in find_groups(group_prefix(data)).left()]
        return [*left, *self.containers()]

    def containers(self, *options: str) -> list[str]:
        """The containers of this daemon."""
        if shutil.which("podman") is None:
            return []
        command = [*list_command("podman", self.daemon.data_dir), *options]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@contextmanager
def open_site(runtime: Mapping[str, Any], environ: Mapping[str, str] = {}, **missing: str) -> Iterator[Site]:
    """A daemon with agents that are scripts, as long as the block."""
    daemon = DaemonProcess(config_of(runtime), environ=dict(environ))
    give_bundle(daemon)
    with daemon:
        site = Site(daemon, missing)
        try:
            yield site
        finally:
            # Of a test that failed while its daemon was dead.
            daemon.kill()
            for name in site.containers():
                subprocess.run(["podman", "rm", "--force", "--time=0", name], capture_output=True)


@contextmanager
def open_shared_site(runtime: Mapping[str, Any]) -> Iterator[Site]:
    """A daemon with every runtime that works here, for tests that leave it as it was."""
    image, environ, why = podman_here()
    with open_site({"kind": "auto", "image": image, **runtime}, environ, podman=why) as site:
        yield site
        assert site.leavings() == [], site.daemon.log_text
        assert site.daemon.stop() == 0
        errors = [line for line in site.daemon.log_text.splitlines() if '"level": "error"' in line]
        assert not errors, "nothing that an agent did may be an error of the daemon's own"


def need_limits(runtime: str) -> None:
    """Skips the test where a runtime cannot limit what a session takes."""
    if runtime == "bubblewrap" and (missing := find_groups("oubliette-test-").missing):
        pytest.skip(f"bubblewrap cannot limit {', '.join(missing)} here: no control group can be made")


def give_bundle(daemon: DaemonProcess) -> None:
    """Spares a daemon that has not been started a second: the bundle is the same for all, and takes that to compile."""
    daemon.data_dir.mkdir(mode=0o700)
    shutil.copytree(made_bundle(), daemon.data_dir / BUNDLES / made_bundle().name)


class Watched:
    """A session and its events. `session` is what `session_message` has answered."""

    def __init__(self, site: Site, session: Any, events: EventReader) -> None:
        self.site = site
        self.session = session
        self.id = str(session["session_id"])
        self._events = events

    async def next(self) -> Any:
        return json.loads((await self._events.next()).data)

    async def next_of(self, kind: str) -> Any:
        """Returns the next event of a type; others are passed over."""
        return (await self._events.next_of(kind))[1]

    async def says(self, beginning: str) -> str:
        """Returns what the agent says next that begins so. Raises `AssertionError` where its turn ends before."""
        while True:
            event = await self.next()
            assert event["type"] not in ("turn_completed", "error", "session_ended"), event
            if event["type"] == "message" and event["role"] == "assistant" and event["text"].startswith(beginning):
                return str(event["text"])

    async def text(self) -> str:
        """Returns what the agent has said in its turn, once that has ended well."""
        while (event := await self.next())["type"] != "turn_completed":
            assert event["type"] not in ("error", "session_ended"), event
        return str(event["text"])

    async def answer(self, result: Any) -> Any:
        """Answers the next request of the agent, and returns that."""
        request = await self.next_of("caller_tool_request")
        reply = await self.site.api.answer(self.session, request["request_id"], result=result)
        assert reply.status == 204, reply.body
        return request

    async def end(self) -> None:
        reply = await self.site.api.request("DELETE", f"/sessions/{self.id}")
        assert reply.status == 200, reply.body

    async def status(self) -> str:
        return str((await self.site.api.get(f"/sessions/{self.id}")).json["status"])

    def container(self) -> str:
        """The container of this session."""
        (name,) = self.site.containers("--filter", f"label={SESSION_LABEL}={self.id}")
        return name

    async def seen(self, *marks: str) -> Seen:
        """Returns the processes of the session, once all that are to run `sleep MARK` are among them."""
        await until(lambda: all(sleeping(mark) for mark in marks))
        return _processes_of(self.id, self.site.daemon.pid)


class Seen(Struct, frozen=True):
    """The processes of a session as the host sees them.

    `inside` are those in the sandbox, by its pid namespace, `first` is process 1 there; `starter` is the daemon's
    child, and `everyone` all of them with what holds them.
    """

    inside: frozenset[int]
    first: int
    starter: int
    everyone: frozenset[int]

    async def gone(self, limit: float) -> None:
        """Returns when none of them runs any more."""
        await until(lambda: not [pid for pid in self.everyone if is_running(pid)], limit)


def _processes_of(session_id: str, daemon: int) -> Seen:
    variable = f"OUBLIETTE_SESSION_ID={session_id}".encode()
    spaces = {_pid_namespace(pid) for pid in pids() if variable in _read(pid, "environ").split(b"\0")}
    inside = frozenset(pid for pid in pids() if _pid_namespace(pid) in spaces)
    above = {ancestor for pid in inside for ancestor in _ancestors(pid)} - {daemon, *_ancestors(daemon)}
    # podman's container is the child of a process of its own.
    above |= {pid for pid in pids() if session_id.encode() in _read(pid, "cmdline")}
    (first,) = [pid for pid in inside if _field(pid, "NSpid").split()[-1] == "1"]
    (starter,) = [pid for pid in above if _field(pid, "PPid") == str(daemon)]
    return Seen(inside, first, starter, inside | above)


def new_mark() -> str:
    """Returns seconds for a `sleep` that nobody else sleeps."""
    return str(secrets.randbelow(10**9) + 10**9)


def sleeping(mark: str) -> list[int]:
    """Returns the processes of this host that run `sleep MARK`, in whatever sandbox."""
    return [pid for pid in pids() if _read(pid, "cmdline").rpartition(b"/")[2] == b"sleep\0%s\0" % mark.encode()]


def command_lines() -> list[bytes]:
    """Returns the command lines of all processes of this host."""
    return [_read(pid, "cmdline") for pid in pids()]


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def resident(pid: int) -> int:
    """Returns the bytes of memory that a process has now."""
    return int(_field(pid, "VmRSS").split()[0]) * 1024


def _read(pid: int, name: str) -> bytes:
    """It may have ended meanwhile."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""


def _field(pid: int, name: str) -> str:
    fields = dict(line.split(":", 1) for line in _read(pid, "status").decode().splitlines())
    return str(fields.get(name, "0")).strip()


def _pid_namespace(pid: int) -> str:
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/pid")
    return f"that of {pid}, which has ended"


def _ancestors(pid: int) -> Iterator[int]:
    while pid := int(_field(pid, "PPid")):
        yield pid
