"""`oubliette session`: sessions of a running daemon."""

from __future__ import annotations

import json
from typing import Any

import click

from oubliette.cli.client import DaemonClient, UnreachableError
from oubliette.cli.remote import remote_command
from oubliette.cli.show import print_json, print_table, visible
from oubliette.cli.watch import Watch, line_of

_COLUMNS = {
    "session_id": "ID",
    "status": "STATUS",
    "agent": "AGENT",
    "project_id": "PROJECT",
    "caller_tools": "CALLER TOOLS",
    "created_at": "CREATED",
}
_STATUSES = ("starting", "running", "idle", "completed", "failed", "ended", "interrupted")


@click.group("session")
def session_group() -> None:
    """List, watch, message, end and clean up sessions."""


@session_group.command("list")
@click.option("--project", "project_id", help="Only sessions of this project")
@click.option("--status", type=click.Choice(_STATUSES), help="Only sessions in this state")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="At most so many")
@remote_command
def list_sessions(
    daemon: DaemonClient, *, project_id: str | None, status: str | None, limit: int, as_json: bool
) -> None:
    """List sessions, newest first."""
    listed = daemon.call_tool("session_list", {"project_id": project_id, "status": status, "limit": limit})
    if as_json:
        return print_json(listed)
    print_table(_COLUMNS, listed["sessions"])
    if "next_cursor" in listed:
        click.echo(f"these are the newest {limit}; see --limit", err=True)


@session_group.command("watch")
@click.argument("session_id", metavar="ID")
@click.option("--since", type=click.IntRange(0), default=0, show_default=True, help="Only events after this index")
@remote_command
def watch(daemon: DaemonClient, *, session_id: str, since: int, as_json: bool) -> None:
    """Print the events of the session ID, one a line, until it ends.

    Whoever watches with the token that started the session counts as its connected caller.
    """
    for event in Watch(daemon, session_id, since, _tell_lost).events():
        click.echo(event.data if as_json else line_of(json.loads(event.data)))


@session_group.command("send")
@click.argument("words", nargs=-1, required=True, metavar="[ID] MESSAGE")
@click.option("--project", "project_id", help="The project of a new session")
@click.option("--workspace", "workspace_id", help="The workspace of a new session")
@click.option("--agent", help="The agent profile of a new session")
@click.option("--wait", is_flag=True, help="Wait for the end of the turn, and print what the agent said")
@remote_command
def send(daemon: DaemonClient, *, words: tuple[str, ...], wait: bool, as_json: bool, **place: str | None) -> None:
    """Start a session with MESSAGE, or go on with the session ID; print its id."""
    if len(words) > 2:
        raise click.UsageError("give at most a session's id and one message; a message of several words needs quotes")
    *ids, message = words
    arguments: dict[str, Any] = {"message": message, "wait": wait, **place}
    session = daemon.call_tool("session_message", {**arguments, "session_id": ids[0] if ids else None})
    if as_json:
        return print_json(session)
    # With --wait stdout is what the agent said and nothing else.
    click.echo(session["session_id"], err=wait)
    if wait:
        click.echo("\n".join(visible(line) for line in session["text"].splitlines()))


@session_group.command("end")
@click.argument("session_id", metavar="ID")
@remote_command
def end(daemon: DaemonClient, *, session_id: str, as_json: bool) -> None:
    """End the session ID and its agent."""
    session = daemon.call_tool("session_end", {"session_id": session_id})
    if as_json:
        return print_json(session)
    click.echo(visible(f"session {session['session_id']} has ended: {session['status']}"))


@session_group.command("cleanup")
@click.option("--project", "project_id", help="Only sessions of this project")
@click.option(
    "--max-age-hours",
    type=click.FloatRange(0),
    default=24,
    show_default=True,
    help="Keep those that ended less than so many hours ago",
)
@remote_command
def cleanup(daemon: DaemonClient, *, project_id: str | None, max_age_hours: float, as_json: bool) -> None:
    """Remove ended sessions with their events, for good."""
    done = daemon.call_tool("session_cleanup", {"project_id": project_id, "max_age_hours": max_age_hours})
    if as_json:
        return print_json(done)
    click.echo(f"{done['removed']} sessions are removed")


def _tell_lost(error: UnreachableError) -> None:
    click.echo(f"{visible(str(error))}; trying again", err=True)
