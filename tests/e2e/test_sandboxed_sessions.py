"""Sessions in sandboxes, through a real daemon: what their agents find, and what they reach.

How they end is in `test_sandboxed_ends.py`; the runtimes by themselves are in `test_sandbox_escape.py`.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.helpers.sandboxed import (
    CLIENT,
    SANDBOXES,
    Site,
    command_lines,
    new_mark,
    open_shared_site,
    open_site,
)


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
    with open_shared_site({"network": "model", "model_hosts": [f"127.0.0.1:{ports[0]}"]}) as site:
        yield site


@pytest.fixture(scope="module")
def plain() -> Iterator[Site]:
    """A daemon that was told of no image and of no model."""
    with open_site({"kind": "auto", "network": "none"}) as site:
        site.need("bubblewrap")
        yield site
        assert site.daemon.stop() == 0


@pytest.fixture(params=SANDBOXES)
def kind(request: pytest.FixtureRequest, shared: Site) -> str:
    shared.need(request.param)
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
    script = "import hashlib, os; print(hashlib.sha256(os.environ['KEY'].encode()).hexdigest(), flush=True)"
    async with shared.session(project, f"{script}; os.execlp('sleep', 'sleep', '{mark}')", agent="python") as session:
        await session.says(hashlib.sha256(secret.encode()).hexdigest())
        await session.seen(mark)
        assert [line for line in command_lines() if secret.encode() in line] == []
    # Its events, its record and the daemon's log.
    files = [shared.daemon.log, *(path for path in shared.daemon.data_dir.iterdir() if path.is_file())]
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
        for folder in (data / "workspaces" / project).iterdir():
            (folder / "coming").write_text(outside)
            (folder / "coming").rename(folder / "go")
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
    assert plain.chosen["runtime"] == "bubblewrap"
    assert list(plain.chosen["passed_over"]) == ["podman", "docker"]
    async with plain.session(None, "echo $OUBLIETTE_WORKSPACE") as session:
        assert session.session["runtime"] == "bubblewrap"
        assert session.session.get("warnings", []) == plain.chosen["warnings"]
        assert await session.text() == "/workspace"


async def test_a_project_may_have_another_runtime_and_its_callers_are_warned(plain: Site) -> None:
    async with plain.session(await plain.project("process"), "pwd") as session:
        assert session.session["runtime"] == "process"
        network, limits = session.session["warnings"]
        assert "cannot restrict the network to `none`" in network
        assert "memory" in limits
        assert (await session.next_of("session_started"))["runtime"] == "process"
        assert (await session.text()).startswith(str(plain.daemon.data_dir))
