"""What the commands that speak to a running daemon share: their options, and how failures become exit codes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from oubliette.cli.client import DaemonClient, RefusedError, UnreachableError
from oubliette.cli.places import AddressError, default_data_dir, find_daemon
from oubliette.cli.show import visible

REFUSED: Final = 1
CANNOT_CONNECT: Final = 2
# What a shell reports of a program that SIGINT has ended.
INTERRUPTED: Final = 130


class CommandError(click.ClickException):
    """One line on stderr, and an exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code

    def show(self, file: Any = None) -> None:
        click.echo(f"error: {visible(self.message)}", err=True)


def remote_command(command: Callable[..., None]) -> Callable[..., None]:
    """Adds `--data-dir` and `--json`; the command gets the `DaemonClient` and `as_json`.

    The exit code is 1 where the daemon refuses, 2 where it cannot be reached, and 130 on Ctrl-C.
    """

    @click.option(
        "--data-dir",
        type=click.Path(path_type=Path, file_okay=False),
        help="The data directory of a daemon on this machine: where its address and admin token are found, "
        "unless OUBLIETTE_URL and OUBLIETTE_TOKEN say them",
    )
    @click.option("--json", "as_json", is_flag=True, help="Print JSON")
    @functools.wraps(command)
    def run(*, data_dir: Path | None, **options: Any) -> None:
        with _exit_codes():
            address = find_daemon(data_dir or default_data_dir())
            command(DaemonClient(address.url, address.token), **options)

    return run


@contextmanager
def _exit_codes() -> Iterator[None]:
    try:
        yield
    except RefusedError as error:
        raise CommandError(f"{error} ({error.kind})", REFUSED) from None
    except (AddressError, UnreachableError) as error:
        raise CommandError(str(error), CANNOT_CONNECT) from None
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
