"""`oubliette`, also `python -m oubliette`: without a command it runs the daemon (WIRE section 8)."""

from __future__ import annotations

import click

import oubliette
from oubliette.cli.serve import serve_command


@click.group(invoke_without_command=True)
@click.version_option(oubliette.__version__, prog_name="oubliette")
@click.pass_context
def main(context: click.Context) -> None:
    """Run AI agents in containers and let them call tools of the application that started them."""
    if context.invoked_subcommand is None:
        context.invoke(serve_command)


main.add_command(serve_command)
