"""`oubliette demo`: the whole relay, shown."""

from __future__ import annotations

import click


@click.command("demo")
@click.pass_context
def demo_command(context: click.Context) -> None:
    """Show the whole relay on a throw-away data directory: a daemon, an agent and a caller, all of them real.

    The exit code is 0 only if every outcome was as the specification says.
    """
    from oubliette.demo.run import run

    context.exit(run())
