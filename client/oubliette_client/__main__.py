"""`oubliette-client [--socket PATH]`: arguments, signals and exit codes.

What the agent waits for most is `import trio`, so it comes last: a wrong argument costs nothing, and whatever trio or
anything after it prints to stdout goes to stderr.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
from typing import Final

from oubliette_client import stdio

DEFAULT_SOCKET: Final = "/mcp/relay.sock"
# sun_path holds 108 bytes with the NUL at its end (unix(7)).
MAX_SOCKET_PATH_BYTES: Final = 107
CANNOT_SERVE: Final = 2


def main() -> int:
    """Serves until stdin ends or a signal comes. Returns the exit code: 0, or 2 after one line of reason on stderr."""
    path = _socket_path()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        return _give_up(f"the path of the socket is longer than {MAX_SOCKET_PATH_BYTES} bytes: {path}")
    try:
        stdin, stdout = stdio.take_over()
    except OSError as error:
        return _give_up(f"stdin and stdout must be open: {error.strerror}")
    return _serve(path, stdin, stdout)


def _socket_path() -> str:
    parser = argparse.ArgumentParser(
        prog="oubliette-client", description="The stdio MCP server beside an agent.", allow_abbrev=False
    )
    parser.add_argument("--socket", metavar="PATH", help=f"default: $OUBLIETTE_SOCKET, else {DEFAULT_SOCKET}")
    asked: str | None = parser.parse_args().socket
    return asked or os.environ.get("OUBLIETTE_SOCKET") or DEFAULT_SOCKET


def _leave(number: int, frame: object) -> None:
    """Until trio takes the signals over there is nothing to end well."""
    os._exit(0)


def _serve(path: str, stdin: int, stdout: int) -> int:
    gc.disable()  # modules come to stay: looking for garbage while they load costs a tenth of the start
    from oubliette_client.key import from_environment
    from oubliette_client.link import SocketUnavailableError
    from oubliette_client.run import run

    gc.freeze()
    gc.enable()
    code = 0
    try:
        run(path, stdin, stdout, from_environment(os.environ))
    except* SocketUnavailableError as failures:
        code = _give_up(str(stdio.leaf(failures)))
    return code


def _give_up(reason: str) -> int:
    stdio.note(reason)
    return CANNOT_SERVE


if __name__ == "__main__":
    sys.exit(main())
