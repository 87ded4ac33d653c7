"""The deletion of projects and workspaces, with all that hangs on them: sessions, tokens, folders, values.

It is carried to its end although its asker may leave, and it keeps new sessions out from the moment at which it looks
for active ones: between the two is no checkpoint.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from oubliette.errors import Conflict, NotFound
from oubliette.projects import DEFAULT, Projects
from oubliette.records import ProjectRecord, WorkspaceRecord
from oubliette.scopes import parse_scope
from oubliette.session import Session
from oubliette.sessions import Sessions
from oubliette.tokens import Tokens


class Removal:
    """Deletes projects and workspaces."""

    def __init__(self, projects: Projects, sessions: Sessions, tokens: Tokens) -> None:
        self._projects = projects
        self._sessions = sessions
        self._tokens = tokens

    async def project(self, project: ProjectRecord, *, force: bool) -> None:
        """Deletes a project, its workspaces, its sessions with their events, and the tokens of its scopes.

        Raises `Conflict` for the project `default`, while it is being deleted already, and while it has active
        sessions; with `force` those are ended first. Raises `InternalError` where it cannot be recorded: then the
        project stays.
        """
        if project.project_id == DEFAULT:
            raise Conflict(
                f"the project {DEFAULT!r} cannot be deleted: it is where sessions go that name none", field="project_id"
            )
        await self._projects.errands.carry_out(partial(self._delete_project, project, force))

    async def workspace(self, project: ProjectRecord, workspace: WorkspaceRecord) -> None:
        """Deletes a workspace. Sessions that ended in it stay readable. Raises as `project` does.

        Raises `Conflict` also for the default workspace of its project, which goes with the project.
        """
        if workspace.workspace_id == project.default_workspace_id:
            raise Conflict(
                f"{workspace.workspace_id!r} is the default workspace of its project, and is deleted with it",
                field="workspace_id",
            )
        await self._projects.errands.carry_out(partial(self._delete_workspace, workspace))

    async def _delete_project(self, project: ProjectRecord, force: bool) -> None:
        with self._projects.leaving(project.project_id):
            # Whoever asked first may have deleted it.
            self._projects.project(project.project_id)
            active = self._sessions.active(project.project_id)
            if active and not force:
                raise Conflict(
                    f"project {project.project_id!r} has {_counted(active)}; end them, or set force", field="force"
                )
            await self._end_all(project.project_id)
            tokens = self._tokens_of(project.project_id)
            await self._projects.delete(project, tokens)
        self._sessions.forget(project.project_id)
        # Their records are gone; this closes what they have open. Some may have been issued meanwhile.
        for token_id in {*tokens, *self._tokens_of(project.project_id)}:
            with suppress(NotFound):
                await self._tokens.revoke(token_id)

    async def _delete_workspace(self, workspace: WorkspaceRecord) -> None:
        with self._projects.leaving(workspace.workspace_id):
            self._projects.workspace(self._projects.project(workspace.project_id), workspace.workspace_id)
            active = self._sessions.active(workspace.workspace_id)
            if active:
                raise Conflict(
                    f"workspace {workspace.workspace_id!r} has {_counted(active)}; end them first", field="workspace_id"
                )
            await self._end_all(workspace.workspace_id)
            await self._projects.delete_workspace(workspace)

    async def _end_all(self, place: str) -> None:
        """Ends the sessions of a place, and waits for those that are ending already."""
        sessions = self._sessions.within(place)
        for session in sessions:
            session.end("ended")
        for session in sessions:
            await session.over.wait()

    def _tokens_of(self, project_id: str) -> list[str]:
        scopes = {record.token_id: parse_scope(record.scope) for record in self._tokens.all()}
        return [token_id for token_id, scope in scopes.items() if scope is not None and scope.project_id == project_id]


def _counted(sessions: list[Session]) -> str:
    return "1 active session" if len(sessions) == 1 else f"{len(sessions)} active sessions"
