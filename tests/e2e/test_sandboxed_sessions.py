"""Sessions in sandboxes, through a real daemon: what their agents find, reach and use up, and how they end.

HAZARDS G18, F20, F25. The runtimes by themselves are in `test_sandbox_escape.py`.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import trio

from oubliette.agents.process import FORCE, POLITE
from tests.helpers.process import TOKEN
from tests.helpers.sandboxed import (
    CLIENT,
    MEMORY,
    Seen,
    Site,
    Watched,
    command_lines,
    new_mark,
    open_site,
    podman_here,
    resident,
    sleeping,
)
from tests.helpers.waiting import is_running, until

SANDBOXES = ("bubblewrap", "podman")
# HAZARDS F20: the session has failed so long after what ended its agent, in seconds.
AT_ONCE = 5
MIB = 2**20


class _Model(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *arguments: Any) -> None:
        """Says nothing."""


@contextmanager
def model() -> Iterator[int]:
    """An HTTP server on the loopback; yields its port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Model) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def ports() -> Iterator[tuple[int, int]]:
    """The ports of two servers of this host, of which agents may reach the first."""
    with model() as allowed, model() as other:
        yield allowed, other


@pytest.fixture(scope="module")
def shared(ports: tuple[int, int]) -> Iterator[Site]:
    """One daemon for every test that leaves it as it was, with all runtimes that work here."""
    image, environ, why = podman_here()
    runtime = {"image": image, "network": "model", "model_hosts": [f"127.0.0.1:{ports[0]}"]}
    with open_site(runtime, environ, podman=why) as site:
        yield site
        assert site.leavings() == [], site.daemon.log_text
        assert site.daemon.stop() == 0
        errors = [line for line in site.daemon.log_text.splitlines() if '"level": "error"' in line]
        assert not errors, "nothing that an agent did may be an error of the daemon's own"


@pytest.fixture(scope="module")
def plain() -> Iterator[Site]:
    """A daemon that was told of no image and of no model."""
    with open_site({"kind": "auto", "network": "none"}) as site:
        yield site
        assert site.daemon.stop() == 0


@pytest.fixture(params=SANDBOXES)
async def kind(request: pytest.FixtureRequest, shared: Site) -> str:
    return str(request.param)


@pytest.fixture
async def project(kind: str, shared: Site) -> str:
    return await shared.project(kind)


# What an agent finds


async def test_its_caller_is_told_where_it_runs_and_its_client_works(kind: str, shared: Site) -> None:
    script = f"""{CLIENT}
say(server["serverInfo"]["name"], server["protocolVersion"], [tool["name"] for tool in ask("tools/list")["tools"]])
say(call("myapp_look", at="1.10"))
say(os.getcwd(), os.environ["OUBLIETTE_SOCKET"])
"""
    async with shared.session(await shared.project(kind), script, agent="python") as session:
        assert session.session["runtime"] == kind
        assert "warnings" not in session.session, "everything can be enforced on this machine"
        assert (await session.next_of("session_started"))["runtime"] == kind
        request = await session.answer({"saw": "it"})
        assert (request["tool"], request["arguments"]) == ("look", {"at": "1.10"})
        about, answer, place = (await session.text()).splitlines()
    assert about.startswith("oubliette-client 2025-11-25 [")
    assert "'session_message'" in about
    assert "'myapp_look'" in about
    assert json.loads(answer) == {"saw": "it"}
    assert place == "/workspace /mcp/relay.sock"


async def test_the_env_of_its_project_reaches_it_and_stands_on_no_command_line(kind: str, shared: Site) -> None:
    secret, mark = f"canary-{secrets.token_hex(16)}", new_mark()
    project = await shared.project(kind, env={"KEY": secret})
    script = f"import hashlib, os; print(hashlib.sha256(os.environ['KEY'].encode()).hexdigest(), flush=True)"
    async with shared.session(project, f"{script}; os.execlp('sleep', 'sleep', '{mark}')", agent="python") as session:
        await session.says(hashlib.sha256(secret.encode()).hexdigest())
        await session.seen(mark)
        assert [line for line in command_lines() if secret.encode() in line] == []
    data = shared.daemon.data_dir
    files = [path for path in shared.daemon.root.rglob("*") if path.is_file() and data / "env" not in path.parents]
    assert [path for path in files if secret.encode() in path.read_bytes()] == []


LOOK_AROUND = """
import json, os, time
for folder in ("/workspace", "/home/agent"):
    open(f"{folder}/canary-NAME", "w").close()
print("ready", os.stat("/mcp/relay.sock").st_ino, flush=True)
while not os.path.exists("/workspace/go"):
    time.sleep(0.01)
found = []
for folder, folders, files in os.walk("/"):
    folders[:] = [name for name in folders if os.path.join(folder, name) not in ("/proc", "/sys", "/usr")]
    found += [os.path.join(folder, name) for name in files if name.startswith("canary-")]
there = [path for path in json.load(open("/workspace/go")) if os.path.lexists(path)]
print(json.dumps([sorted(found), sorted(os.listdir("/mcp")), there]))
"""


async def test_no_session_sees_anothers_folders_and_sockets(kind: str, shared: Site, project: str) -> None:
    """Two are in one workspace, the third is in another one of the same project."""
    other = (await shared.tool("workspace_create", project_id=project, name="other"))["workspace_id"]
    data = shared.daemon.data_dir
    (data / "canary-of-the-daemon").touch()
    async with AsyncExitStack() as stack:
        sessions, sockets = [], set()
        for name, workspace in (("a", {}), ("b", {}), ("c", {"workspace_id": other})):
            script = LOOK_AROUND.replace("NAME", name)
            opened = shared.session(project, script, agent="python", **workspace)
            sessions.append(await stack.enter_async_context(opened))
        for session in sessions:
            sockets.add(int((await session.says("ready")).split()[1]))
        assert sockets == {path.stat().st_ino for path in (data / "run").glob("*/relay.sock")}
        outside = json.dumps([str(path) for path in (data, *(data / "run").iterdir(), *(data / "agents").iterdir())])
        for workspace in (data / "workspaces" / project).iterdir():
            (workspace / "coming").write_text(outside)
            (workspace / "coming").rename(workspace / "go")
        found = [json.loads((await session.text()).splitlines()[-1]) for session in sessions]
    own = ["model.sock", "relay.sock"]
    assert found[0] == [["/home/agent/canary-a", "/workspace/canary-a", "/workspace/canary-b"], own, []]
    assert found[1] == [["/home/agent/canary-b", "/workspace/canary-a", "/workspace/canary-b"], own, []]
    assert found[2] == [["/home/agent/canary-c", "/workspace/canary-c"], own, []]


# What it reaches


REACH = """
import http.client, os, socket, sys, urllib.error, urllib.request
def get(url):
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            print(answer.status, answer.read().decode())
    except urllib.error.HTTPError as error:
        print(error.code)
    except OSError as error:
        print(type(error).__name__)
def tunnel(host, port):
    way = http.client.HTTPConnection("127.0.0.1", 3128, timeout=10)
    way.set_tunnel(host, port)
    try:
        way.request("GET", "/")
        print(way.getresponse().read().decode())
    except OSError as error:
        print(error)
get("http://127.0.0.1:ALLOWED/")
get("http://127.0.0.1:OTHER/")
for name in ("no_proxy", "NO_PROXY"):
    os.environ.pop(name, "")
get("http://127.0.0.1:ALLOWED/")
get("http://127.0.0.1:OTHER/")
get("http://example.com/")
tunnel("127.0.0.1", ALLOWED)
tunnel("example.com", 443)
for host in ("192.0.2.1", "169.254.169.254"):
    try:
        socket.create_connection((host, 80), timeout=10)
    except OSError:
        print("out of reach")
print([name for _, name in socket.if_nameindex()], sorted(os.listdir("/mcp")))
"""


def reaching(ports: tuple[int, int]) -> str:
    return REACH.replace("ALLOWED", str(ports[0])).replace("OTHER", str(ports[1]))


async def test_with_network_model_it_reaches_the_model_alone(
    shared: Site, project: str, ports: tuple[int, int]
) -> None:
    async with shared.session(project, reaching(ports), agent="python") as session:
        assert (await session.text()).splitlines() == [
            "200 ok",
            "URLError",
            # From here on by HTTP_PROXY.
            "200 ok",
            "403",
            "403",
            "ok",
            "Tunnel connection failed: 403 Forbidden",
            "out of reach",
            "out of reach",
            "['lo'] ['model.sock', 'relay.sock']",
        ]
        told = [json.loads(line) for line in shared.daemon.log_text.splitlines() if session.id in line]
    refused = [line["host"] for line in told if line["event"] == "a request was refused by runtime.model_hosts"]
    assert refused == [f"127.0.0.1:{ports[1]}", "example.com:80", "example.com:443"]


async def test_with_network_none_it_reaches_nothing(plain: Site, ports: tuple[int, int]) -> None:
    project = await plain.project("bubblewrap")
    script = f"import os; print([name for name in os.environ if 'proxy' in name.lower()]){reaching(ports)}"
    async with plain.session(project, script, agent="python") as session:
        lines = (await session.text()).splitlines()
    assert lines[0] == "[]"
    assert lines[-1] == "['lo'] ['relay.sock']"
    assert [line for line in lines if "200" in line or "ok" in line] == []


# Which runtime it is


async def test_auto_takes_the_strongest_and_says_so(plain: Site) -> None:
    """Without an image neither podman nor docker is one to be had."""
    await plain.project("bubblewrap")
    (line,) = [json.loads(line) for line in plain.daemon.log_text.splitlines() if "runtime chosen" in line]
    assert line["runtime"] == "bubblewrap"
    assert list(line["passed_over"]) == ["podman", "docker"]
    async with plain.session(None, "echo $OUBLIETTE_WORKSPACE") as session:
        assert session.session["runtime"] == "bubblewrap"
        assert tuple(session.session.get("warnings", ())) == tuple(line["warnings"])
        assert await session.text() == "/workspace"


async def test_a_project_may_have_another_runtime_and_its_callers_are_warned(plain: Site) -> None:
    async with plain.session(await plain.project("process"), "pwd") as session:
        assert session.session["runtime"] == "process"
        network, limits = session.session["warnings"]
        assert "cannot restrict the network to `none`" in network
        assert "memory" in limits
        assert (await session.next_of("session_started"))["runtime"] == "process"
        assert (await session.text()).startswith(str(plain.daemon.data_dir))


# What it uses up


@asynccontextmanager
async def neighbour(site: Site, project: str) -> AsyncIterator[Watched]:
    """A session whose agent asks its caller again and again; it has asked once."""
    async with site.session(project, f"{CLIENT}\nwhile True: say(call('myapp_look'))", agent="python") as session:
        await session.answer("well")
        yield session


HOG = """
import os
print("ready", flush=True)
hog = []
while True:
    hog.append(bytearray(2**24))
"""
BOMB = """
import os
forked = 0
try:
    while True:
        if os.fork() == 0:
            os.read(0, 1)
            os.pause()
        forked += 1
except OSError as error:
    print("stopped at", forked, flush=True)
import signal
signal.pause()
"""


async def test_a_memory_hog_ends_and_the_others_go_on(shared: Site, project: str) -> None:
    async with neighbour(shared, project) as beside, shared.session(project, HOG, agent="python") as session:
        skip_without_limits(session)
        await session.says("ready")
        message = (await session.next_of("error"))["message"]
        ended = await session.next_of("session_ended")
        await beside.answer("well")
        assert await beside.says('"well"')
    assert ended["reason"] == "failed"
    assert "runtime.memory" in message
    assert f"{MEMORY // MIB} MiB" in message


async def test_a_fork_bomb_is_held_and_the_others_go_on(shared: Site, project: str) -> None:
    async with neighbour(shared, project) as beside, shared.session(project, BOMB, agent="python") as session:
        skip_without_limits(session)
        forked = int((await session.says("stopped at")).split()[-1])
        assert 8 < forked < 48
        await beside.answer("well")
        assert await beside.says('"well"')
        seen = await session.seen()
        assert len(seen.inside) > forked
        with trio.fail_after(POLITE + FORCE):
            await session.end()
        await seen.gone(AT_ONCE)


def skip_without_limits(session: Watched) -> None:
    if warnings := session.session.get("warnings"):
        pytest.skip("; ".join(warnings))


# What it says


async def test_a_flood_without_a_line_break_is_left_out(shared: Site, project: str) -> None:
    """On both streams at once: whoever writes to one must not wait for what is read of the other."""
    flood = f"head -c {64 * MIB} /dev/zero | tr '\\0' x"
    before = resident(shared.daemon.pid)
    async with shared.session(project, f"({flood} >&2) & {flood}; wait; echo; echo done") as session:
        note, last = (await session.text()).splitlines()
    assert note == f"[a line of more than {256 * 1024} bytes was left out]"
    assert last == "done"
    assert resident(shared.daemon.pid) - before < 32 * MIB


async def test_a_flood_of_lines_is_bounded_in_memory_and_leaves_others_their_turns(shared: Site, project: str) -> None:
    flood = "s=$(head -c 8000 /dev/zero | tr '\\0' y); while :; do echo $s; done"
    async with neighbour(shared, project) as beside, shared.session(project, flood) as session:
        await session.says("y")
        seen = await session.seen()
        before, index = resident(shared.daemon.pid), await last_index(session)
        while await last_index(session) < index + 5_000:
            await beside.answer("well")
        # 40 MB were said, of which `sessions.event_buffer_bytes`, 16 MiB, are in memory.
        assert resident(shared.daemon.pid) - before < 32 * MIB
        with trio.fail_after(POLITE + FORCE):
            await session.end()
        await seen.gone(AT_ONCE)


async def last_index(session: Watched) -> int:
    return int((await session.site.api.get(f"/sessions/{session.id}")).json["last_index"])


# How it ends


async def test_one_that_does_not_listen_is_gone_with_all_it_started(shared: Site, project: str) -> None:
    marks = [new_mark() for _ in range(3)]
    script = "trap '' TERM INT HUP; setsid sleep {} & (setsid setsid sleep {} &); exec sleep {}".format(*marks)
    async with shared.session(project, script) as session:
        seen = await session.seen(*marks)
        with trio.fail_after(POLITE + AT_ONCE):
            await session.end()
        await seen.gone(AT_ONCE)
        assert [pid for mark in marks for pid in sleeping(mark)] == []
        assert (await session.next_of("session_ended"))["reason"] == "ended"


@pytest.mark.parametrize("victim", ["agent", "first", "starter"])
async def test_a_killed_agent_or_sandbox_is_a_failed_session(shared: Site, project: str, victim: str) -> None:
    """HAZARDS F20. `first` is process 1 of the sandbox, `starter` bubblewrap itself, or podman's `run`."""
    mark = new_mark()
    async with shared.session(project, f"setsid sleep 1{mark} & exec sleep {mark}") as session:
        seen = await session.seen(mark, f"1{mark}")
        os.kill({"agent": sleeping(mark)[0], "first": seen.first, "starter": seen.starter}[victim], signal.SIGKILL)
        with trio.fail_after(AT_ONCE):
            error = await session.next_of("error")
            ended = await session.next_of("session_ended")
        await seen.gone(AT_ONCE)
        assert error["kind"] == "agent_failed"
        assert "SIGKILL" in error["message"]
        assert (ended["reason"], ended["exit_code"]) == ("failed", -9 if victim == "starter" else 137)
        assert await session.status() == "failed"
    assert (await shared.api.get("/ready")).status == 200


@pytest.mark.parametrize("command", [["rm", "--force", "--time=0"], ["stop", "--time=0"]], ids=lambda command: command[0])
async def test_a_container_that_somebody_ends_is_a_failed_session(shared: Site, command: list[str]) -> None:
    project, mark = await shared.project("podman"), new_mark()
    async with shared.session(project, f"exec sleep {mark}") as session:
        seen = await session.seen(mark)
        await podman(*command, session.container())
        with trio.fail_after(AT_ONCE):
            assert "exited with code" in (await session.next_of("error"))["message"]
            assert (await session.next_of("session_ended"))["reason"] == "failed"
        await seen.gone(AT_ONCE)


async def test_a_paused_container_can_be_ended(shared: Site) -> None:
    """HAZARDS F20. It hears no signal, not even that of the end."""
    project, mark = await shared.project("podman"), new_mark()
    async with shared.session(project, f"exec sleep {mark}") as session:
        seen = await session.seen(mark)
        await podman("pause", session.container())
        with trio.fail_after(POLITE + FORCE):
            await session.end()
        await seen.gone(AT_ONCE)
    assert shared.leavings() == []


async def podman(*command: str) -> None:
    _, environ, _ = podman_here()
    await trio.run_process(["podman", *command], env={**os.environ, **environ}, stdout=subprocess.DEVNULL)


async def test_a_killed_daemon_leaves_nothing_that_the_next_one_does_not_find() -> None:
    """In the middle of turns, in each runtime that works here."""
    image, environ, why = podman_here()
    with open_site({"kind": "auto", "image": image}, environ, podman=why) as site:
        marks, sessions = {}, {}
        for kind in (await site.tool("project_options"))["runtimes"]:
            marks[kind] = new_mark()
            sessions[kind] = await start_asleep(site, kind, marks[kind])
        running = [pid for mark in marks.values() for pid in sleeping(mark)]
        site.daemon.kill()
        await until(lambda: not sleeping(marks.get("bubblewrap", "0")), AT_ONCE)
        left = [name.split("/")[0].split("-")[0] for name in site.leavings()]
        assert (left.count("run"), left.count("agents")) == (len(marks), len(marks))
        assert left.count("oubliette") == ("podman" in marks)
        site.daemon.start()
        await until(lambda: not [pid for pid in running if is_running(pid)])
        await until(lambda: site.leavings() == [])
        for session_id in sessions.values():
            page = await site.api.get(f"/sessions/{session_id}/events?since_index=0", {"Accept": "application/json"})
            last = page.json["events"][-1]
            assert (page.json["status"], last["type"], last["reason"]) == ("interrupted", "session_ended", "interrupted")
        async with site.session(None, "echo again") as session:
            assert await session.text() == "again"


async def start_asleep(site: Site, kind: str, mark: str) -> str:
    """Starts a session whose agent sleeps, and something that left its group too."""
    script = f"setsid sleep 1{mark} & exec sleep {mark}"
    reply = await site.api.post("/sessions", {"message": script, "project_id": await site.project(kind)})
    await until(lambda: sleeping(mark) and sleeping(f"1{mark}"))
    return str(reply.json["session_id"])
