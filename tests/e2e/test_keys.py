"""An agent that holds `OUBLIETTE_API_KEY`: real daemon, real client process, the official SDK in the agent's place.

Issue 4, "Shown by"; WIRE sections 1 and 6; HAZARDS G12, G17, T18, T41, F33. The tests of this file share a daemon, and
the last one searches everything that it wrote for the secrets of all of them.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TextIO

import pytest
import trio
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import CallToolResult

from tests.helpers.http import Api
from tests.helpers.mcp_http import initialized
from tests.helpers.process import DaemonProcess
from tests.helpers.waiting import until

EXAMPLE = Path(__file__).parents[2] / "examples" / "agent.py"
PATIENCE = 30
# HAZARDS G12: revocation "reaches every open channel" within so many seconds.
PROMPT = 1.0
CONFIG = f"""
relay: {{poll_grace_seconds: 1}}
log: {{level: debug}}
agents:
  default: echo
  profiles:
    echo: {{type: command, command: [sh, -c, 'cat; echo']}}
    slow: {{type: command, command: [sleep, '60']}}
    example: {{type: command, command: [{sys.executable}, {EXAMPLE}, '{{prompt}}']}}
    external: {{type: external}}
"""
TOKEN = re.compile(r"oub_[a-z0-9]+_([0-9a-f]{64})")


class World:
    """A daemon, its operator, and the secrets that were made in it."""

    def __init__(self, daemon: DaemonProcess, errors: TextIO) -> None:
        self.daemon = daemon
        self.errors = errors
        self.api = Api(daemon.port, daemon.admin_token)
        self.secrets = {daemon.admin_token}
        # What agents and callers were told of failures.
        self.failures: list[str] = []

    async def operate(self, tool: str, **arguments: Any) -> Any:
        """Calls a tool as the operator does, over HTTP."""
        result = await (await initialized(self.api)).call(tool, **arguments)
        assert not result.get("isError"), result
        return result["structuredContent"]

    async def key(self, scope: str) -> Any:
        """Returns a new token: its id, and itself."""
        created = await self.operate("token_create", name="for an agent", scope=scope)
        self.secrets.add(created["token"])
        return created

    @asynccontextmanager
    async def agent(self, key: str, mode: str = "legacy") -> AsyncIterator[KeyedAgent]:
        """An agent in a session of the operator's, which speaks to its client through the official SDK."""
        session = await self.api.start_session("send")
        server = StdioServerParameters(
            command=sys.executable,
            args=["-m", "oubliette_client"],
            env={"OUBLIETTE_SOCKET": session["socket"], "OUBLIETTE_API_KEY": key},
        )
        with trio.fail_after(PATIENCE):
            async with Client(stdio_client(server, errlog=self.errors), mode=mode) as client:
                yield KeyedAgent(self, client, session)

    def audited(self) -> set[tuple[str, str]]:
        """What was done over links, each with the session that it was done in (HAZARDS T41: "audit names session")."""
        lines = [json.loads(line) for line in (self.daemon.data_dir / "audit.log").read_text().splitlines()]
        return {(line["action"], line["inside"]) for line in lines if line.get("door") == "link"}

    def has_said(self) -> str:
        """All that the clients of these tests have said on stderr."""
        self.errors.flush()
        return Path(self.errors.name).read_text()


class KeyedAgent:
    """The agent's end of a client. `session` is the one that it is in."""

    def __init__(self, world: World, client: Client, session: Any) -> None:
        self.world = world
        self.client = client
        self.session = session

    async def tools(self) -> set[str]:
        return {tool.name for tool in (await self.client.list_tools()).tools}

    async def call(self, tool: str, **arguments: Any) -> Any:
        """Calls one of the daemon's tools, which must succeed, and returns what it says."""
        result = await self._call(tool, arguments)
        assert not result.is_error, result
        return result.structured_content

    async def failure(self, tool: str, **arguments: Any) -> str:
        """Calls one of the daemon's tools, which must fail, and returns its words."""
        result = await self._call(tool, arguments)
        assert result.is_error, result
        text: str = getattr(result.content[0], "text", "")
        self.world.failures.append(result.model_dump_json())
        return text

    async def _call(self, tool: str, arguments: Any) -> CallToolResult:
        result = await self.client.call_tool(f"oubliette_{tool}", arguments)
        assert isinstance(result, CallToolResult)
        return result


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    errors = tmp_path_factory.mktemp("keys") / "client.stderr"
    with DaemonProcess(CONFIG) as daemon, errors.open("w") as file:
        yield World(daemon, file)
        lines = [line for line in daemon.log_text.splitlines() if '"level": "error"' in line]
        assert not lines, "nothing that a test did may be an error of the daemon's own"


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_an_admin_agent_makes_a_project_and_a_token_and_sees_a_session_finish(world: World, mode: str) -> None:
    async with world.agent((await world.key("admin"))["token"], mode) as agent:
        assert {
            "myapp_send",
            "project_list",
            "oubliette_project_create",
            "oubliette_token_create",
        } <= await agent.tools()
        assert_no_process_shows(world.secrets)
        project = await agent.call("project_create", name=f"for-a-user-{mode}", env={"SECRET": "canary-of-an-env"})
        world.secrets.add("canary-of-an-env")
        scope = f"project:{project['project_id']}"
        token = await agent.call("token_create", name="user", scope=scope, expires_in_seconds=600)
        world.secrets.add(token["token"])
        view = await agent.call("session_message", message="hello", project_id=project["project_id"], wait=True)
        assert (view["project_id"], view["status"], view["text"].strip()) == (project["project_id"], "idle", "hello")
        page = await agent.call("session_events", session_id=view["session_id"])
        assert [event["type"] for event in page["events"]][-1] == "turn_completed"
        assert (page["completed"], page["failed"]) == (True, False)
        assert (await agent.call("session_end", session_id=view["session_id"]))["status"] == "ended"
        await until(lambda: ("project_create", agent.session["session_id"]) in world.audited())
        # The user's token works, and sees its own project alone.
        user = await (await initialized(Api(world.daemon.port, token["token"]))).call("session_list")
        assert [one["session_id"] for one in user["structuredContent"]["sessions"]] == [view["session_id"]]


async def test_a_session_that_an_agent_starts_is_its_keys(world: World) -> None:
    key = await world.key("admin")
    async with world.agent(key["token"]) as agent:
        view = await agent.call("session_message", message="hello", wait=True)
        assert (view["owner"], view["parent_id"]) == (key["token_id"], None)
        assert view["owner"] != agent.session["owner"]


async def test_a_read_only_key_changes_nothing(world: World) -> None:
    async with world.agent((await world.key("admin:ro"))["token"]) as agent:
        keyed = {name for name in await agent.tools() if name.startswith("oubliette_")}
        assert {"oubliette_session_list", "oubliette_project_list"} <= keyed
        assert not keyed & {"oubliette_session_message", "oubliette_project_create", "oubliette_token_create"}
        assert await agent.call("session_get", session_id=agent.session["session_id"])


async def test_a_project_key_reaches_its_own_project_alone(world: World) -> None:
    """HAZARDS T41: an agent cannot mint beyond its scope, whatever it is talked into."""
    project = await world.operate("project_create", name="walled")
    async with world.agent((await world.key(f"project:{project['project_id']}"))["token"]) as agent:
        assert not {"oubliette_token_create", "oubliette_project_create"} & await agent.tools()
        view = await agent.call("session_message", message="hello", wait=True)
        assert view["project_id"] == project["project_id"]
        assert [one["project_id"] for one in (await agent.call("project_list"))["projects"]] == [project["project_id"]]
        for arguments in ({"session_id": agent.session["session_id"]}, {"session_id": "ses_" + "0" * 32}):
            assert "no session" in await agent.failure("session_get", **arguments)
        assert "no project" in await agent.failure("session_message", message="x", project_id="default")


async def test_a_key_that_is_revoked_half_way_ends_what_waits_and_opens_nothing_more(world: World) -> None:
    """HAZARDS G12, F33. The agent's session goes on, and so do its caller's tools."""
    key = await world.key("admin")
    async with world.agent(key["token"]) as agent, trio.open_nursery() as nursery:
        view = await agent.call("session_message", message="x", agent="slow")
        ended = trio.Event()

        async def wait() -> None:
            assert "revoked" in await agent.failure("session_events", session_id=view["session_id"], follow=True)
            ended.set()

        nursery.start_soon(wait)
        await agent.call("session_get", session_id=view["session_id"])
        await world.operate("token_revoke", token_id=key["token_id"])
        with trio.fail_after(PROMPT):
            await ended.wait()
        for tool in ("session_list", "token_list"):
            assert "revoked or expired" in await agent.failure(tool)
        assert "oubliette_token_list" in await agent.tools()
        [own] = (await agent.client.call_tool("project_list", {})).structured_content["projects"]
        assert own["project_id"] == "default"


async def test_a_key_that_is_no_key_is_a_warning_and_no_tools(world: World) -> None:
    secret = "f" * 64
    world.secrets.add(secret)
    async with world.agent(f"oub_nobody_{secret}") as agent:
        beside_packs = {name for name in await agent.tools() if not name.startswith("ot_")}
        assert beside_packs == {"session_message", "project_list", "myapp_send"}
        assert "Oubliette's own tools are left out: the key of the call" in world.has_said()


async def test_an_agent_that_the_daemon_starts_finds_its_key_in_its_projects_env(world: World) -> None:
    """The proposal's own case: an admin agent that acts for its users, over the same socket."""
    key = await world.key("admin")
    project = await world.operate("project_create", name="admins", env={"OUBLIETTE_API_KEY": key["token"]})
    prompt = 'call oubliette_project_create {"name": "by the agent"}\ncall oubliette_session_list {"limit": 1}'
    view = await world.operate(
        "session_message", message=prompt, agent="example", project_id=project["project_id"], wait=True
    )
    assert "oubliette_project_create answered" in view["text"]
    assert "oubliette_session_list answered" in view["text"]
    made = [one for one in (await world.operate("project_list"))["projects"] if one["name"] == "by the agent"]
    assert len(made) == 1


async def test_a_project_can_be_deleted_from_within(world: World) -> None:
    """The call ends with the session that it came from; the deletion does not."""
    key = await world.key("admin")
    project = await world.operate("project_create", name="short-lived", env={"OUBLIETTE_API_KEY": key["token"]})
    prompt = f"call oubliette_project_delete {json.dumps({'project_id': project['project_id'], 'force': True})}"
    await world.operate("session_message", message=prompt, agent="example", project_id=project["project_id"])
    with trio.fail_after(PATIENCE):
        while project["project_id"] in json.dumps(await world.operate("project_list")):
            continue


async def test_the_secrets_of_these_tests_are_nowhere(world: World) -> None:
    """HAZARDS G17, T18: every file, log line, event and error. The last test of this file, on purpose."""
    assert len(world.secrets) >= 8
    hidden = {match[1] if (match := TOKEN.fullmatch(secret)) else secret for secret in world.secrets}
    assert_no_process_shows(hidden)
    heard = [*world.failures, world.has_said(), world.daemon.log_text, *await all_events(world)]
    assert all(heard)
    assert [text[:200] for text in heard if any(secret in text for secret in hidden)] == []
    # The two places where a secret belongs: the first token, and the values of an `env`, for their user alone.
    places = [path for path in files_with(world.daemon.root, hidden) if path.name != "admin.token"]
    assert {oct(path.stat().st_mode & 0o777) for path in places} <= {"0o600"}
    assert {path.relative_to(world.daemon.data_dir).parts[0] for path in places} <= {"env"}


async def all_events(world: World) -> list[str]:
    sessions = (await world.operate("session_list", limit=1000))["sessions"]
    assert len(sessions) > 5
    as_page = {"Accept": "application/json"}
    paths = [f"/sessions/{one['session_id']}/events?since_index=0&limit=1000" for one in sessions]
    return [(await world.api.get(path, as_page)).body.decode() for path in paths]


def files_with(root: Path, secrets: set[str]) -> list[Path]:
    files = [path for path in root.rglob("*") if path.is_file()]
    assert len(files) > 3
    return [path for path in files if any(secret.encode() in path.read_bytes() for secret in secrets)]


def assert_no_process_shows(secrets: set[str]) -> None:
    """The arguments of every process that there is."""
    shown = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            shown.append(path.read_bytes())
        except OSError:  # it has ended meanwhile
            continue
    assert any(b"oubliette" in line for line in shown)
    assert [
        shlex.quote(line.decode(errors="replace")) for line in shown if any(s.encode() in line for s in secrets)
    ] == []
