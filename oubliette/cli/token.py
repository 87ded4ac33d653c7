"""`oubliette token`: API tokens of a running daemon."""

from __future__ import annotations

import click

from oubliette.cli.client import DaemonClient
from oubliette.cli.remote import remote_command
from oubliette.cli.show import print_json, print_table, visible

_COLUMNS = {
    "token_id": "ID",
    "name": "NAME",
    "scope": "SCOPE",
    "created_at": "CREATED",
    "last_used_at": "LAST USED",
    "expires_at": "EXPIRES",
}


@click.group("token")
def token_group() -> None:
    """Create, list and revoke API tokens."""


@token_group.command("create")
@click.argument("name")
@click.option("--scope", required=True, help="admin, admin:ro, project:<id> or project:<id>:ro")
@click.option("--expires-in", type=float, metavar="SECONDS", help="Without it, it never expires")
@remote_command
def create(daemon: DaemonClient, *, name: str, scope: str, expires_in: float | None, as_json: bool) -> None:
    """Issue a token called NAME and print it, this once."""
    created = daemon.call_tool("token_create", {"name": name, "scope": scope, "expires_in_seconds": expires_in})
    if as_json:
        return print_json(created)
    for warning in created.get("warnings", []):
        click.echo(visible(f"warning: {warning}"), err=True)
    # The token alone on stdout, so that a shell can take it: TOKEN=$(oubliette token create …).
    click.echo(created["token"])
    until = f"until {created['expires_at']}" if created["expires_at"] else "until it is revoked"
    click.echo(visible(f"token {created['token_id']}, scope {scope}, {until}; it is not shown again"), err=True)


@token_group.command("list")
@remote_command
def list_tokens(daemon: DaemonClient, *, as_json: bool) -> None:
    """List the tokens, without their secrets."""
    listed = daemon.call_tool("token_list", {})
    if as_json:
        return print_json(listed)
    print_table(_COLUMNS, listed["tokens"])


@token_group.command("revoke")
@click.argument("token_id", metavar="ID")
@remote_command
def revoke(daemon: DaemonClient, *, token_id: str, as_json: bool) -> None:
    """Make the token ID worthless from now on."""
    revoked = daemon.call_tool("token_revoke", {"token_id": token_id})
    if as_json:
        return print_json(revoked)
    click.echo(visible(f"token {token_id} is revoked"))
