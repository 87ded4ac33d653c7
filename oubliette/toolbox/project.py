"""The pack `project`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Final

from msgspec import Meta, Struct

from oubliette.agents.environment import Environment
from oubliette.environments import MAX_BYTES, MAX_NAME, MAX_VALUE_BYTES, MAX_VARIABLES, check_environment
from oubliette.errors import InvalidParams
from oubliette.labels import MAX_LABEL, MAX_PACKS
from oubliette.projects import MAX_PROJECTS, MAX_WORKSPACES, NewProject
from oubliette.records import ProjectRecord
from oubliette.removal import Removal
from oubliette.toolbox.call import Call, Services
from oubliette.toolbox.declare import tool
from oubliette.toolbox.token import Nothing

MAX_DESCRIPTION: Final = 4096

ProjectId = Annotated[str, Meta(description="The project's id")]
# These bounds are for who reads the schema; who breaks them is told what a name is (`labels.py`, `environments.py`).
Name = Annotated[
    str,
    Meta(
        description=f"1 to {MAX_LABEL} printable characters, no white space at the ends; no other one is called so",
        extra_json_schema={"minLength": 1, "maxLength": MAX_LABEL},
    ),
]
Env = Annotated[
    dict[str, str] | None,
    Meta(
        description="Variables of its agents' environment. The values are kept secret: only the names are ever shown",
        extra_json_schema={
            "maxProperties": MAX_VARIABLES,
            "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$", "maxLength": MAX_NAME},
        },
    ),
]


class ProjectArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Name
    description: Annotated[
        Annotated[str, Meta(max_length=MAX_DESCRIPTION)] | None, Meta(description="What the project is for")
    ] = None
    agent: Annotated[str | None, Meta(description="The agent profile of its sessions, where they name none")] = None
    runtime: Annotated[str | None, Meta(description="Where its agents run; project_options tells which there are")] = (
        None
    )
    env: Env = None
    packs: Annotated[
        list[str] | None,
        Meta(
            description="The packs of tools that its agents get; without it those of the configuration",
            extra_json_schema={"maxItems": MAX_PACKS, "uniqueItems": True},
        ),
    ] = None


class OneProject(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    project_id: ProjectId


class DeleteArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    project_id: ProjectId
    force: Annotated[bool, Meta(description="End its active sessions first, instead of refusing")] = False


class ProjectView(Struct, frozen=True, kw_only=True):
    project_id: str
    name: str
    description: str
    agent: Annotated[str | None, Meta(description="null: the daemon's default")]
    runtime: Annotated[str | None, Meta(description="null: the daemon's default")]
    env: Annotated[list[str], Meta(description="The names of its variables")]
    packs: Annotated[list[str] | None, Meta(description="null: those of the configuration")]
    default_workspace_id: str
    created_at: str


class ProjectList(Struct, frozen=True, kw_only=True):
    projects: list[ProjectView]


class ProjectLimits(Struct, frozen=True, kw_only=True):
    """What may be asked for at the most."""

    projects: int
    workspaces_per_project: int
    active_sessions_per_project: int
    name_characters: int
    description_characters: int
    packs: int
    env_variables: int
    env_value_bytes: int
    env_bytes: int


class ProjectOptions(Struct, frozen=True, kw_only=True):
    agents: Annotated[list[str], Meta(description="The agent profiles")]
    runtimes: list[str]
    packs: Annotated[list[str], Meta(description="The packs of tools that are there for agents")]
    limits: ProjectLimits


class Deleted(Struct, frozen=True, kw_only=True):
    deleted: bool


@tool("project.create", access="write", target="global")
async def project_create(call: Call, arguments: ProjectArguments) -> ProjectView:
    """Creates a project with a workspace of its own."""
    _check_offered(arguments.agent, call.services.sessions.agents, "agent")
    _check_offered(arguments.runtime, call.services.sessions.runtimes, "runtime")
    for pack in arguments.packs or ():
        _check_offered(pack, call.services.packs.names, "packs")
    new = NewProject(
        name=arguments.name,
        description=arguments.description or "",
        agent=arguments.agent,
        runtime=arguments.runtime,
        packs=arguments.packs,
        env=checked_env(arguments.env),
    )
    return _view(call.services, await call.services.projects.create(new))


@tool("project.list", access="read", target="global")
async def project_list(call: Call, arguments: Nothing) -> ProjectList:
    """Lists the projects, oldest first."""
    services, scope = call.services, call.principal.scope
    seen = [project for project in services.projects.all() if scope.covers(project.project_id)]
    return ProjectList(projects=[_view(services, project) for project in seen])


@tool("project.options", access="read", target="global")
async def project_options(call: Call, arguments: Nothing) -> ProjectOptions:
    """Tells what a project can be created with."""
    sessions = call.services.sessions
    limits = ProjectLimits(
        projects=MAX_PROJECTS,
        workspaces_per_project=MAX_WORKSPACES,
        active_sessions_per_project=sessions.limits.max_active_per_project,
        name_characters=MAX_LABEL,
        description_characters=MAX_DESCRIPTION,
        packs=MAX_PACKS,
        env_variables=MAX_VARIABLES,
        env_value_bytes=MAX_VALUE_BYTES,
        env_bytes=MAX_BYTES,
    )
    packs = call.services.packs.names
    return ProjectOptions(agents=[*sessions.agents], runtimes=[*sessions.runtimes], packs=packs, limits=limits)


@tool("project.get", access="read", target="project")
async def project_get(call: Call, arguments: OneProject) -> ProjectView:
    """Returns one project."""
    return _view(call.services, call.project(arguments.project_id))


@tool("project.delete", access="write", target="project", destructive=True)
async def project_delete(call: Call, arguments: DeleteArguments) -> Deleted:
    """Deletes a project for good: its workspaces with their files, its sessions with their events, its tokens."""
    project = call.project(arguments.project_id)
    await removal(call.services).project(project, force=arguments.force)
    call.services.changes.announce("resources")
    return Deleted(deleted=True)


def removal(services: Services) -> Removal:
    """What deletes projects and workspaces."""
    return Removal(services.projects, services.sessions, services.tokens)


def checked_env(env: dict[str, str] | None) -> Environment:
    """Returns the variables of an `env` argument. Raises `InvalidParams`."""
    return check_environment(env or {})


def _check_offered(asked: str | None, offered: Collection[str], field: str) -> None:
    if asked is not None and asked not in offered:
        raise InvalidParams(f"unknown {field.removesuffix('s')} {asked!r}; one of: {', '.join(offered)}", field=field)


def _view(services: Services, project: ProjectRecord) -> ProjectView:
    return ProjectView(
        project_id=project.project_id,
        name=project.name,
        description=project.description,
        agent=project.agent,
        runtime=project.runtime,
        env=services.projects.variables(project.project_id),
        packs=project.packs,
        default_workspace_id=project.default_workspace_id,
        created_at=project.created_at,
    )
