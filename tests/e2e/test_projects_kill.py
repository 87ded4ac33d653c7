"""`kill -9` at every step of the creation and deletion of projects and workspaces: all of it, or nothing (HAZARDS G8).

Run as a program, this file is the murderer. For each step of an operation it forks a daemon's parts on a copy of the
same data, which kill themselves there, and then another, which starts as the next daemon does and looks at what it
finds. A step is whatever changes something: a file that is opened, made, renamed or removed, and an SQL statement.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import trio

from oubliette import store_schema
from oubliette.agents.environment import Environment
from oubliette.projects import DEFAULT, NewProject, Projects
from oubliette.records import ProjectRecord, SessionRecord, TokenRecord
from oubliette.store import Store

NOW = "2026-01-01T00:00:00Z"
STEPS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")
SECRET = Environment({"KEY": "canary"})
# More steps than any operation has.
ENDLESS = 500

Work = Callable[[Projects], Awaitable[None]]


# --- the victim ------------------------------------------------------------------------------------------------------


class Executioner:
    """Kills this process at its `number`-th step after `arm`."""

    def __init__(self, number: int) -> None:
        self._left = number
        self._is_armed = False

    def arm(self) -> None:
        connect = store_schema.connect

        def connect_and_count(path: Path) -> sqlite3.Connection:
            connection = connect(path)
            connection.set_trace_callback(lambda sql: self._count())
            return connection

        store_schema.connect = connect_and_count
        sys.addaudithook(lambda event, arguments: self._count() if event in STEPS else None)

    def begin(self) -> None:
        self._is_armed = True

    def _count(self) -> None:
        self._left -= self._is_armed
        if self._is_armed and not self._left:
            os.kill(os.getpid(), signal.SIGKILL)


async def carry_out(data_dir: Path, work: Work, begin: Callable[[], None] = lambda: None) -> None:
    """Does what a daemon does, around `work`."""
    store = Store.open(data_dir)
    projects = Projects(store, data_dir)
    projects.reconcile()
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        await projects.ensure_default()
        await nursery.start(projects.errands.run)
        begin()
        await work(projects)
        nursery.cancel_scope.cancel()


def named(projects: Projects, name: str) -> ProjectRecord:
    return next(project for project in projects.all() if project.name == name)


async def create(projects: Projects) -> None:
    await projects.create(NewProject(name="new", env=SECRET))


async def create_workspace(projects: Projects) -> None:
    await projects.create_workspace(named(projects, "kept"), "new", SECRET)


async def delete(projects: Projects) -> None:
    await projects.delete(named(projects, "doomed"), ["doomed"])


async def delete_workspace(projects: Projects) -> None:
    doomed = next(one for one in projects.workspaces(named(projects, "kept")) if one.name == "doomed")
    await projects.delete_workspace(doomed)


OPERATIONS: dict[str, Work] = {
    "create": create,
    "create_workspace": create_workspace,
    "delete": delete,
    "delete_workspace": delete_workspace,
}


# --- what it leaves --------------------------------------------------------------------------------------------------


async def prepare(data_dir: Path) -> None:
    """Makes the data on which every victim works."""

    async def fill(projects: Projects) -> None:
        for name in ("kept", "doomed"):
            project = await projects.create(NewProject(name=name, env=SECRET))
            await projects.create_workspace(project, "doomed", SECRET)
            for workspace in projects.workspaces(project):
                (projects.folder(workspace) / "file").write_text(name)

    await carry_out(data_dir, fill)
    store = Store.open(data_dir)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        for project in store.projects():
            await store.save_session(session(project))
            await store.save_token(token(project.name))
        nursery.cancel_scope.cancel()


def session(project: ProjectRecord) -> SessionRecord:
    return SessionRecord(
        session_id=f"ses_{project.name}",
        project_id=project.project_id,
        workspace_id=project.default_workspace_id,
        status="ended",
        agent="a",
        runtime="process",
        owner="t",
        parent_id=None,
        depth=0,
        caller=None,
        created_at=NOW,
        ended_at=NOW,
        last_index=0,
    )


def token(name: str) -> TokenRecord:
    return TokenRecord(
        token_id=name, name=name, scope="admin", digest=b"x", created_at=NOW, last_used_at=None, expires_at=None
    )


async def look(data_dir: Path, operation: str, acknowledged: bool) -> None:
    """Asserts that the next daemon finds all of the operation, or nothing of it."""
    store = Store.open(data_dir)
    try:
        projects = Projects(store, data_dir)
        projects.reconcile()
        names = {project.name for project in projects.all()}
        sessions = await store.sessions(projects=None, owner=None, status=None, limit=100, before=None)
        assert {record.session_id for record in sessions} == {f"ses_{name}" for name in names - {"new"}}
        assert {record.token_id for record in store.tokens()} == names - {"new"}
        assert await outcome(projects, data_dir, names, operation) or not acknowledged
    finally:
        store.close()


async def outcome(projects: Projects, data_dir: Path, names: set[str], operation: str) -> bool:
    """Whether the operation was done; asserts that nothing else was."""
    workspaces = {project.name: {one.name for one in projects.workspaces(project)} for project in projects.all()}
    for project in projects.all():
        found = {path.name for path in (data_dir / "workspaces" / project.project_id).iterdir()}
        assert found == {workspace.workspace_id for workspace in projects.workspaces(project)}
        await look_into(projects, data_dir, project)
    owners = {project.project_id for project in projects.all()}
    assert {path.name for path in (data_dir / "workspaces").glob("[!.]*")} == owners
    owners |= {one.workspace_id for project in projects.all() for one in projects.workspaces(project)}
    assert {path.name.partition(".")[0] for path in (data_dir / "env").iterdir()} <= owners
    before = {"default": {"default"}, "kept": {"default", "doomed"}, "doomed": {"default", "doomed"}}
    after = {
        "create": {**before, "new": {"default"}},
        "create_workspace": {**before, "kept": {"default", "doomed", "new"}},
        "delete": {name: before[name] for name in ("default", "kept")},
        "delete_workspace": {**before, "kept": {"default"}},
    }[operation]
    assert workspaces in (before, after)
    return workspaces == after


async def look_into(projects: Projects, data_dir: Path, project: ProjectRecord) -> None:
    """Asserts that a project and its workspaces have what they were given."""
    assert projects.variables(project.project_id) == ([] if project.name == DEFAULT else ["KEY"])
    for workspace in projects.workspaces(project):
        assert (await projects.environment(workspace) == SECRET) is (project.name != DEFAULT)
        assert projects.variables(workspace.workspace_id) == ([] if workspace.name == DEFAULT else ["KEY"])
        if project.name in ("kept", "doomed") and workspace.name != "new":
            file = data_dir / "workspaces" / project.project_id / workspace.workspace_id / "file"
            assert file.read_text() == project.name


# --- the murderer ----------------------------------------------------------------------------------------------------


def in_a_fork(work: Callable[[], None]) -> int:
    """Runs `work` in a process of its own; returns how it ended: 0, 1 with a traceback on stderr, or a signal."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def murder(template: Path, data_dir: Path, operation: str) -> int:
    """Kills one victim at each step of an operation; returns how many steps there were."""
    work = OPERATIONS[operation]
    for step in range(1, ENDLESS):
        shutil.copytree(template, data_dir)
        executioner = Executioner(step)

        def fall(executioner: Executioner = executioner) -> None:
            executioner.arm()
            trio.run(carry_out, data_dir, work, executioner.begin)

        ended = in_a_fork(fall)
        found = in_a_fork(partial(trio.run, look, data_dir, operation, ended == 0))
        if ended not in (0, -signal.SIGKILL) or found:
            sys.exit(f"{operation}, step {step}")
        shutil.rmtree(data_dir)
        if ended == 0:
            return step - 1
    sys.exit(f"{operation} had no end")


def main(root: Path) -> None:
    if in_a_fork(partial(trio.run, prepare, root / "template")):
        sys.exit("nothing was prepared")
    for operation in OPERATIONS:
        print(operation, murder(root / "template", root / "data", operation))


def test_a_kill_at_any_step_leaves_all_or_nothing() -> None:
    # In memory where that is possible: what is asked is what survives the process, not the machine.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="oub-", dir=memory) as root:
        done = subprocess.run([sys.executable, __file__, root], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
    steps = {operation: int(number) for operation, number in map(str.split, done.stdout.splitlines())}
    assert steps.keys() == OPERATIONS.keys()
    assert min(steps.values()) > 10


if __name__ == "__main__":
    main(Path(sys.argv[1]))
