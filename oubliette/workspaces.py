"""The folders that agents work in: `workspaces/<project>/<workspace>` under the data directory, and nowhere else."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

import trio

from oubliette.directories import data_directory, directory, make_directory, own_directory
from oubliette.errors import Conflict, InternalError
from oubliette.log import get as get_logger
from oubliette.records import WorkspaceRecord
from oubliette.trash import remove_some, throw_away

# Beside the projects, as a folder moves within its file system alone; no project has such an id.
TRASH: Final = ".trash"
# What one thread removes before it can be cancelled: 200 files take 10 ms, and on a slow disk 200 folders 0.5 s.
_AT_ONCE: Final = 200
_ROOT: Final = "workspaces"
# What the daemon itself has made; whatever else an operator keeps there stays.
_PROJECT: Final = re.compile(r"prj_[0-9a-f]{32}\Z")
_WORKSPACE: Final = re.compile(r"wsp_[0-9a-f]{32}\Z")
# What the system says of a link, or a file, where there should be a directory.
_REPLACED: Final = (errno.ELOOP, errno.ENOTDIR)

log = get_logger(__name__)


class WorkspaceFolders:
    """The folders of all workspaces. What is removed is out of the way at once; `keep_trash_empty` frees its space."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._filled = trio.Event()

    def make(self, workspace: WorkspaceRecord) -> Path:
        """Returns a workspace's folder, made where it is missing; only the daemon's user may enter it.

        Raises `Conflict` where something else has taken its place, and `InternalError`.
        """
        names = workspace.project_id, workspace.workspace_id
        try:
            with self._root() as root, own_directory(names[0], root) as project, own_directory(names[1], project):
                return self._data_dir.joinpath(_ROOT, *names)
        except OSError as error:
            log.warning("a workspace has no folder", workspace=names[1], reason=error.strerror)
            if error.errno in _REPLACED:
                raise Conflict(f"the folder of workspace {names[1]!r} was replaced by something else") from None
            raise InternalError("the workspace's folder cannot be made right now") from error

    def remove(self, workspace: WorkspaceRecord) -> None:
        """Removes a workspace's folder, or what has taken its place. Never raises: the next start tries again."""

        def move(root: int, trash: int) -> None:
            with directory(workspace.project_id, root) as project:
                throw_away(workspace.workspace_id, project, trash)

        self._clear_away(workspace.workspace_id, move)

    def remove_project(self, project_id: str) -> None:
        """Removes the folders of a project's workspaces, as `remove` does."""
        self._clear_away(project_id, partial(throw_away, project_id))

    def _clear_away(self, what: str, move: Callable[[int, int], None]) -> None:
        try:
            with self._root() as root, own_directory(TRASH, root) as trash:
                move(root, trash)
        except OSError as error:
            log.warning("a folder could not be removed", folder=what, reason=error.strerror)

    def reconcile(self, workspaces: Iterable[WorkspaceRecord]) -> None:
        """Removes folders without a record, and makes those that records lack: what a crash left half done.

        Raises `OSError` where there can be no workspaces at all.
        """
        known: dict[str, dict[str, WorkspaceRecord]] = {}
        for workspace in workspaces:
            known.setdefault(workspace.project_id, {})[workspace.workspace_id] = workspace
        with self._root() as root, own_directory(TRASH, root) as trash:
            for project_id in os.listdir(root):
                if project_id in known:
                    _reconcile_project(project_id, root, trash, known[project_id])
                elif _PROJECT.match(project_id):
                    throw_away(project_id, root, trash)
            for project_id in known:
                _make_missing(project_id, root, known[project_id])

    async def keep_trash_empty(self) -> NoReturn:
        """Removes for good what was thrown away, in threads and a part at a time. Runs until cancelled."""
        while True:
            self._filled = trio.Event()
            while await trio.to_thread.run_sync(self._remove_some):
                pass
            await self._filled.wait()

    def trash_was_filled(self) -> None:
        """Wakes `keep_trash_empty`; removals run in other threads, which must not."""
        self._filled.set()

    def _remove_some(self) -> int:
        try:
            with self._root() as root, own_directory(TRASH, root) as trash:
                return remove_some(trash, _AT_ONCE)
        except OSError as error:
            log.warning("the trash cannot be emptied", reason=error.strerror)
            return 0

    @contextmanager
    def _root(self) -> Iterator[int]:
        with data_directory(self._data_dir) as data, own_directory(_ROOT, data) as root:
            yield root


def _reconcile_project(project_id: str, root: int, trash: int, known: dict[str, WorkspaceRecord]) -> None:
    try:
        with directory(project_id, root) as project:
            for workspace_id in os.listdir(project):
                if workspace_id not in known and _WORKSPACE.match(workspace_id):
                    throw_away(workspace_id, project, trash)
    except OSError as error:
        log.warning("a project's folder cannot be read", project=project_id, reason=error.strerror)


def _make_missing(project_id: str, root: int, known: Iterable[str]) -> None:
    try:
        with own_directory(project_id, root) as project:
            for workspace_id in known:
                make_directory(workspace_id, project)
    except OSError as error:
        log.warning("a project's folder cannot be made", project=project_id, reason=error.strerror)
