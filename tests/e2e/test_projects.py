"""Projects, workspaces and their `env` through the doors of a real daemon (WIRE section 6; HAZARDS G17, T12, T21)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.helpers.http import Api
from tests.helpers.mcp_http import McpHttp, initialized
from tests.helpers.process import DaemonProcess
from tests.helpers.waiting import LIMIT, until

CONFIG = """
log: {level: debug}
agents:
  default: shell
  profiles:
    shell: {type: command, command: [sh], env: {BOTH: profile}}
    slow: {type: command, command: [sleep, '60']}
    external: {type: external}
"""
SECRETS = {"KEY": "canary-of-the-project", "BOTH": "project", "OUBLIETTE_API_KEY": "canary-key"}


@pytest.fixture(scope="module")
def shared() -> Iterator[DaemonProcess]:
    with DaemonProcess(CONFIG) as process:
        yield process
        secrets = [b"canary-of-the-project", b"canary-of-the-workspace", b"canary-key"]
        for path in [process.log, *process.data_dir.rglob("*")]:
            # The one place where they may be, and the folders of agents, which were given them.
            if path.is_file() and path.parent.name != "env" and "workspaces" not in path.parts:
                assert not [secret for secret in secrets if secret in path.read_bytes()], path


class Operator:
    """Calls tools over MCP as a token would."""

    def __init__(self, mcp: McpHttp) -> None:
        self._mcp = mcp

    async def ok(self, tool: str, **arguments: Any) -> Any:
        result = await self._mcp.call(tool, **arguments)
        assert not result.get("isError"), result
        return result["structuredContent"]

    async def refused(self, tool: str, **arguments: Any) -> str:
        """Returns the kind of the error."""
        result = await self._mcp.call(tool, **arguments)
        assert result["isError"]
        assert "canary" not in json.dumps(result)
        return str(result["_meta"]["oubliette/error"]["kind"])

    async def say(self, script: str, **place: str) -> str:
        """Runs a script as an agent; returns what it says."""
        with trio.fail_after(LIMIT):
            session = await self.ok("session_message", message=script, wait=True, **place)
        await self.ok("session_end", session_id=session["session_id"])
        return str(session["text"])


@pytest.fixture
async def admin(shared: DaemonProcess) -> Operator:
    return await operator(shared, shared.admin_token)


async def operator(daemon: DaemonProcess, token: str) -> Operator:
    return Operator(await initialized(Api(daemon.port, token)))


def folder_of(daemon: DaemonProcess, project: Any) -> Path:
    return daemon.data_dir / "workspaces" / str(project["project_id"])


async def test_agents_work_in_the_workspace_with_its_variables_over_its_projects(
    shared: DaemonProcess, admin: Operator
) -> None:
    project = await admin.ok("project_create", name="variables", env=SECRETS)
    assert project["env"] == ["BOTH", "KEY", "OUBLIETTE_API_KEY"]
    place = {"project_id": project["project_id"]}
    workspace = await admin.ok(
        "workspace_create", name="own", env={"BOTH": "workspace", "MORE": "canary-of-the-workspace"}, **place
    )
    lengths = "echo ${#KEY} $BOTH ${#MORE} ${#OUBLIETTE_API_KEY}; pwd; echo $OUBLIETTE_PROJECT_ID"
    assert (await admin.say(lengths, **place)).split("\n") == [
        f"{len(SECRETS['KEY'])} project 0 {len(SECRETS['OUBLIETTE_API_KEY'])}",
        str(folder_of(shared, project) / project["default_workspace_id"]),
        project["project_id"],
    ]
    said = await admin.say(lengths, workspace_id=workspace["workspace_id"], **place)
    assert said.startswith(f"{len(SECRETS['KEY'])} workspace {len('canary-of-the-workspace')} ")
    assert (await admin.say("echo ${#KEY} $BOTH")).split("\n") == ["0 profile"]
    files = list((shared.data_dir / "env").iterdir())
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    for shown in (await admin.ok("project_list"), await admin.ok("workspace_list", **place)):
        assert "canary" not in json.dumps(shown)


async def test_a_deleted_project_is_gone_with_everything(shared: DaemonProcess, admin: Operator) -> None:
    project = await admin.ok("project_create", name="doomed", env={"KEY": "canary-of-the-project"})
    place = {"project_id": project["project_id"]}
    token = (await admin.ok("token_create", name="x", scope=f"project:{project['project_id']}"))["token"]
    own = await operator(shared, token)
    session = await own.ok("session_message", message="x", agent="slow", **place)
    outside = shared.root / "outside"
    outside.mkdir()
    (outside / "canary").write_text("alive")
    workspace = folder_of(shared, project) / project["default_workspace_id"]
    (workspace / "link").symlink_to(outside)
    assert await own.refused("project_delete", **place) == "conflict"
    assert await admin.refused("project_create", name="doomed") == "conflict"
    # A token may delete its own project, and with it itself: it is told so.
    assert await own.ok("project_delete", force=True, **place) == {"deleted": True}
    assert await admin.refused("project_get", **place) == "not_found"
    assert await admin.refused("session_get", session_id=session["session_id"]) == "not_found"
    assert (await Api(shared.port, token).get("/sessions/x")).status == 401
    api = Api(shared.port, shared.admin_token)
    assert (await api.get(f"/sessions/{session['session_id']}/events")).status == 404
    assert not folder_of(shared, project).exists()
    await until(lambda: not list((shared.data_dir / "workspaces" / ".trash").iterdir()))
    assert not (shared.data_dir / "env" / f"{project['project_id']}.json").exists()
    assert (outside / "canary").read_text() == "alive"
    assert (await admin.ok("project_create", name="doomed"))["project_id"] != project["project_id"]


async def test_a_workspace_that_its_agent_replaced_by_a_link_takes_nothing_with_it(
    shared: DaemonProcess, admin: Operator
) -> None:
    """HAZARDS T21, with an agent that does it."""
    place = {"project_id": (await admin.ok("project_create", name="links"))["project_id"]}
    place["workspace_id"] = (await admin.ok("workspace_create", **place))["workspace_id"]
    outside = shared.root / "victim"
    outside.mkdir()
    (outside / "canary").write_text("alive")
    script = f"cd .. && rm -r {place['workspace_id']} && ln -s {outside} {place['workspace_id']} && echo done"
    assert await admin.say(script, **place) == "done"
    assert await admin.refused("session_message", message="x", **place) == "conflict"
    assert await admin.ok("workspace_delete", **place) == {"deleted": True}
    assert (outside / "canary").read_text() == "alive"
    left = {path.name for path in (shared.data_dir / "workspaces" / place["project_id"]).iterdir()}
    assert place["workspace_id"] not in left
    assert len(left) == 1


async def test_one_projects_key_does_nothing_in_another(shared: DaemonProcess, admin: Operator) -> None:
    """HAZARDS T12."""
    mine, theirs = [await admin.ok("project_create", name=name) for name in ("mine", "theirs")]
    session = await admin.ok("session_message", message="x", agent="external", project_id=theirs["project_id"])
    token = (await admin.ok("token_create", name="x", scope=f"project:{mine['project_id']}"))["token"]
    own = await operator(shared, token)
    here = {"project_id": mine["project_id"]}
    for tool, arguments in {
        "session_message": {"message": "x", "session_id": session["session_id"], **here},
        "workspace_delete": {"workspace_id": theirs["default_workspace_id"], **here},
        "workspace_list": {"project_id": theirs["project_id"]},
        "session_cleanup": {"project_id": theirs["project_id"]},
    }.items():
        assert await own.refused(tool, **arguments) == "not_found"
    in_their_workspace = {"message": "x", "workspace_id": theirs["default_workspace_id"], **here}
    assert await own.refused("session_message", **in_their_workspace) == "not_found"
    assert await own.refused("project_create", name="no") == "forbidden"
    assert [one["name"] for one in (await own.ok("project_list"))["projects"]] == ["mine"]
    await admin.ok("session_end", session_id=session["session_id"])


async def test_removed_sessions_are_not_found_by_any_door(shared: DaemonProcess, admin: Operator) -> None:
    place = {"project_id": (await admin.ok("project_create", name="old"))["project_id"]}
    session = await admin.ok("session_message", message="x", agent="external", **place)
    route = f"/sessions/{session['session_id']}"
    assert await admin.ok("session_cleanup", max_age_hours=0, **place) == {"removed": 0}
    await admin.ok("session_end", session_id=session["session_id"])
    assert await admin.ok("session_cleanup", **place) == {"removed": 0}
    assert await admin.ok("session_cleanup", max_age_hours=0, **place) == {"removed": 1}
    api = Api(shared.port, shared.admin_token)
    for path in (route, f"{route}/events", f"{route}/events?since_index=0"):
        assert (await api.get(path)).status == 404
    assert (await admin.ok("session_list", **place))["sessions"] == []
    assert await admin.refused("session_message", session_id=session["session_id"], message="x") == "not_found"


async def test_everything_confirmed_is_there_after_a_kill() -> None:
    with DaemonProcess(CONFIG) as daemon:
        admin = await operator(daemon, daemon.admin_token)
        kept = await admin.ok("project_create", name="kept", agent="external", env={"KEY": "x"})
        gone = await admin.ok("project_create", name="gone", env={"KEY": "x"})
        workspace = await admin.ok("workspace_create", project_id=kept["project_id"], name="w")
        session = await admin.ok("session_message", message="x", agent="external", project_id=gone["project_id"])
        await admin.ok("project_delete", project_id=gone["project_id"], force=True)
        daemon.kill()
        daemon.start()
        admin = await operator(daemon, daemon.admin_token)
        assert (await admin.ok("project_list"))["projects"][1:] == [kept]
        listed = (await admin.ok("workspace_list", project_id=kept["project_id"]))["workspaces"]
        assert [one["name"] for one in listed] == ["default", "w"]
        assert await admin.refused("session_get", session_id=session["session_id"]) == "not_found"
        assert folder_of(daemon, kept).joinpath(workspace["workspace_id"]).is_dir()
        assert not folder_of(daemon, gone).exists()
        started = await admin.ok("session_message", message="x", project_id=kept["project_id"])
        assert started["agent"] == "external"
