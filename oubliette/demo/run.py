"""The demo from the start of the daemon to the exit code."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from oubliette.cli.client import DaemonClient, RefusedError, UnreachableError
from oubliette.demo.caller import MissingEventError
from oubliette.demo.daemon import DaemonError, RunningDaemon, running_daemon
from oubliette.demo.scenes import SCENES, Stage
from oubliette.demo.show import Story

# The demo takes a few seconds; after so many something that has to happen never will.
LIMIT_SECONDS: Final = 90
_SUCCESS: Final = 0
_DIFFERS: Final = 1
_INTERRUPTED: Final = 130
WAY: Final = "agent → oubliette-client → unix socket → daemon → SSE → caller, and back by HTTP POST"


class TookTooLongError(Exception):
    """The demo did not come to its end."""


def run() -> int:
    """Plays the demo on stdout. Returns the exit code: 0 if every outcome was as specified, else 1; 130 on Ctrl-C.

    Whatever it starts has ended, and whatever it writes is removed, when it returns or raises.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # arrows, in a locale that has none
    story = Story()
    try:
        with _signals(), running_daemon() as daemon:
            _play(story, daemon)
            if story.differences:
                print(daemon.last_lines(), file=sys.stderr)
    except (DaemonError, TookTooLongError) as error:
        story.differ(str(error))
    except KeyboardInterrupt:
        return _INTERRUPTED
    story.end()
    return _DIFFERS if story.differences else _SUCCESS


def _play(story: Story, daemon: RunningDaemon) -> None:
    story.title(f"The daemon listens on {daemon.url} (pid {daemon.process.pid})")
    story.title(WAY)
    operator = DaemonClient(daemon.url, daemon.admin_token)
    # The caller has a token of its own: only whoever starts a session may answer for it.
    token = operator.call_tool("token_create", {"name": "the demo's caller", "scope": "project:default"})["token"]
    stage = Stage(story, DaemonClient(daemon.url, token), operator)
    for scene in SCENES:
        try:
            scene(stage)
        except (MissingEventError, RefusedError, UnreachableError) as error:
            story.differ(str(error))


@contextmanager
def _signals() -> Iterator[None]:
    """Turns the signals that would end the process on the spot into exceptions, so that it cleans up."""
    handlers = {signal.SIGALRM: _too_long, signal.SIGTERM: _leave, signal.SIGHUP: _leave}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    signal.alarm(LIMIT_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TookTooLongError(f"the demo did not end within {LIMIT_SECONDS} s")


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
