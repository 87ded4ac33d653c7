"""`python -m ot_pack`: the `ot` pack at the terminal, from the configuration alone (WIRE section 8)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import ot_pack
from ot_pack import standalone
from ot_pack.commands import commands


@click.group("ot_pack")
@click.option("--config", "path", type=click.Path(path_type=Path, dir_okay=False), help="Configuration file")
def main(path: Path | None = None) -> None:
    """Show tools, packs, aliases and snippets of the configuration in reach, without a daemon.

    That is $OUBLIETTE_CONFIG, else ./oubliette.yaml, else the one in the user's config directory. What only a running
    daemon knows, its own tools and those of proxied servers, is shown by `oubliette ot`.
    """
    standalone.use(path)


def _run(function: str, arguments: dict[str, Any]) -> str:
    text: str = getattr(ot_pack, function)(**arguments)
    return text


for _command in commands(_run):
    main.add_command(_command)

if __name__ == "__main__":
    main(prog_name="python -m ot_pack")
