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

data_dir_option: Final = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="The data directory of a daemon on this machine: where its address and admin token are found, "
    "unless OUBLIETTE_URL and OUBLIETTE_TOKEN say them",
)
# What a shell reports of a program that SIGINT has ended.
INTERRUPTED: Final = 130


class Refused(click.ClickException):
    """The daemon said no: one line on stderr."""

    exit_code = 1

    def show(self, file: Any = None) -> None:
        click.echo(f"error: {visible(self.message)}", err=True)


class CannotConnect(Refused):
    """There is no daemon to say anything."""

    exit_code = 2


def remote_command(command: Callable[..., None]) -> Callable[..., None]:
    """Adds `--data-dir` and `--json`; the command gets the `DaemonClient` and `as_json`.

    The exit code is 1 where the daemon refuses, 2 where it cannot be reached, and 130 on Ctrl-C.
    """

    @data_dir_option
    @click.option("--json", "as_json", is_flag=True, help="Print JSON")
    @functools.wraps(command)
    def run(*, data_dir: Path | None, **options: Any) -> None:
        with exit_codes():
            address = find_daemon(data_dir or default_data_dir())
            command(DaemonClient(address.url, address.token), **options)

    return run


@contextmanager
def exit_codes() -> Iterator[None]:
    """Makes failures what `remote_command` says."""
    try:
        yield
    except RefusedError as error:
        raise Refused(f"{error} ({error.kind})") from None
    except (AddressError, UnreachableError) as error:
        raise CannotConnect(str(error)) from None
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
