"""Projects and workspaces (WIRE section 6)."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import trio

from oubliette.errors import InternalError, NotFound
from oubliette.projects import DEFAULT, Projects
from oubliette.records import ProjectRecord, WorkspaceRecord


class ProjectRecords:
    """Records of projects alone; `order` is what was saved, `fails` makes the next save fail."""

    def __init__(self) -> None:
        self.saved_projects: dict[str, ProjectRecord] = {}
        self.saved_workspaces: dict[str, WorkspaceRecord] = {}
        self.order: list[str] = []
        self.fails = False

    def projects(self) -> list[ProjectRecord]:
        return list(self.saved_projects.values())

    def workspaces(self) -> list[WorkspaceRecord]:
        return list(self.saved_workspaces.values())

    async def save_project(self, record: ProjectRecord) -> None:
        await self._save("project")
        self.saved_projects[record.project_id] = record

    async def save_workspace(self, record: WorkspaceRecord) -> None:
        await self._save("workspace")
        self.saved_workspaces[record.workspace_id] = record

    async def _save(self, what: str) -> None:
        await trio.lowlevel.checkpoint()
        if self.fails:
            raise InternalError("records cannot be written right now")
        self.order.append(what)


async def test_the_default_project_is_there_from_the_first_start(tmp_path: Path) -> None:
    records = ProjectRecords()
    projects = Projects(records, tmp_path)
    await projects.ensure_default()
    project = projects.project(DEFAULT)
    workspace = projects.workspace(project, None)
    assert workspace.workspace_id == project.default_workspace_id
    assert (workspace.project_id, records.order) == (DEFAULT, ["workspace", "project"])


async def test_a_second_start_makes_no_other(tmp_path: Path) -> None:
    records = ProjectRecords()
    first = Projects(records, tmp_path)
    await first.ensure_default()
    second = Projects(records, tmp_path)
    await second.ensure_default()
    assert records.order == ["workspace", "project"]
    assert second.project(DEFAULT) == first.project(DEFAULT)
    assert second.workspace(second.project(DEFAULT), None) == first.workspace(first.project(DEFAULT), None)


async def test_records_that_fail_leave_no_project(tmp_path: Path) -> None:
    records = ProjectRecords()
    projects = Projects(records, tmp_path)
    records.fails = True
    with pytest.raises(InternalError):
        await projects.ensure_default()
    with pytest.raises(NotFound):
        projects.project(DEFAULT)
    records.fails = False
    await projects.ensure_default()
    assert projects.project(DEFAULT).name == DEFAULT


async def test_what_is_not_there_is_not_found_by_its_argument(tmp_path: Path) -> None:
    projects = Projects(ProjectRecords(), tmp_path)
    await projects.ensure_default()
    with pytest.raises(NotFound) as refused:
        projects.project("nope")
    assert refused.value.field == "project_id"
    with pytest.raises(NotFound) as refused:
        projects.workspace(projects.project(DEFAULT), "nope")
    assert refused.value.field == "workspace_id"


async def test_a_workspace_of_another_project_is_not_found(tmp_path: Path) -> None:
    """HAZARDS T5, T8: a thing is looked up through the project that it belongs to."""
    records = ProjectRecords()
    records.saved_workspaces["wsp_b"] = WorkspaceRecord(
        workspace_id="wsp_b", project_id="b", name="b", created_at="2026-01-01T00:00:00.000Z"
    )
    projects = Projects(records, tmp_path)
    await projects.ensure_default()
    with pytest.raises(NotFound):
        projects.workspace(projects.project(DEFAULT), "wsp_b")


async def test_a_folder_is_made_for_the_daemon_alone(tmp_path: Path) -> None:
    projects = Projects(ProjectRecords(), tmp_path)
    await projects.ensure_default()
    workspace = projects.workspace(projects.project(DEFAULT), None)
    folder = projects.folder(workspace)
    assert folder == projects.folder(workspace) == tmp_path / "workspaces" / DEFAULT / workspace.workspace_id
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
