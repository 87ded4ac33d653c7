"""The first program of a sandbox: opens the ways to the model, runs the agent as its child, and ends with it.

    python3 -I -S /opt/oubliette/launch.py [--model PATH [--forward HOST:PORT]...] [--] PROGRAM [ARGUMENT]...

`--model PATH`: the daemon's model socket (`/mcp/model.sock`). With it, 127.0.0.1:3128 is an HTTP proxy: what connects
there is carried over the socket to the daemon, which lets through what `runtime.model_hosts` names. Without it nothing
is opened, and the rest is as it is.

`--forward HOST:PORT`: one of `runtime.model_hosts`, repeatable. Where it is of the loopback (127.0.0.1, localhost,
[::1]), the same address is opened in the sandbox, so that a base URL holds inside as it does outside; any other is
reached through the proxy, and nothing is opened for it.

PROGRAM is looked up in PATH and gets the environment, the folder, stdin, stdout and stderr as they are, and a process
group of its own. SIGTERM, SIGINT and SIGHUP are passed on to it. Children that their parents left are reaped: this may
be process 1. The exit code is PROGRAM's, 128+n where signal n ended it; 127 where there is no such program, 126 where
it cannot be run, 2 for a wrong command line. All that it says itself goes to stderr, behind `oubliette-launch: `.

The agent waits for this, so it is the standard library alone and one process: trio would take ten times its time to
load, in every sandbox and on every turn. One loop heeds the signals and carries the bytes (`carry`).
"""

from __future__ import annotations

import os
import selectors
import signal
import sys

from oubliette_client.carry import TYPE_CHECKING, Carrier, note

if TYPE_CHECKING:
    from typing import Final

PROXY_PORT: Final = 3128
PASSED_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Python ignores them, and a program would inherit that.
_DEFAULT_AGAIN: Final = (signal.SIGPIPE, signal.SIGXFSZ)
_STDERR: Final = 2
WRONG_USAGE: Final = 2
CANNOT_RUN: Final = 126
NOT_FOUND: Final = 127
# How many signals are taken at once.
_SIGNALS: Final = 1024
# What a shell adds to the number of the signal that ended a program.
_BY_SIGNAL: Final = 128


class UsageError(Exception):
    """The command line cannot be understood."""


class Order:
    """What the command line asks for. (A dataclass would double the time to load, and a named tuple add to it.)"""

    def __init__(self, program: list[str], model: str = "", forwards: tuple[tuple[str, int], ...] = ()) -> None:
        self.program = program
        self.model = model
        self.forwards = forwards


def parse(arguments: list[str]) -> Order:
    """Returns what `arguments`, those behind the program's name, ask for. Raises `UsageError`.

    By hand: argparse takes as long to load as everything else here together.
    """
    model, forwards, rest = "", [], list(arguments)
    while rest and rest[0].startswith("--"):
        option = rest.pop(0)
        if option == "--":
            break
        if option not in ("--model", "--forward") or not rest:
            raise UsageError(f"{option} is no option, or has no value")
        value = rest.pop(0)
        if option == "--model":
            model = value
        else:
            forwards.append(_address(value))
    if not rest:
        raise UsageError("there is no program to run")
    return Order(rest, model, tuple(forwards))


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port[:6]) < 65536:
        raise UsageError(f"{text!r} is no HOST:PORT")
    return host, int(port)


class Child:
    """The agent's process, and all others that end as children of this one."""

    def __init__(self, program: list[str]) -> None:
        self.exit_code: int | None = None
        self._pid = os.posix_spawnp(program[0], program, os.environ, setpgroup=0, setsigdef=_DEFAULT_AGAIN)

    def heed(self, number: int) -> None:
        """Passes a signal on, or reaps where it is SIGCHLD."""
        if number == signal.SIGCHLD:
            self._reap()
        elif self.exit_code is None:
            os.kill(self._pid, number)

    def _reap(self) -> None:
        """One SIGCHLD may stand for many children (signal(7))."""
        while self.exit_code is None:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == self._pid:
                code = os.waitstatus_to_exitcode(status)
                self.exit_code = code if code >= 0 else _BY_SIGNAL - code
            elif pid == 0:
                return


def main() -> int:
    """Runs the program of the command line to its end. Returns the exit code."""
    try:
        order = parse(sys.argv[1:])
    except UsageError as error:
        note(f"{error}; usage: launch.py [--model PATH [--forward HOST:PORT]...] [--] PROGRAM [ARGUMENT]...")
        return WRONG_USAGE
    _keep_stdio_apart()
    with selectors.DefaultSelector() as selector:
        signals = _caught_signals()
        carrier = Carrier(selector, order.model)
        if order.model:
            _open_ways(carrier, order)
        try:
            child = Child(order.program)
        except OSError as error:
            note(f"{order.program[0]}: {error.strerror}")
            return NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN
        _let_go_of_stdio()
        return _serve(selector, signals, carrier, child)


def _keep_stdio_apart() -> None:
    """Where it was started without one of the three, nothing else must get its number. The program has none either."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(descriptor)


def _caught_signals() -> int:
    """Returns a descriptor from which each signal that comes is read as one byte."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (*PASSED_ON, signal.SIGCHLD):
        # A handler there must be; exec gives the child the default again (execve(2)).
        signal.signal(number, lambda number, frame: None)
    return reader


def _open_ways(carrier: Carrier, order: Order) -> None:
    carrier.open_proxy(PROXY_PORT)
    for host, port in order.forwards:
        carrier.open_forward(host, port)


def _let_go_of_stdio() -> None:
    """Whoever is at the other ends must see it when the program closes its own."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def _serve(selector: selectors.BaseSelector, signals: int, carrier: Carrier, child: Child) -> int:
    selector.register(signals, selectors.EVENT_READ)
    while child.exit_code is None:
        for key, _ in selector.select(carrier.patience()):
            if key.fd == signals:
                for number in os.read(signals, _SIGNALS):
                    child.heed(number)
            else:
                carrier.serve(key)
    return child.exit_code


if __name__ == "__main__":
    sys.exit(main())
