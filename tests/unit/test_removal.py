"""The deletion of projects and workspaces with all that hangs on them, and the clean-up of sessions, by their tools."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from oubliette.agents.command import CommandAgent
from oubliette.errors import Conflict, Forbidden, InvalidParams, NotFound, OublietteError
from oubliette.runtimes.base import Settings
from oubliette.runtimes.process import ProcessRuntime
from oubliette.scopes import Scope
from oubliette.tokens import Principal
from tests.helpers.domain import OWNER, Domain, open_domain
from tests.helpers.waiting import LIMIT


def processes(folder: Path) -> ProcessRuntime:
    return ProcessRuntime(Settings(data_dir=folder, bundle=folder))


async def refused(domain: Domain, error: type[OublietteError], tool: str, **arguments: Any) -> str | None:
    with pytest.raises(error) as refusal:
        await domain.run(OWNER, tool, **arguments)
    return refusal.value.field


# project_delete


async def test_a_project_goes_with_its_sessions_and_its_tokens(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        project_id = (await domain.project()).project_id
        session = await domain.start(project_id=project_id)
        other = await domain.start()
        await domain.sessions.end(session)
        created = [await domain.services.tokens.create("x", f"project:{project_id}{ro}") for ro in ("", ":ro")]
        kept = await domain.services.tokens.create("x", "project:default")
        revoked: list[str] = []
        domain.services.tokens.watchers.add(revoked.append)
        assert await domain.run(OWNER, "project_delete", project_id=project_id) == {"deleted": True}
        assert [token.token_id for token in domain.services.tokens.all()] == [kept[1].token_id]
        assert sorted(revoked) == sorted(record.token_id for _, record in created)
        assert await refused(domain, NotFound, "project_get", project_id=project_id) == "project_id"
        assert await refused(domain, NotFound, "session_get", session_id=session.id) == "session_id"
        assert await refused(domain, NotFound, "session_events", session_id=session.id) == "session_id"
        listed = await domain.run(OWNER, "session_list")
        assert [one["session_id"] for one in listed["sessions"]] == [other.id]
        assert await refused(domain, NotFound, "project_delete", project_id=project_id) == "project_id"


async def test_active_sessions_keep_a_project_unless_it_is_forced(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        project_id = (await domain.project()).project_id
        sessions = [await domain.start("send", project_id=project_id) for _ in range(2)]
        sessions[0].relay.begin("send", b"{}")
        assert await refused(domain, Conflict, "project_delete", project_id=project_id) == "force"
        assert not sessions[0].ending.is_set()
        assert await domain.run(OWNER, "project_delete", project_id=project_id, force=True) == {"deleted": True}
        assert [session.status for session in sessions] == ["ended", "ended"]
        assert not list(sessions[0].relay.pending_entries())
        assert list(domain.sessions.live) == []


async def test_a_session_that_is_ending_is_waited_for(tmp_path: Path) -> None:
    """Its caller was told that it has ended: a conflict would be news to them."""
    async with open_domain(tmp_path) as domain:
        project_id = (await domain.project()).project_id
        session = await domain.start(project_id=project_id)
        session.end("ended")
        assert await domain.run(OWNER, "project_delete", project_id=project_id) == {"deleted": True}
        assert session.over.is_set()


async def test_no_session_slips_in_while_a_project_goes(tmp_path: Path) -> None:
    agent = CommandAgent([sys.executable, "-c", "input()"], {})
    async with open_domain(tmp_path, agents={"external": None, "slow": agent}, runtime=processes(tmp_path)) as domain:
        project_id = (await domain.project()).project_id
        await domain.start(project_id=project_id, agent="slow")
        async with trio.open_nursery() as nursery:
            deletion = {"project_id": project_id, "force": True}
            nursery.start_soon(lambda: domain.run(OWNER, "project_delete", **deletion))
            while not domain.sessions.active(project_id) == []:  # noqa: SIM201  # reads as it is meant
                await trio.lowlevel.checkpoint()
            with pytest.raises(Conflict, match="is being deleted"):
                await domain.start(project_id=project_id)
            with pytest.raises(Conflict, match="is being deleted already"):
                await domain.run(OWNER, "project_delete", **deletion)
        assert list(domain.sessions.live) == []
        assert domain.records.saved == {}


async def test_of_two_deletions_one_finds_nothing(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        project_id = (await domain.project()).project_id
        outcomes: list[str] = []

        async def delete() -> None:
            try:
                await domain.run(OWNER, "project_delete", project_id=project_id)
                outcomes.append("deleted")
            except (Conflict, NotFound) as error:
                outcomes.append(error.kind)

        with trio.fail_after(LIMIT):
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(delete)
        assert outcomes.count("deleted") == 1


async def test_a_deletion_goes_on_when_its_asker_leaves(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        project_id = (await domain.project()).project_id
        session = await domain.start(project_id=project_id)
        with trio.move_on_after(0):
            await domain.run(OWNER, "project_delete", project_id=project_id, force=True)
        with trio.fail_after(LIMIT):
            while project_id in domain.records.project_records:
                await trio.lowlevel.checkpoint()
        assert session.status == "ended"


async def test_the_default_project_stays(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        for principal in (OWNER, Principal("own", Scope("default", False))):
            with pytest.raises(Conflict, match="sessions go that name none"):
                await domain.run(principal, "project_delete", project_id="default", force=True)


async def test_a_token_may_delete_its_own_project_and_nothing_by_leaving_it_out(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        own, other = (await domain.project("own")).project_id, (await domain.project("other")).project_id
        principal = Principal("own", Scope(own, False))
        for project_id in ("", other, "default"):
            with pytest.raises(NotFound):
                await domain.run(principal, "project_delete", project_id=project_id)
        assert await domain.run(principal, "project_delete", project_id=own) == {"deleted": True}
        assert {project.project_id for project in domain.services.projects.all()} == {"default", other}


# workspace_delete


async def test_a_workspace_goes_and_its_ended_sessions_stay(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        project_id = (await domain.project()).project_id
        ids = {"project_id": project_id}
        workspace = await domain.run(OWNER, "workspace_create", name="x", env={"A": "canary"}, **ids)
        assert (workspace["name"], workspace["env"]) == ("x", ["A"])
        ids["workspace_id"] = workspace["workspace_id"]
        session = await domain.start(**ids)
        assert await refused(domain, Conflict, "workspace_delete", **ids) == "workspace_id"
        await domain.sessions.end(session)
        assert await domain.run(OWNER, "workspace_delete", **ids) == {"deleted": True}
        assert await refused(domain, NotFound, "workspace_delete", **ids) == "workspace_id"
        assert (await domain.run(OWNER, "session_get", session_id=session.id))["workspace_id"] == ids["workspace_id"]
        with pytest.raises(NotFound):
            await domain.start(**ids)
        listed = await domain.run(OWNER, "workspace_list", project_id=project_id)
        assert [one["name"] for one in listed["workspaces"]] == ["default"]


async def test_a_default_workspace_stays(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        project = await domain.project()
        ids = {"project_id": project.project_id, "workspace_id": project.default_workspace_id}
        with pytest.raises(Conflict, match="default workspace"):
            await domain.run(OWNER, "workspace_delete", **ids)


# Arguments that contradict each other (HAZARDS T5, T12)


async def test_what_belongs_to_another_project_is_not_found(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        one, two = await domain.project("one"), await domain.project("two")
        session = await domain.start(project_id=two.project_id)
        for arguments in (
            {"workspace_id": two.default_workspace_id, "message": "x"},
            {"session_id": session.id, "message": "x"},
        ):
            field = "workspace_id" if "workspace_id" in arguments else "project_id"
            asked = {"project_id": one.project_id, **arguments}
            assert await refused(domain, NotFound, "session_message", **asked) == field
            with pytest.raises(NotFound):
                await domain.run(Principal("one", Scope(one.project_id, False)), "session_message", **asked)
        ids = {"project_id": one.project_id, "workspace_id": two.default_workspace_id}
        assert await refused(domain, NotFound, "workspace_delete", **ids) == "workspace_id"
        assert session.log.last_index == 2


async def test_a_workspace_alone_says_which_project_is_meant(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        one, two = await domain.project("one"), await domain.project("two")
        session = await domain.start(workspace_id=two.default_workspace_id)
        assert session.project_id == two.project_id
        own = Principal("one", Scope(one.project_id, False))
        said = []
        for workspace_id in (two.default_workspace_id, "wsp_" + "0" * 32):
            with pytest.raises(NotFound) as unseen:
                await domain.run(own, "session_message", workspace_id=workspace_id, message="x")
            said.append(unseen.value.message.replace(workspace_id, "ID"))
        assert said[0] == said[1]
        view = await domain.run(own, "session_message", workspace_id=one.default_workspace_id, message="x")
        assert view["project_id"] == one.project_id


async def test_the_last_page_of_sessions_says_so(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        for _ in range(4):
            await domain.start()
        first = await domain.run(OWNER, "session_list", limit=2)
        second = await domain.run(OWNER, "session_list", limit=2, cursor=first["next_cursor"])
        assert "next_cursor" not in second
        assert len({one["session_id"] for one in first["sessions"] + second["sessions"]}) == 4


async def test_a_scope_sees_its_own_project_alone(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        own = (await domain.project("own", KEY="canary")).project_id
        sessions = {project_id: (await domain.start(project_id=project_id)).id for project_id in (own, "default")}
        for read_only in (False, True):
            principal = Principal("own", Scope(own, read_only))
            listed = await domain.run(principal, "project_list")
            assert [(one["project_id"], one["env"]) for one in listed["projects"]] == [(own, ["KEY"])]
            page = await domain.run(principal, "session_list")
            assert [one["session_id"] for one in page["sessions"]] == [sessions[own]]
            for project_id in ("default", "prj_" + "0" * 32):
                with pytest.raises(NotFound) as unseen:
                    await domain.run(principal, "project_get", project_id=project_id)
                assert unseen.value.message == f"no project {project_id!r}"


# project_create, project_options


@pytest.mark.parametrize(
    ("arguments", "field", "said"),
    [
        ({"agent": "nobody"}, "agent", "external"),
        ({"runtime": "docker"}, "runtime", "process"),
        ({"runtime": "auto"}, "runtime", "process"),
        ({"env": {"OUBLIETTE_SOCKET": "canary"}}, "env.OUBLIETTE_SOCKET", "daemon itself"),
        ({"env": {"A B": "canary"}}, "env", "letters, digits"),
        ({"packs": ["a b"]}, "packs", "one of: ot"),
        ({"name": ""}, "name", "printable"),
    ],
)
async def test_what_a_project_cannot_be_is_refused_with_what_it_can(
    tmp_path: Path, arguments: dict[str, Any], field: str, said: str
) -> None:
    async with open_domain(tmp_path) as domain:
        with pytest.raises(InvalidParams, match=said) as refusal:
            await domain.run(OWNER, "project_create", **{"name": "x", **arguments})
        assert refusal.value.field == field
        assert "canary" not in refusal.value.message
        assert len(domain.services.projects.all()) == 1


async def test_the_options_are_what_is_taken(tmp_path: Path) -> None:
    async with open_domain(tmp_path, max_active=7) as domain:
        options = await domain.run(OWNER, "project_options")
        assert (options["agents"], options["runtimes"], options["packs"]) == (["external"], ["process"], ["ot"])
        assert options["limits"]["active_sessions_per_project"] == 7
        limit = options["limits"]["name_characters"]
        created = await domain.run(
            OWNER,
            "project_create",
            name="x" * limit,
            agent=options["agents"][0],
            runtime=options["runtimes"][0],
            description=None,
            packs=None,
            env=None,
        )
        assert (created["agent"], created["runtime"], created["packs"], created["env"]) == (
            "external",
            "process",
            None,
            [],
        )
        assert created["description"] == ""


async def test_sessions_inherit_what_their_project_says(tmp_path: Path) -> None:
    agent = CommandAgent(["sh", "-c", "echo $A $B; pwd"], {"A": "profile", "B": "profile"})
    async with open_domain(tmp_path, agents={"external": None, "shell": agent}, runtime=processes(tmp_path)) as domain:
        created = await domain.run(
            OWNER, "project_create", name="x", agent="shell", runtime="process", env={"B": "project"}
        )
        with trio.fail_after(LIMIT):
            view = await domain.run(OWNER, "session_message", message="x", project_id=created["project_id"], wait=True)
        assert (view["agent"], view["runtime"], view["workspace_id"]) == (
            "shell",
            "process",
            created["default_workspace_id"],
        )
        said, folder = view["text"].split("\n")
        assert said == "profile project"
        assert Path(folder).name == created["default_workspace_id"]


async def test_an_agent_does_not_start_without_its_variables(tmp_path: Path) -> None:
    agent = CommandAgent(["true"], {})
    async with open_domain(tmp_path, agents={"external": None, "shell": agent}, runtime=processes(tmp_path)) as domain:
        project = await domain.project(A="canary")
        (tmp_path / "env" / f"{project.project_id}.json").unlink()
        session = await domain.start(agent="shell", project_id=project.project_id)
        with trio.fail_after(LIMIT):
            await session.over.wait()
        assert session.status == "failed"
        (error,) = [event.data for event in domain.records.stored if event.type == "error"]
        assert b"cannot be read" in error


# session_cleanup


async def ended_at(domain: Domain, when: str, project_id: str = "default") -> str:
    session = await domain.start(project_id=project_id)
    await domain.sessions.end(session)
    domain.records.saved[session.id] = msgspec.structs.replace(domain.records.saved[session.id], ended_at=when)
    return session.id


async def left(domain: Domain) -> set[str]:
    return {one["session_id"] for one in (await domain.run(OWNER, "session_list"))["sessions"]}


OLD = "2020-01-01T00:00:00.000Z"


async def test_ended_sessions_of_a_certain_age_are_removed(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        old, running = await ended_at(domain, OLD), await domain.start()
        young = await domain.start()
        await domain.sessions.end(young)
        assert await domain.run(OWNER, "session_cleanup") == {"removed": 1}
        assert await left(domain) == {running.id, young.id}
        assert await refused(domain, NotFound, "session_get", session_id=old) == "session_id"
        assert await refused(domain, NotFound, "session_events", session_id=old) == "session_id"
        assert {event.session_id for event in domain.records.stored} == {running.id, young.id}
        assert await domain.run(OWNER, "session_cleanup", max_age_hours=0) == {"removed": 1}
        assert await left(domain) == {running.id}
        assert await domain.run(OWNER, "session_cleanup", max_age_hours=0) == {"removed": 0}


async def test_a_cleanup_reaches_as_far_as_the_scope(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        own, other = (await domain.project("own")).project_id, (await domain.project("other")).project_id
        sessions = {project_id: await ended_at(domain, OLD, project_id) for project_id in (own, other, "default")}
        principal = Principal("own", Scope(own, False))
        for project_id in (other, "default", "nowhere"):
            with pytest.raises(NotFound):
                await domain.run(principal, "session_cleanup", project_id=project_id)
        with pytest.raises(Forbidden):
            await domain.run(Principal("own", Scope(own, True)), "session_cleanup")
        assert await domain.run(principal, "session_cleanup") == {"removed": 1}
        assert await left(domain) == {sessions[other], sessions["default"]}
        assert await domain.run(OWNER, "session_cleanup", project_id=other) == {"removed": 1}
        assert await domain.run(OWNER, "session_cleanup") == {"removed": 1}


async def test_a_session_that_is_still_saying_goodbye_is_not_removed(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        session = await domain.start()
        session.end("ended")
        domain.records.saved[session.id] = session.record
        assert await domain.run(OWNER, "session_cleanup", max_age_hours=0) == {"removed": 0}
        await session.over.wait()
        await wait_all_tasks_blocked()
        assert await domain.run(OWNER, "session_cleanup", max_age_hours=0) == {"removed": 1}


async def test_of_two_cleanups_each_session_is_counted_once(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        for _ in range(3):
            await ended_at(domain, OLD)
        removed: list[int] = []

        async def clean() -> None:
            removed.append((await domain.run(OWNER, "session_cleanup"))["removed"])

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(clean)
        assert sum(removed) == 3
