"""The pack `workspace`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from oubliette.records import WorkspaceRecord
from oubliette.toolbox.call import Call, Services
from oubliette.toolbox.declare import tool
from oubliette.toolbox.project import Deleted, Env, Name, OneProject, ProjectId, checked_env, removal


class WorkspaceArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    project_id: ProjectId
    name: Annotated[Name | None, Meta(description="Its name; without it, its id")] = None
    env: Env = None


class OneWorkspace(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    project_id: ProjectId
    workspace_id: Annotated[str, Meta(description="The workspace's id")]


class WorkspaceView(Struct, frozen=True, kw_only=True):
    workspace_id: str
    project_id: str
    name: str
    env: Annotated[list[str], Meta(description="The names of its variables, which go over its project's")]
    created_at: str


class WorkspaceList(Struct, frozen=True, kw_only=True):
    workspaces: list[WorkspaceView]


@tool("workspace.create", access="write", target="project")
async def workspace_create(call: Call, arguments: WorkspaceArguments) -> WorkspaceView:
    """Creates a workspace in a project: a folder for agents, with an environment of its own."""
    project = call.project(arguments.project_id)
    env = checked_env(arguments.env)
    workspace = await call.services.projects.create_workspace(project, arguments.name, env)
    return _view(call.services, workspace)


@tool("workspace.delete", access="write", target="project", destructive=True)
async def workspace_delete(call: Call, arguments: OneWorkspace) -> Deleted:
    """Deletes a workspace with its files, for good. Its ended sessions stay."""
    project, workspace = call.place(arguments.project_id, arguments.workspace_id)
    await removal(call.services).workspace(project, workspace)
    return Deleted(deleted=True)


@tool("workspace.list", access="read", target="project")
async def workspace_list(call: Call, arguments: OneProject) -> WorkspaceList:
    """Lists the workspaces of a project, oldest first."""
    workspaces = call.services.projects.workspaces(call.project(arguments.project_id))
    return WorkspaceList(workspaces=[_view(call.services, workspace) for workspace in workspaces])


def _view(services: Services, workspace: WorkspaceRecord) -> WorkspaceView:
    return WorkspaceView(
        workspace_id=workspace.workspace_id,
        project_id=workspace.project_id,
        name=workspace.name,
        env=services.projects.variables(workspace.workspace_id),
        created_at=workspace.created_at,
    )
