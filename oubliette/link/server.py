"""A unix socket for each session; being able to open it is what identifies the session (WIRE section 1)."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path
from typing import Final

import trio

from oubliette.errors import InternalError, LimitExceeded, as_jsonrpc
from oubliette.link.connection import Connection
from oubliette.link.methods import DaemonMethods
from oubliette.link.model import ModelDoor, ModelListener
from oubliette.link.sockets import listening_socket
from oubliette.log import get as get_logger
from oubliette.protocol.jsonrpc import encode_error
from oubliette.session import Session
from oubliette.toolbox.call import Services

# `sun_path` holds 108 bytes, one of them for the NUL.
MAX_SOCKET_PATH: Final = 107
# When a session ends: how long its links may take over their last answers, in seconds.
LAST_ANSWERS: Final = 1.0
_NAME: Final = "relay.sock"
# Each is a file descriptor, which all sessions share: an agent may start a client for each of its helpers, not more.
MAX_LINKS: Final = 64
# How long a client that is turned away may take to read why, in seconds.
_REFUSAL: Final = 1.0

log = get_logger(__name__)


class LinkDoor:
    """Opens sessions' sockets below `run_dir`, which belongs to this daemon alone.

    `max_message_bytes` bounds one line. With `model`, each session has a model socket beside its own. Raises
    `InternalError` where a socket's path would be too long.
    """

    def __init__(self, run_dir: Path, max_message_bytes: int, model: ModelDoor | None = None) -> None:
        self._run_dir = run_dir
        self._max_message_bytes = max_message_bytes
        self._model = model
        self._services: Services | None = None
        length = len(os.fsencode(self._new_path().absolute()))
        if length > MAX_SOCKET_PATH:
            raise InternalError(
                f"sockets below {run_dir} would have paths of {length} bytes, and a unix socket's path has at most "
                f"{MAX_SOCKET_PATH}: choose a data directory with a shorter path (--data-dir)"
            )

    def clean(self) -> None:
        """Removes what a crashed daemon left; the lock on the data directory makes sure that it is ours."""
        if self._run_dir.is_symlink():
            raise InternalError(f"{self._run_dir} is a symbolic link: remove it")
        shutil.rmtree(self._run_dir, ignore_errors=True)
        try:
            self._run_dir.mkdir(mode=0o700, parents=True)
        except OSError as error:
            raise InternalError(f"the directory of the sockets cannot be made anew: {error}") from error

    def offer(self, services: Services) -> None:
        """Says what agents' requests to the daemon itself work on. Comes before the first `open`: the services know
        the sessions, which know this door, so it cannot be told when it is made.
        """
        self._services = services

    def open(self, session: Session) -> SessionLink:
        """Opens a socket of the session's own, in a directory that only the daemon may enter."""
        assert self._services is not None
        path = self._new_path()
        # The directory comes first and is private, so that there is no moment at which others could connect.
        path.parent.mkdir(mode=0o700)
        try:
            link = SessionLink(session, path, self._max_message_bytes, self._services)
            if self._model is not None:
                link.open_model(self._model)
            return link
        except OSError as error:
            shutil.rmtree(path.parent, ignore_errors=True)
            raise InternalError(f"the session's socket cannot be opened: {error}") from error

    def _new_path(self) -> Path:
        return self._run_dir / secrets.token_hex(5) / _NAME


class SessionLink:
    """One session's listening socket and the connections that came through it.

    `model` is the socket beside it, where the session has one.
    """

    def __init__(self, session: Session, path: Path, max_message_bytes: int, services: Services) -> None:
        self.path = path
        self._session = session
        self._max_message_bytes = max_message_bytes
        self._daemon = DaemonMethods(session, services, max_message_bytes)
        self._connections: set[Connection] = set()
        self.model: ModelListener | None = None
        self._socket = listening_socket(path)

    def open_model(self, door: ModelDoor) -> None:
        """Opens the session's model socket beside its own. Raises `OSError`; then this one is closed too."""
        try:
            self.model = door.open(self.path.parent, self._session.id)
        except OSError:
            self._socket.close()
            raise

    async def serve(self) -> None:
        """Serves connections until the session is `ending`; then lets them give their last answers.

        The way to the model ends at once: what an agent might still hear there is of no use to it.
        """
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(self._socket))
        try:
            async with trio.open_nursery() as nursery:
                accepting = trio.CancelScope()
                nursery.start_soon(self._accept, listener, accepting, nursery)
                await self._session.ending.wait()
                accepting.cancel()
                for connection in self._connections:
                    connection.finish()
                nursery.cancel_scope.deadline = trio.current_time() + LAST_ANSWERS
        finally:
            self.close()

    def close(self) -> None:
        """Closes the sockets and removes them with their directory."""
        self._socket.close()
        if self.model is not None:
            self.model.close()
        shutil.rmtree(self.path.parent, ignore_errors=True)

    async def _accept(self, listener: trio.SocketListener, scope: trio.CancelScope, nursery: trio.Nursery) -> None:
        with scope:
            async with trio.open_nursery() as doors:
                if self.model is not None:
                    doors.start_soon(self.model.serve)
                await trio.serve_listeners(self._handle, [listener], handler_nursery=nursery)

    async def _handle(self, stream: trio.SocketStream) -> None:
        """One connection's task. An error in it ends that connection, never the session."""
        if len(self._connections) >= MAX_LINKS:
            return await _turn_away(stream)
        connection = Connection(self._session, stream, self._max_message_bytes, self._daemon)
        self._connections.add(connection)
        try:
            await connection.run()
        except Exception:
            log.exception("a link failed", session=self._session.id)
        finally:
            self._connections.discard(connection)
            await trio.aclose_forcefully(stream)


async def _turn_away(stream: trio.SocketStream) -> None:
    refusal = LimitExceeded(f"{MAX_LINKS} clients are connected to this session already")
    try:
        with trio.move_on_after(_REFUSAL):
            await stream.send_all(encode_error(b"", as_jsonrpc(refusal)) + b"\n")
    except trio.BrokenResourceError:
        pass  # it did not wait for the answer
    finally:
        await trio.aclose_forcefully(stream)
