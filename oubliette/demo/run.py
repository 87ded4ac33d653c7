"""The demo from the start of the daemon to the exit code."""

from __future__ import annotations

import io
import sys
from typing import Final

from oubliette.cli.client import DaemonClient, RefusedError, UnreachableError
from oubliette.demo.caller import MissingEventError
from oubliette.demo.daemon import DaemonError, DemoDaemon, demo_daemon
from oubliette.demo.interrupts import Interrupts, TookTooLongError
from oubliette.demo.scenes import SCENES, Stage
from oubliette.demo.show import Story

# The demo takes a few seconds; after so many something that has to happen never will.
LIMIT_SECONDS: Final = 90
WAY: Final = "agent → oubliette-client → unix socket → daemon → SSE → caller, and back by HTTP POST"
_SUCCESS: Final = 0
_DIFFERS: Final = 1
_INTERRUPTED: Final = 130


def run() -> int:
    """Plays the demo on stdout. Returns the exit code: 0 if every outcome was as specified, else 1; 130 on Ctrl-C.

    Whatever it has started is stopped, and whatever was written is removed, before it returns or raises.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # arrows, where the locale has none
    story = Story()
    try:
        with Interrupts(LIMIT_SECONDS) as interrupts, demo_daemon() as daemon, interrupts.let_through():
            _play(story, daemon)
    except (DaemonError, TookTooLongError) as error:
        story.differ(str(error))
    except KeyboardInterrupt:
        return _INTERRUPTED
    story.end()
    return _DIFFERS if story.differences else _SUCCESS


def _play(story: Story, daemon: DemoDaemon) -> None:
    url = daemon.wait_until_ready()
    story.title(f"The daemon listens on {url} (pid {daemon.pid})")
    story.title(WAY)
    operator = DaemonClient(url, daemon.admin_token)
    # The caller has a token of its own: only whoever started a session may answer for it.
    token = operator.call_tool("token_create", {"name": "the demo's caller", "scope": "project:default"})["token"]
    stage = Stage(story, DaemonClient(url, token), operator)
    for scene in SCENES:
        try:
            scene(stage)
        except (MissingEventError, RefusedError, UnreachableError) as error:
            story.differ(str(error))
    if story.differences:
        print(daemon.last_lines(), file=sys.stderr)
