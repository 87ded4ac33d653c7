"""`oubliette project`: projects of a running daemon."""

from __future__ import annotations

from typing import Any, TextIO

import click

from oubliette.cli.client import DaemonClient
from oubliette.cli.remote import remote_command
from oubliette.cli.show import print_json, print_table, visible
from oubliette.cli.variables import collect, env_options

_COLUMNS = {
    "project_id": "ID",
    "name": "NAME",
    "description": "DESCRIPTION",
    "agent": "AGENT",
    "env": "ENV",
    "created_at": "CREATED",
}
_FIELDS = (
    "project_id",
    "name",
    "description",
    "agent",
    "runtime",
    "packs",
    "env",
    "default_workspace_id",
    "created_at",
)


@click.group("project")
def project_group() -> None:
    """Create, list, show and delete projects."""


@project_group.command("create")
@click.argument("name")
@click.option("--description", help="What it is for")
@click.option("--agent", help="The agent profile of its sessions")
@click.option("--runtime", help="Where its agents run")
@click.option("--pack", "packs", multiple=True, help="A pack of tools for its agents; may be repeated")
@env_options
@remote_command
def create(
    daemon: DaemonClient,
    *,
    names: tuple[str, ...],
    env_file: TextIO | None,
    packs: tuple[str, ...],
    as_json: bool,
    **settings: str | None,
) -> None:
    """Create a project called NAME and print its id."""
    arguments: dict[str, Any] = {**settings, "packs": packs or None, "env": collect(names, env_file) or None}
    created = daemon.call_tool("project_create", arguments)
    if as_json:
        return print_json(created)
    # The id alone on stdout, so that a shell can take it: PROJECT=$(oubliette project create …).
    click.echo(created["project_id"])


@project_group.command("list")
@remote_command
def list_projects(daemon: DaemonClient, *, as_json: bool) -> None:
    """List the projects."""
    listed = daemon.call_tool("project_list", {})
    if as_json:
        return print_json(listed)
    print_table(_COLUMNS, listed["projects"])


@project_group.command("get")
@click.argument("project_id", metavar="ID")
@remote_command
def get(daemon: DaemonClient, *, project_id: str, as_json: bool) -> None:
    """Show the project ID."""
    project = daemon.call_tool("project_get", {"project_id": project_id})
    if as_json:
        return print_json(project)
    print_table({"field": "FIELD", "value": "VALUE"}, [{"field": name, "value": project[name]} for name in _FIELDS])


@project_group.command("delete")
@click.argument("project_id", metavar="ID")
@click.option("--force", is_flag=True, help="End its active sessions first")
@remote_command
def delete(daemon: DaemonClient, *, project_id: str, force: bool, as_json: bool) -> None:
    """Delete the project ID for good: workspaces with their files, sessions with their events, tokens."""
    deleted = daemon.call_tool("project_delete", {"project_id": project_id, "force": force})
    if as_json:
        return print_json(deleted)
    click.echo(visible(f"project {project_id} is deleted"))
