"""`oubliette client bundle`: what runs inside containers, as one folder."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from oubliette import bundle
from oubliette.cli.places import default_data_dir
from oubliette.errors import OublietteError
from oubliette.runtimes.configured import BUNDLES


@click.group("client")
def client_group() -> None:
    """What runs beside an agent, inside its container."""


@client_group.command("bundle")
@click.option("--output", type=click.Path(path_type=Path, file_okay=False), help="The folder to make")
@click.option("--data-dir", type=click.Path(path_type=Path, file_okay=False), help="The daemon's data directory")
@click.option(
    "--python", "interpreters", multiple=True, help="A Python to compile for, a path or a name in PATH; repeatable"
)
def bundle_command(output: Path | None, data_dir: Path | None, interpreters: tuple[str, ...]) -> None:
    """Make the folder that containers mount at /opt/oubliette, and print where it is.

    It holds the client and the launcher of sandboxes, and runs on any Python 3.11 or newer. It starts fastest on those
    that it was compiled for: the one that runs this command, unless others are named. Without --output it is made
    below the data directory, once.
    """
    wanted = interpreters or (sys.executable,)
    try:
        if output is None:
            made = bundle.ensure((data_dir or default_data_dir()).absolute() / BUNDLES, wanted)
        else:
            made = bundle.write(output, wanted)
    except OublietteError as error:
        raise click.ClickException(error.message) from None
    click.echo(made)
