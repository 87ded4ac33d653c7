"""The agents' homes: `agents/<session>` under the data directory, a private folder for as long as its session lives.

What lies in a home is its agent's: it may hold anything, links and millions of files too. So it is removed as a
workspace is: moved into a trash, which is one step, and from there bit by bit (`trash.py`). No home outlives its
daemon: those that a crash left are rubbish, and nothing here need be durable.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NoReturn

import trio

from oubliette.directories import data_directory, own_directory
from oubliette.errors import InternalError
from oubliette.log import get as get_logger
from oubliette.trash import remove_some, throw_away

TRASH: Final = ".trash"
# What one thread removes before it can be cancelled, as for workspaces.
_AT_ONCE: Final = 200
_ROOT: Final = "agents"
# What the daemon itself has made; whatever else an operator keeps there stays.
_HOME: Final = re.compile(r"ses_[0-9a-f]{32}\Z")

log = get_logger(__name__)


class Homes:
    """The homes of the sessions under way. `keep_empty` must be running for removed ones to go."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._left: set[str] = set()
        self._wake = trio.Event()
        self._emptied = trio.Event()
        self._emptied.set()

    @contextmanager
    def home(self, session_id: str) -> Iterator[Path]:
        """Makes a session's home, which only the daemon's user may enter; it goes with the block.

        Raises `InternalError` where it cannot be made.
        """
        try:
            with self._root() as root:
                os.mkdir(session_id, 0o700, dir_fd=root)
        except OSError as error:
            log.warning("an agent has no home", session=session_id, reason=error.strerror)
            raise InternalError("the agent's home cannot be made right now") from error
        try:
            yield self._data_dir.joinpath(_ROOT, session_id)
        finally:
            self._leave(session_id)

    def reconcile(self) -> None:
        """Throws away what a crashed daemon left. Raises `InternalError`, in words for the operator."""
        try:
            with self._root() as root, own_directory(TRASH, root) as trash:
                for name in os.listdir(root):
                    if _HOME.match(name):
                        throw_away(name, root, trash)
        except OSError as error:
            raise InternalError(
                f"the directory {_ROOT!r} in the data directory cannot be used ({error.strerror}): it must be a "
                "directory of this user, and no symbolic link"
            ) from error
        self._fill()

    async def keep_empty(self) -> NoReturn:
        """Removes for good what was left, in threads and a part at a time. Runs until cancelled."""
        while True:
            self._wake = trio.Event()
            left, self._left = self._left, set()
            while await trio.to_thread.run_sync(self._remove_some, left):
                left = set()
            if not self._left:
                self._emptied.set()
                await self._wake.wait()

    async def emptied(self) -> None:
        """Waits until nothing is left to remove, or nothing more can be removed."""
        await self._emptied.wait()

    def _leave(self, session_id: str) -> None:
        try:
            with self._root() as root, own_directory(TRASH, root) as trash:
                # One step, and nothing to make durable: it need not go to a thread.
                os.rename(session_id, secrets.token_hex(16), src_dir_fd=root, dst_dir_fd=trash)
        except OSError:
            # Its agent has forbidden it, or put something in its place: `throw_away` knows how.
            self._left.add(session_id)
        self._fill()

    def _fill(self) -> None:
        if self._emptied.is_set():
            self._emptied = trio.Event()
        self._wake.set()

    def _remove_some(self, left: set[str]) -> int:
        try:
            with self._root() as root, own_directory(TRASH, root) as trash:
                for session_id in left:
                    _throw_away(session_id, root, trash)
                return remove_some(trash, _AT_ONCE)
        except OSError as error:
            log.warning("the trash of the agents' homes cannot be emptied", reason=error.strerror)
            return 0

    @contextmanager
    def _root(self) -> Iterator[int]:
        with data_directory(self._data_dir) as data, own_directory(_ROOT, data) as root:
            yield root


def _throw_away(session_id: str, root: int, trash: int) -> None:
    """One that cannot be moved must not keep the others; the next start tries again."""
    try:
        throw_away(session_id, root, trash)
    except OSError as error:
        log.warning("an agent's home cannot be removed", session=session_id, reason=error.strerror)
