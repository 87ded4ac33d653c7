"""Projects and their workspaces: records, and folders under the data directory."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final, Protocol

from oubliette import clock
from oubliette.errors import NotFound
from oubliette.records import ProjectRecord, WorkspaceRecord

# WIRE section 6: "no `project_id` is a project scope's own, else the project `default`".
DEFAULT: Final = "default"


class ProjectStore(Protocol):
    def projects(self) -> list[ProjectRecord]: ...
    def workspaces(self) -> list[WorkspaceRecord]: ...
    async def save_project(self, record: ProjectRecord) -> None: ...
    async def save_workspace(self, record: WorkspaceRecord) -> None: ...


class Projects:
    """Every project and workspace there is."""

    def __init__(self, store: ProjectStore, data_dir: Path) -> None:
        self._store = store
        self._root = data_dir / "workspaces"
        self._projects = {record.project_id: record for record in store.projects()}
        self._workspaces = {record.workspace_id: record for record in store.workspaces()}

    async def ensure_default(self) -> None:
        """Creates the project `default` and its workspace where they are missing, records before folders."""
        if DEFAULT not in self._projects:
            workspace_id = f"wsp_{secrets.token_hex(16)}"
            project = ProjectRecord(
                project_id=DEFAULT,
                name=DEFAULT,
                description="The project of sessions that name none",
                agent=None,
                runtime=None,
                packs=None,
                default_workspace_id=workspace_id,
                created_at=clock.now(),
            )
            workspace = WorkspaceRecord(
                workspace_id=workspace_id, project_id=DEFAULT, name=DEFAULT, created_at=project.created_at
            )
            await self._store.save_workspace(workspace)
            await self._store.save_project(project)
            self._workspaces[workspace_id] = workspace
            self._projects[DEFAULT] = project

    def project(self, project_id: str) -> ProjectRecord:
        """Returns a project. Raises `NotFound`."""
        if project_id not in self._projects:
            raise NotFound(f"no project {project_id!r}", field="project_id")
        return self._projects[project_id]

    def workspace(self, project: ProjectRecord, workspace_id: str | None) -> WorkspaceRecord:
        """Returns a workspace of `project`, its default one without an id. Raises `NotFound`."""
        workspace = self._workspaces.get(workspace_id or project.default_workspace_id)
        if workspace is None or workspace.project_id != project.project_id:
            raise NotFound(f"no workspace {workspace_id!r} in project {project.project_id!r}", field="workspace_id")
        return workspace

    def folder(self, workspace: WorkspaceRecord) -> Path:
        """Returns a workspace's folder, made where it is missing; only the daemon may enter it."""
        folder = self._root / workspace.project_id / workspace.workspace_id
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder
