"""`oubliette`, also `python -m oubliette`: without a command it runs the daemon (WIRE section 8)."""

from __future__ import annotations

from importlib import import_module
from typing import Final

import click

import oubliette

# What each command costs to import is paid by that command alone: the daemon's start must not wait for rich, nor a
# listing for trio.
COMMANDS: Final = {
    "serve": "oubliette.cli.serve:serve_command",
    "demo": "oubliette.cli.demo:demo_command",
    "project": "oubliette.cli.project:project_group",
    "workspace": "oubliette.cli.workspace:workspace_group",
    "session": "oubliette.cli.session:session_group",
    "ot": "oubliette.cli.ot:ot_group",
    "token": "oubliette.cli.token:token_group",
    "client": "oubliette.cli.client_bundle:client_group",
    "doctor": "oubliette.cli.doctor:doctor_command",
}
_OF_ITS_OWN: Final = ("--help", "--version")


class LazyGroup(click.Group):
    """Imports a command when it is asked for."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """WIRE section 8: "`python -m oubliette` = `oubliette serve`", its options included."""
        if not args or (args[0].startswith("-") and args[0] not in _OF_ITS_OWN):
            args = ["serve", *args]
        return super().parse_args(context, args)


@click.group(cls=LazyGroup)
@click.version_option(oubliette.__version__, prog_name="oubliette")
def main() -> None:
    """Run AI agents in containers and let them call tools of the application that started them.

    Without a command it runs the daemon, as `serve` does.
    """
