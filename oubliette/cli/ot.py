"""`oubliette ot`: what tools, packs, aliases and snippets there are in a running daemon."""

from __future__ import annotations

from typing import Any

import click

from ot_pack.commands import commands
from oubliette.cli.client import DaemonClient
from oubliette.cli.places import default_data_dir, find_daemon
from oubliette.cli.remote import data_dir_option, exit_codes


@click.group("ot")
def ot_group() -> None:
    """Show what a running daemon has; `python -m ot_pack` shows the configuration alone."""


def _run(function: str, arguments: dict[str, Any]) -> str:
    data_dir = arguments.pop("data_dir", None)
    with exit_codes():
        address = find_daemon(data_dir or default_data_dir())
        return DaemonClient(address.url, address.token).call_text(f"ot_{function}", arguments)


for _command in commands(_run, data_dir_option):
    ot_group.add_command(_command)
