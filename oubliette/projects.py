"""Projects and their workspaces: records, folders under the data directory, and `env` values beside them.

**No half of anything**, whenever the daemon is killed. What is created gets its `env` and its folder first and its
record last; what is deleted loses its record first. So a folder or an `env` without a record is what a crash left, and
`reconcile` removes it before anybody can ask. One change at a time: names stay unique, and a workspace is never added
to a project that goes.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import trio
from msgspec import Struct

from oubliette import clock
from oubliette.agents.environment import Environment
from oubliette.environments import Environments
from oubliette.errands import Errands
from oubliette.errors import Conflict, InternalError, LimitExceeded, NotFound
from oubliette.labels import check_label, check_packs, same_for_readers
from oubliette.log import get as get_logger
from oubliette.records import ProjectRecord, WorkspaceRecord
from oubliette.workspaces import WorkspaceFolders

# WIRE section 6: "no `project_id` is a project scope's own, else the project `default`".
DEFAULT: Final = "default"
# All of them are in memory, some 500 bytes each, and a list of them is one answer.
MAX_PROJECTS: Final = 10_000
MAX_WORKSPACES: Final = 1000

log = get_logger(__name__)


class ProjectStore(Protocol):
    def projects(self) -> list[ProjectRecord]: ...
    def workspaces(self) -> list[WorkspaceRecord]: ...
    async def create_project(self, record: ProjectRecord, workspace: WorkspaceRecord) -> None: ...
    async def save_workspace(self, record: WorkspaceRecord) -> None: ...
    async def delete_project(self, project_id: str, token_ids: Collection[str]) -> None: ...
    async def delete_workspace(self, workspace_id: str) -> None: ...


class NewProject(Struct, frozen=True, kw_only=True):
    """What a project is created with; `agent`, `runtime` and `packs` are None where its sessions get the defaults."""

    name: str
    description: str = ""
    agent: str | None = None
    runtime: str | None = None
    packs: list[str] | None = None
    env: Environment


class Projects:
    """Every project and workspace there is. `reconcile` comes first; `errands.run` must be running for changes."""

    def __init__(self, store: ProjectStore, data_dir: Path) -> None:
        self.errands = Errands()
        self.folders = WorkspaceFolders(data_dir)
        self._environments = Environments(data_dir)
        self._store = store
        self._projects = {record.project_id: record for record in store.projects()}
        self._workspaces = {record.workspace_id: record for record in store.workspaces()}
        # The ids of what is being deleted.
        self._leaving: set[str] = set()
        self._turn = trio.Lock()

    # The start

    def reconcile(self) -> None:
        """Clears away what a crash left half done. Raises `InternalError`, in words for the operator."""
        try:
            self.folders.reconcile(self._workspaces.values())
            self._environments.reconcile(self._projects.keys() | self._workspaces.keys())
        except OSError as error:
            raise InternalError(
                f"workspaces or env in the data directory cannot be used ({error.strerror}): each must be a directory "
                "of this user, and no symbolic link (mount one there instead)"
            ) from error

    async def ensure_default(self) -> None:
        """Creates the project `default` and its workspace where they are missing. Raises `InternalError`."""
        if DEFAULT not in self._projects:
            new = NewProject(name=DEFAULT, description="The project of sessions that name none", env=Environment())
            record = _project_record(DEFAULT, new)
            workspace = _default_workspace(record)
            self.folders.make(workspace)
            await self._store.create_project(record, workspace)
            self._keep(record, workspace)

    # What there is

    def project(self, project_id: str) -> ProjectRecord:
        """Returns a project. Raises `NotFound`."""
        if project_id not in self._projects:
            raise NotFound(f"no project {project_id!r}", field="project_id")
        return self._projects[project_id]

    def all(self) -> list[ProjectRecord]:
        """Returns every project, oldest first."""
        return list(self._projects.values())

    def workspace(self, project: ProjectRecord, workspace_id: str | None) -> WorkspaceRecord:
        """Returns a workspace of `project`, its default one without an id. Raises `NotFound`."""
        workspace = self._workspaces.get(project.default_workspace_id if workspace_id is None else workspace_id)
        if workspace is None or workspace.project_id != project.project_id:
            raise _no_workspace(workspace_id)
        return workspace

    def home_of(self, workspace_id: str) -> str:
        """Returns the id of the project that a workspace belongs to. Raises `NotFound`."""
        if workspace_id not in self._workspaces:
            raise _no_workspace(workspace_id)
        return self._workspaces[workspace_id].project_id

    def workspaces(self, project: ProjectRecord) -> list[WorkspaceRecord]:
        """Returns the workspaces of a project, oldest first."""
        return [one for one in self._workspaces.values() if one.project_id == project.project_id]

    def variables(self, owner: str) -> list[str]:
        """Returns the names of the variables in the `env` of a project or a workspace, by its id."""
        return self._environments.names(owner)

    # What sessions need

    def folder(self, workspace: WorkspaceRecord) -> Path:
        """Returns a workspace's folder, for a session that starts there.

        Raises `NotFound` and `Conflict` where it is deleted or being deleted, and `InternalError`.
        """
        self.check_stays(self.workspace(self.project(workspace.project_id), workspace.workspace_id))
        return self.folders.make(workspace)

    async def environment(self, workspace: WorkspaceRecord) -> Environment:
        """Returns the variables of an agent that works in a workspace: "a workspace's go over its project's".

        Raises `InternalError` where they cannot be read.
        """
        together = Environment()
        for owner in (workspace.project_id, workspace.workspace_id):
            if self._environments.names(owner):
                together |= await trio.to_thread.run_sync(self._environments.read, owner)
        return together

    def check_stays(self, workspace: WorkspaceRecord) -> None:
        """Raises `Conflict` where a workspace, or its project, is being deleted."""
        for field, id in (("project_id", workspace.project_id), ("workspace_id", workspace.workspace_id)):
            if id in self._leaving:
                raise Conflict(f"{id!r} is being deleted", field=field)

    # Changes

    async def create(self, new: NewProject) -> ProjectRecord:
        """Creates a project with its default workspace; what it names is known to exist.

        Raises `InvalidParams`, `Conflict` where the name is taken, `LimitExceeded`, and `InternalError` where it cannot
        be stored; then there is nothing of it.
        """
        check_label(new.name)
        check_packs(new.packs)
        return await self.errands.carry_out(partial(self._create, new))

    async def create_workspace(self, project: ProjectRecord, name: str | None, env: Environment) -> WorkspaceRecord:
        """Creates a workspace, called by its id where no name is given. Raises as `create` does."""
        workspace_id = _new_id("wsp")
        record = _workspace_record(workspace_id, project.project_id, workspace_id if name is None else name)
        check_label(record.name)
        await self.errands.carry_out(partial(self._create_workspace, record, env))
        return record

    @contextmanager
    def leaving(self, id: str) -> Iterator[None]:
        """Keeps new sessions out of a project or a workspace that is being deleted, for as long as that takes.

        Raises `Conflict` where somebody else deletes it already.
        """
        if id in self._leaving:
            raise Conflict(f"{id!r} is being deleted already")
        self._leaving.add(id)
        try:
            yield
        finally:
            self._leaving.discard(id)

    async def delete(self, project: ProjectRecord, token_ids: Collection[str]) -> None:
        """Deletes a project that is `leaving` and has no active sessions, with its workspaces and these tokens.

        Raises `InternalError` where that cannot be recorded; then nothing has changed.
        """
        async with self._turn:
            workspaces = self.workspaces(project)
            await self._store.delete_project(project.project_id, token_ids)
            del self._projects[project.project_id]
            self._forget(workspaces)
        await trio.to_thread.run_sync(self.folders.remove_project, project.project_id)
        await self._clean_up(project.project_id, *(workspace.workspace_id for workspace in workspaces))
        log.info("project deleted", project=project.project_id)

    async def delete_workspace(self, workspace: WorkspaceRecord) -> None:
        """Deletes a workspace that is `leaving` and has no active sessions. Raises as `delete` does."""
        async with self._turn:
            await self._store.delete_workspace(workspace.workspace_id)
            self._forget([workspace])
        await trio.to_thread.run_sync(self.folders.remove, workspace)
        await self._clean_up(workspace.workspace_id)
        log.info("workspace deleted", workspace=workspace.workspace_id, project=workspace.project_id)

    def _forget(self, workspaces: Iterable[WorkspaceRecord]) -> None:
        for workspace in workspaces:
            # Its project's deletion may have come first.
            self._workspaces.pop(workspace.workspace_id, None)

    async def _clean_up(self, *owners: str) -> None:
        self.folders.trash_was_filled()
        await trio.to_thread.run_sync(self._environments.remove, owners)

    async def _create(self, new: NewProject) -> ProjectRecord:
        async with self._turn:
            _refuse_taken(new.name, self._projects.values(), "a project")
            _refuse_too_many(len(self._projects), MAX_PROJECTS, "projects")
            record = _project_record(_new_id("prj"), new)
            workspace = _default_workspace(record)
            async with self._made(workspace, record.project_id, new.env):
                await self._store.create_project(record, workspace)
            self._keep(record, workspace)
        log.info("project created", project=record.project_id)
        return record

    def _keep(self, record: ProjectRecord, workspace: WorkspaceRecord) -> None:
        self._projects[record.project_id] = record
        self._workspaces[workspace.workspace_id] = workspace

    async def _create_workspace(self, record: WorkspaceRecord, env: Environment) -> None:
        async with self._turn:
            self.check_stays(record)
            others = self.workspaces(self.project(record.project_id))
            _refuse_taken(record.name, others, "a workspace of this project")
            _refuse_too_many(len(others), MAX_WORKSPACES, "workspaces in this project")
            async with self._made(record, record.workspace_id, env):
                await self._store.save_workspace(record)
            self._workspaces[record.workspace_id] = record
        log.info("workspace created", workspace=record.workspace_id, project=record.project_id)

    @asynccontextmanager
    async def _made(self, workspace: WorkspaceRecord, owner: str, env: Environment) -> AsyncIterator[None]:
        """Makes what is beside a new record, whose `owner` gets `env`, and takes it back where the record fails.

        A task that is cancelled takes nothing back: the daemon stops, and the next one reconciles.
        """
        try:
            await trio.to_thread.run_sync(self._save, owner, env)
            await trio.to_thread.run_sync(self.folders.make, workspace)
            yield
        except Exception:
            is_project = owner == workspace.project_id
            undo = (
                partial(self.folders.remove_project, owner) if is_project else partial(self.folders.remove, workspace)
            )
            await trio.to_thread.run_sync(undo)
            await self._clean_up(owner)
            raise

    def _save(self, owner: str, env: Environment) -> None:
        try:
            self._environments.save(owner, env)
        except OSError as error:
            log.error("an env cannot be written", owner=owner, reason=error.strerror)
            raise InternalError("the env cannot be written right now") from error


def _no_workspace(workspace_id: str | None) -> NotFound:
    # One sentence, whether it is nowhere or in another project: HAZARDS G2.
    return NotFound(f"no workspace {workspace_id!r} in this project", field="workspace_id")


def _new_id(kind: str) -> str:
    # Part of the grammar of scopes, and of paths: 128 random bits, and nothing that could be guessed or traversed.
    return f"{kind}_{secrets.token_hex(16)}"


def _project_record(project_id: str, new: NewProject) -> ProjectRecord:
    return ProjectRecord(
        project_id=project_id,
        name=new.name,
        description=new.description,
        agent=new.agent,
        runtime=new.runtime,
        packs=new.packs,
        default_workspace_id=_new_id("wsp"),
        created_at=clock.now(),
    )


def _default_workspace(project: ProjectRecord) -> WorkspaceRecord:
    return _workspace_record(project.default_workspace_id, project.project_id, DEFAULT)


def _workspace_record(workspace_id: str, project_id: str, name: str) -> WorkspaceRecord:
    return WorkspaceRecord(workspace_id=workspace_id, project_id=project_id, name=name, created_at=clock.now())


def _refuse_taken(name: str, others: Iterable[ProjectRecord | WorkspaceRecord], what: str) -> None:
    if same_for_readers(name) in {same_for_readers(other.name) for other in others}:
        raise Conflict(f"there is {what} called {name!r} already", field="name")


def _refuse_too_many(count: int, most: int, what: str) -> None:
    if count >= most:
        raise LimitExceeded(f"there are {count} {what}, as many as there may be")
