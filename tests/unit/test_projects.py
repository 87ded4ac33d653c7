"""Projects and workspaces (WIRE section 6)."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import pytest
import trio
import trio.testing

from oubliette import projects as module
from oubliette.agents.environment import Environment
from oubliette.config import Config
from oubliette.daemon import Daemon
from oubliette.errors import Conflict, InternalError, InvalidParams, LimitExceeded, NotFound
from oubliette.projects import DEFAULT, NewProject, Projects
from oubliette.records import ProjectRecord, WorkspaceRecord
from oubliette.scopes import parse_scope
from tests.helpers.domain import reconciled
from tests.helpers.records import MemoryRecords
from tests.helpers.waiting import LIMIT


class Records(MemoryRecords):
    """`fails` makes the next change fail; `gate` holds it up, and `reached` says that it waits there."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = False
        self.gate = trio.Event()
        self.gate.set()
        self.reached = trio.Event()

    async def _pass(self) -> None:
        self.reached.set()
        await self.gate.wait()
        if self.fails:
            raise InternalError("records cannot be written right now")

    async def create_project(self, record: ProjectRecord, workspace: WorkspaceRecord) -> None:
        await self._pass()
        await super().create_project(record, workspace)

    async def save_workspace(self, record: WorkspaceRecord) -> None:
        await self._pass()
        await super().save_workspace(record)

    async def delete_project(self, project_id: str, token_ids: Collection[str]) -> None:
        await self._pass()
        await super().delete_project(project_id, token_ids)


@pytest.fixture
def records() -> Records:
    return Records()


@pytest.fixture
async def projects(records: Records, tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[Projects]:
    projects = reconciled(records, tmp_path)
    await projects.ensure_default()
    await nursery.start(projects.errands.run)
    with trio.fail_after(LIMIT):
        yield projects
    nursery.cancel_scope.cancel()


def new(name: str = "one", **env: str) -> NewProject:
    return NewProject(name=name, env=Environment(env))


def beside(tmp_path: Path) -> set[str]:
    """The folders of workspaces and the files of `env` that there are."""
    root = tmp_path / "workspaces"
    folders = {str(path.relative_to(tmp_path)) for pattern in ("[!.]*", "[!.]*/*") for path in root.glob(pattern)}
    return folders | {path.name for path in (tmp_path / "env").glob("*")}


# The project `default`


async def test_the_default_project_is_there_from_the_first_start(projects: Projects, records: Records) -> None:
    project = projects.project(DEFAULT)
    workspace = projects.workspace(project, None)
    assert workspace.workspace_id == project.default_workspace_id
    assert (workspace.project_id, workspace.name) == (DEFAULT, DEFAULT)
    assert (records.projects(), records.workspaces()) == ([project], [workspace])


async def test_a_second_start_makes_no_other(projects: Projects, records: Records, tmp_path: Path) -> None:
    second = reconciled(records, tmp_path)
    await second.ensure_default()
    assert second.all() == projects.all()
    assert len(records.projects()) == len(records.workspaces()) == 1
    assert second.workspace(second.project(DEFAULT), None) == projects.workspace(projects.project(DEFAULT), None)


async def test_records_that_fail_leave_no_default_project(records: Records, tmp_path: Path) -> None:
    projects = reconciled(records, tmp_path)
    records.fails = True
    with pytest.raises(InternalError):
        await projects.ensure_default()
    with pytest.raises(NotFound):
        projects.project(DEFAULT)
    records.fails = False
    await projects.ensure_default()
    assert projects.project(DEFAULT).name == DEFAULT


def test_a_data_directory_that_cannot_be_used_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "workspaces").symlink_to("/tmp")
    with pytest.raises(InternalError, match="mount one there instead"):
        Projects(MemoryRecords(), tmp_path).reconcile()
    tmp_path.chmod(0o700)
    for _ in range(2):
        # And the records are let go of.
        with pytest.raises(InternalError, match="mount one there instead"):
            Daemon(Config(), tmp_path)


# What there is


async def test_what_is_not_there_is_not_found_by_its_argument(projects: Projects) -> None:
    for project_id in ("nope", "", "../default", "default\0"):
        with pytest.raises(NotFound) as refused:
            projects.project(project_id)
        assert refused.value.field == "project_id"
    for workspace_id in ("nope", "", ".", ".."):
        with pytest.raises(NotFound) as refused:
            projects.workspace(projects.project(DEFAULT), workspace_id)
        assert refused.value.field == "workspace_id"


async def test_a_workspace_of_another_project_is_not_found(projects: Projects) -> None:
    """HAZARDS T5, T8: a thing is looked up through the project that it belongs to."""
    other = await projects.create(new())
    with pytest.raises(NotFound):
        projects.workspace(projects.project(DEFAULT), other.default_workspace_id)


async def test_a_folder_is_made_for_the_daemon_alone(projects: Projects, tmp_path: Path) -> None:
    workspace = projects.workspace(projects.project(DEFAULT), None)
    folder = projects.folder(workspace)
    assert folder == projects.folder(workspace) == tmp_path / "workspaces" / DEFAULT / workspace.workspace_id
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


# Creation


async def test_a_project_has_a_workspace_a_folder_and_an_id_that_fits_a_scope(
    projects: Projects, records: Records, tmp_path: Path
) -> None:
    asked = NewProject(
        name="Grüße 👋",
        description="x",
        agent="a",
        runtime="process",
        packs=["ot"],
        env=Environment({"B": "", "A": "x"}),
    )
    project = await projects.create(asked)
    assert re.fullmatch(r"prj_[0-9a-f]{32}", project.project_id)
    assert parse_scope(f"project:{project.project_id}:ro") is not None
    assert (project.name, project.description, project.agent, project.runtime, project.packs) == (
        "Grüße 👋",
        "x",
        "a",
        "process",
        ["ot"],
    )
    assert projects.project(project.project_id) == project == records.project_records[project.project_id]
    assert projects.all() == [projects.project(DEFAULT), project]
    (workspace,) = projects.workspaces(project)
    assert (workspace.workspace_id, workspace.name) == (project.default_workspace_id, "default")
    assert projects.variables(project.project_id) == ["A", "B"]
    assert (tmp_path / "workspaces" / project.project_id / workspace.workspace_id).is_dir()


async def test_a_workspace_is_called_by_its_id_where_nobody_names_it(projects: Projects, tmp_path: Path) -> None:
    project = projects.project(DEFAULT)
    unnamed = await projects.create_workspace(project, None, Environment())
    named = await projects.create_workspace(project, "named", Environment({"A": "x"}))
    assert (unnamed.name, named.name) == (unnamed.workspace_id, "named")
    assert projects.workspaces(project)[1:] == [unnamed, named]
    assert projects.workspace(project, named.workspace_id) == named
    assert (tmp_path / "workspaces" / DEFAULT / named.workspace_id).is_dir()
    assert projects.variables(named.workspace_id) == ["A"]


@pytest.mark.parametrize(
    "name",
    ["", " ", " a", "a ", "a\n", "a\0b", "a\tb", "\x1b[31m", "a\u202eb", "\u200b", "\ud800", "a\xa0b", "x" * 201],
)
async def test_what_is_no_name_is_refused_with_what_one_is(projects: Projects, tmp_path: Path, name: str) -> None:
    before = beside(tmp_path)
    for creation in (
        projects.create(new(name)),
        projects.create_workspace(projects.project(DEFAULT), name, Environment()),
    ):
        with pytest.raises(InvalidParams, match="1 to 200 printable characters") as refused:
            await creation
        assert refused.value.field == "name"
    assert beside(tmp_path) == before


@pytest.mark.parametrize("packs", [[""], ["a", "a"], ["a b"], ["../x"], ["x" * 65], [f"p{n}" for n in range(65)]])
async def test_what_are_no_packs_is_refused(projects: Projects, packs: list[str]) -> None:
    with pytest.raises(InvalidParams) as refused:
        await projects.create(NewProject(name="x", packs=packs, env=Environment()))
    assert refused.value.field == "packs"


async def test_names_are_unique_where_they_must_be(projects: Projects) -> None:
    one = await projects.create(new("é"))
    for same in ("é", "e\u0301"):
        with pytest.raises(Conflict) as refused:
            await projects.create(new(same))
        assert refused.value.field == "name"
    for different in ("É", "e", "é2"):
        await projects.create(new(different))
    with pytest.raises(Conflict):
        await projects.create(new(DEFAULT))
    with pytest.raises(Conflict):
        await projects.create_workspace(one, "default", Environment())
    other = await projects.create(new("other"))
    for project in (one, other):
        await projects.create_workspace(project, "same", Environment())


async def test_of_two_that_come_together_one_gets_the_name(
    projects: Projects, records: Records, tmp_path: Path
) -> None:
    outcomes: list[str] = []

    async def create() -> None:
        try:
            await projects.create(new("same"))
            outcomes.append("created")
        except Conflict:
            outcomes.append("taken")

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(create)
    assert sorted(outcomes) == ["created", *["taken"] * 4]
    assert len(records.projects()) == 2
    assert len(beside(tmp_path)) == 4


async def test_there_is_a_bound_on_each(projects: Projects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PROJECTS", 2)
    monkeypatch.setattr(module, "MAX_WORKSPACES", 2)
    project = await projects.create(new("last"))
    with pytest.raises(LimitExceeded):
        await projects.create(new("more"))
    await projects.create_workspace(project, "last", Environment())
    with pytest.raises(LimitExceeded):
        await projects.create_workspace(project, "more", Environment())


@pytest.mark.parametrize("step", ["env", "folder", "record"])
async def test_what_fails_leaves_nothing(
    projects: Projects, records: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    before = beside(tmp_path)

    def fail(*arguments: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        if step == "env":
            patched.setattr(os, "replace", fail)
        elif step == "folder":
            patched.setattr("oubliette.workspaces.own_directory", fail)
        records.fails = step == "record"
        with pytest.raises(InternalError):
            await projects.create(new(A="x"))
        with pytest.raises(InternalError):
            await projects.create_workspace(projects.project(DEFAULT), "one", Environment({"A": "x"}))
    records.fails = False
    assert beside(tmp_path) == before
    assert len(projects.all()) == len(records.projects()) == 1
    assert projects.variables((await projects.create(new(A="x"))).project_id) == ["A"]


async def test_what_is_created_stays_although_its_asker_left(projects: Projects, records: Records) -> None:
    records.reached = trio.Event()
    records.gate = trio.Event()
    async with trio.open_nursery() as asking:
        asking.start_soon(projects.create, new(A="x"))
        await records.reached.wait()
        asking.cancel_scope.cancel()
    assert len(projects.all()) == 1
    records.gate.set()
    with trio.fail_after(LIMIT):
        while len(projects.all()) == 1:
            await trio.lowlevel.checkpoint()
    assert [project.name for project in records.projects()] == [DEFAULT, "one"]


# What agents get


async def test_a_workspaces_variables_go_over_its_projects(projects: Projects) -> None:
    project = await projects.create(new(A="project", B="project"))
    workspace = await projects.create_workspace(project, "x", Environment({"B": "workspace", "C": "workspace"}))
    assert await projects.environment(workspace) == {"A": "project", "B": "workspace", "C": "workspace"}
    default = projects.workspace(project, None)
    assert await projects.environment(default) == {"A": "project", "B": "project"}
    assert "workspace" not in repr(await projects.environment(workspace))


# Deletion


async def test_a_deleted_project_leaves_nothing_but_rubbish(
    projects: Projects, records: Records, tmp_path: Path
) -> None:
    before = beside(tmp_path)
    project = await projects.create(new(A="x"))
    workspace = await projects.create_workspace(project, "x", Environment({"B": "x"}))
    await projects.delete(project, [])
    assert beside(tmp_path) == before
    assert (len(projects.all()), len(records.projects()), len(records.workspaces())) == (1, 1, 1)
    assert projects.variables(workspace.workspace_id) == projects.variables(project.project_id) == []
    for look_up in (lambda: projects.project(project.project_id), lambda: projects.folder(workspace)):
        with pytest.raises(NotFound):
            look_up()
    await projects.create(new())


async def test_a_deleted_workspace_leaves_its_neighbours(projects: Projects, tmp_path: Path) -> None:
    project = await projects.create(new(A="x"))
    before = beside(tmp_path)
    workspace = await projects.create_workspace(project, "x", Environment({"B": "x"}))
    await projects.delete_workspace(workspace)
    assert beside(tmp_path) == before
    assert [one.name for one in projects.workspaces(project)] == ["default"]
    with pytest.raises(NotFound):
        projects.workspace(project, workspace.workspace_id)
    await projects.create_workspace(project, "x", Environment())


async def test_a_deletion_that_cannot_be_recorded_changes_nothing(
    projects: Projects, records: Records, tmp_path: Path
) -> None:
    project = await projects.create(new(A="x"))
    before = beside(tmp_path)
    records.fails = True
    with pytest.raises(InternalError):
        await projects.delete(project, [])
    assert projects.project(project.project_id) == project
    assert (beside(tmp_path), projects.variables(project.project_id)) == (before, ["A"])


async def test_nothing_is_added_to_what_goes(projects: Projects) -> None:
    project = await projects.create(new())
    workspace = projects.workspace(project, None)
    with projects.leaving(project.project_id):
        for refused in (lambda: projects.folder(workspace), lambda: projects.leaving(project.project_id).__enter__()):
            with pytest.raises(Conflict, match="is being deleted"):
                refused()
        with pytest.raises(Conflict, match="is being deleted"):
            await projects.create_workspace(project, "x", Environment())
    assert projects.folder(workspace).is_dir()


async def test_a_workspace_that_is_asked_for_too_late_is_not_created(
    projects: Projects, records: Records, tmp_path: Path
) -> None:
    """It waits for its turn behind the deletion of its project."""
    project = await projects.create(new())
    records.gate = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(projects.delete, project, [])
        await trio.testing.wait_all_tasks_blocked()
        refused: list[NotFound] = []

        async def create() -> None:
            with pytest.raises(NotFound) as error:
                await projects.create_workspace(project, "late", Environment({"A": "x"}))
            refused.append(error.value)

        nursery.start_soon(create)
        await trio.testing.wait_all_tasks_blocked()
        records.gate.set()
    assert len(refused) == 1
    assert len(records.workspaces()) == 1
    assert len(beside(tmp_path)) == 2
