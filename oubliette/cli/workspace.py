"""`oubliette workspace`: workspaces of a running daemon's projects."""

from __future__ import annotations

from typing import TextIO

import click

from oubliette.cli.client import DaemonClient
from oubliette.cli.remote import remote_command
from oubliette.cli.show import print_json, print_table, visible
from oubliette.cli.variables import collect, env_options

_COLUMNS = {"workspace_id": "ID", "name": "NAME", "project_id": "PROJECT", "env": "ENV", "created_at": "CREATED"}


@click.group("workspace")
def workspace_group() -> None:
    """Create, list and delete workspaces of a project."""


@workspace_group.command("create")
@click.argument("project_id", metavar="PROJECT")
@click.argument("name", required=False)
@env_options
@remote_command
def create(
    daemon: DaemonClient,
    *,
    project_id: str,
    name: str | None,
    names: tuple[str, ...],
    env_file: TextIO | None,
    as_json: bool,
) -> None:
    """Create a workspace called NAME in the project PROJECT and print its id."""
    arguments = {"project_id": project_id, "name": name, "env": collect(names, env_file) or None}
    created = daemon.call_tool("workspace_create", arguments)
    if as_json:
        return print_json(created)
    click.echo(created["workspace_id"])


@workspace_group.command("list")
@click.argument("project_id", metavar="PROJECT")
@remote_command
def list_workspaces(daemon: DaemonClient, *, project_id: str, as_json: bool) -> None:
    """List the workspaces of the project PROJECT."""
    listed = daemon.call_tool("workspace_list", {"project_id": project_id})
    if as_json:
        return print_json(listed)
    print_table(_COLUMNS, listed["workspaces"])


@workspace_group.command("delete")
@click.argument("project_id", metavar="PROJECT")
@click.argument("workspace_id", metavar="ID")
@remote_command
def delete(daemon: DaemonClient, *, project_id: str, workspace_id: str, as_json: bool) -> None:
    """Delete the workspace ID of the project PROJECT with its files, for good."""
    deleted = daemon.call_tool("workspace_delete", {"project_id": project_id, "workspace_id": workspace_id})
    if as_json:
        return print_json(deleted)
    click.echo(visible(f"workspace {workspace_id} is deleted"))
