"""`oubliette serve`: the daemon as a process, with its signals and its exit code."""

from __future__ import annotations

import os
import resource
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

import click
import trio

from ot_pack.document import ConfigError
from oubliette import config, log
from oubliette.cli.places import URL_FILE, default_data_dir
from oubliette.config import Config
from oubliette.daemon import Daemon, Started
from oubliette.errors import OublietteError

# Behind the graceful stop stands a hard one, so long after the grace is over, in seconds.
WATCHDOG_MARGIN: Final = 5.0
# A second signal means at once: what the tasks may still take on their way out, in seconds.
AT_ONCE: Final = 0.5
_CANNOT_START: Final = 2
_INTERRUPTED: Final = 1


@click.command("serve")
@click.option("--config", "config_path", type=click.Path(path_type=Path, dir_okay=False), help="Configuration file")
@click.option("--data-dir", type=click.Path(path_type=Path, file_okay=False), help="Where records and workspaces lie")
@click.option("--host", help="Address to listen on")
@click.option("--port", type=int, help="Port to listen on, 0 for any free one")
def serve_command(
    config_path: Path | None = None, data_dir: Path | None = None, host: str | None = None, port: int | None = None
) -> None:
    """Run the daemon until SIGTERM or SIGINT."""
    # Whatever this process makes is for its user alone.
    os.umask(0o077)
    _raise_file_limit()
    try:
        settings = config.load(config_path, environ=os.environ, overrides={"host": host, "port": port})
        log.setup(settings.log.level, settings.log.format)
        daemon = Daemon(settings, data_dir or default_data_dir())
    except (ConfigError, OublietteError) as error:
        raise _CannotStart(str(error)) from None
    refused: list[OublietteError] = []
    try:
        trio.run(_serve, daemon, settings)
    except* OublietteError as failures:
        refused = _leaves(failures)
    if refused:
        raise _CannotStart(str(refused[0]))


def _leaves(failures: BaseExceptionGroup[OublietteError]) -> list[OublietteError]:
    """Returns the failures out of the groups that nurseries put them into."""
    found: list[OublietteError] = []
    for failure in failures.exceptions:
        found += _leaves(failure) if isinstance(failure, BaseExceptionGroup) else [failure]
    return found


class _CannotStart(click.ClickException):
    exit_code = _CANNOT_START


async def _serve(daemon: Daemon, settings: Config) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_heed_signals, daemon, nursery.cancel_scope, settings.server.shutdown_grace_seconds)
        async with trio.open_nursery() as serving:
            started: Started = await serving.start(daemon.run)
            _announce(daemon, started)
        nursery.cancel_scope.cancel()


def _announce(daemon: Daemon, started: Started) -> None:
    if started.admin_token is not None:
        click.echo(f"admin token written to {started.admin_token}", err=True)
    (daemon.data_dir / URL_FILE).write_text(started.url + "\n")
    click.echo(f"listening on {started.url}")


async def _heed_signals(daemon: Daemon, everything: trio.CancelScope, grace: float) -> None:
    """The first signal asks for a graceful stop; a second one ends everything at once."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        await anext(signals)
        daemon.stop()
        _exit_after(grace + WATCHDOG_MARGIN)
        await anext(signals)
        _exit_after(AT_ONCE)
        everything.cancel()


def _exit_after(seconds: float) -> None:
    """Ends the process whatever its tasks do: a thread that hangs in a system call cannot be cancelled."""
    watchdog = threading.Timer(seconds, _exit_now)
    watchdog.daemon = True
    watchdog.start()


def _exit_now() -> None:
    """Ends the process and every agent with it: one that ignores SIGTERM would live on without its session."""
    with suppress(OSError):
        for thread in Path("/proc/self/task").iterdir():
            for child in (thread / "children").read_text().split():
                # Agents lead process groups of their own (`agents/process.py`).
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(int(child), signal.SIGKILL)
    os._exit(_INTERRUPTED)


def _raise_file_limit() -> None:
    """A session takes three descriptors and more: take all that the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
