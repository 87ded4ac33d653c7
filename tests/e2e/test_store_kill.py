"""HAZARDS G8: what was acknowledged survives SIGKILL, wherever it strikes.

Run as a program, this file is the victim: it writes through the store and says on stdout what was acknowledged to it.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from oubliette import store_schema
from oubliette.records import ProjectRecord, SessionRecord, StoredEvent, TokenRecord
from oubliette.store import Store

NOW = "2026-01-01T00:00:00Z"
FLUSH_EVERY = 20


# --- the victim ------------------------------------------------------------------------------------------------------


def say(*words: object) -> None:
    """One line, in one write: the last one may be missing after a kill, but is never half there."""
    os.write(1, (" ".join(str(word) for word in words) + "\n").encode())


def kill_at_statement(number: int) -> None:
    """Kills this process when it begins its `number`-th statement, whichever connection and thread that is in."""
    connect = store_schema.connect
    begun = 0

    def count(sql: str) -> None:
        nonlocal begun
        begun += 1
        if begun == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def connect_and_count(path: Path) -> sqlite3.Connection:
        connection = connect(path)
        connection.set_trace_callback(count)
        return connection

    store_schema.connect = connect_and_count


def session(name: str, status: str) -> SessionRecord:
    return SessionRecord(
        session_id=name,
        project_id="p",
        workspace_id="w",
        status=status,
        agent="command",
        runtime="process",
        owner="t",
        parent_id=None,
        depth=0,
        caller=None,
        created_at=NOW,
        ended_at=None,
        last_index=0,
    )


async def save_tokens(store: Store, prefix: str) -> None:
    number = 0
    while True:
        number += 1
        token_id = f"{prefix}-{number}"
        await store.save_token(
            TokenRecord(
                token_id=token_id,
                name="n",
                scope="admin",
                digest=os.urandom(32),
                created_at=NOW,
                last_used_at=None,
                expires_at=None,
            )
        )
        say("saved", token_id)
        if number % 3 == 0:
            say("deleting", token_id)
            await store.delete_token(token_id)
            say("deleted", token_id)


async def change_session(store: Store, name: str) -> None:
    number = 0
    while True:
        number += 1
        await store.save_session(session(name, str(number)))
        say("status", name, number)


async def append_events(store: Store, name: str) -> None:
    seq, index = store.highest_seq(), 0
    while True:
        await store.wait_for_room()
        seq, index = seq + 1, index + 1
        say("given", name, seq)
        store.append_event(StoredEvent(seq=seq, session_id=name, index=index, type="message", data=b"x" * 500))
        if index % FLUSH_EVERY == 0:
            await store.flush()
            say("flushed", name, index)


async def write_until_killed(data_dir: Path, name: str) -> None:
    store = Store.open(data_dir)
    say("opened", store.highest_seq())
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        await store.save_project(
            ProjectRecord(
                project_id="p",
                name="p",
                description="",
                agent=None,
                runtime=None,
                packs=None,
                default_workspace_id="w",
                created_at=NOW,
            )
        )
        await store.save_session(session(name, "0"))
        say("status", name, 0)
        for writer in range(4):
            nursery.start_soon(save_tokens, store, f"{name}-{writer}")
        nursery.start_soon(change_session, store, name)
        nursery.start_soon(append_events, store, name)


# --- what it was told ------------------------------------------------------------------------------------------------


class Told:
    """Everything that victims of one data directory said."""

    def __init__(self) -> None:
        self.lines = 0
        self.saved: set[str] = set()
        self.deleting: set[str] = set()
        self.deleted: set[str] = set()
        self.status: dict[str, int] = {}
        self.flushed: dict[str, int] = {}
        self.highest_seq = 0

    def hear(self, line: str) -> None:
        self.lines += 1
        match line.split():
            case ["saved", token_id]:
                self.saved.add(token_id)
            case ["deleting", token_id]:
                self.deleting.add(token_id)
            case ["deleted", token_id]:
                self.deleted.add(token_id)
            case ["status", name, number]:
                self.status[name] = int(number)
            case ["given", _, seq]:
                assert int(seq) > self.highest_seq, "a number was given out twice"
                self.highest_seq = int(seq)
            case ["flushed", name, index]:
                self.flushed[name] = int(index)

    async def check(self, data_dir: Path) -> None:
        """Asserts that the next daemon finds all of it. Opens the store as that daemon would."""
        store = Store.open(data_dir)
        try:
            assert not store.clean_stop or not self.lines
            assert store.highest_seq() >= self.highest_seq
            there = {token.token_id for token in store.tokens()}
            assert self.saved - self.deleting <= there
            assert not self.deleted & there
            for name, number in self.status.items():
                record = await store.session(name)
                assert record is not None
                assert int(record.status) >= number
            for name, index in self.flushed.items():
                events = await store.events_of(name, 0, 1_000_000)
                assert [event.index for event in events] == list(range(1, len(events) + 1))
                assert len(events) >= index
        finally:
            store.close()
        check_integrity(data_dir)


def check_integrity(data_dir: Path) -> None:
    connection = sqlite3.connect(data_dir / "oubliette.db")
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()


async def lines_of(stream: trio.abc.ReceiveStream) -> AsyncIterator[str]:
    rest = b""
    async for chunk in stream:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode()


async def suffer(data_dir: Path, told: Told, name: str, *, lines: int = 0, statement: int = 0) -> None:
    """Runs a victim and kills it after it said `lines` lines; or it kills itself at a statement."""
    command = [sys.executable, __file__, str(data_dir), name, str(statement)]
    with trio.fail_after(60):
        async with await trio.open_file(os.devnull) as nothing:
            victim = await trio.lowlevel.open_process(command, stdin=nothing.fileno(), stdout=subprocess.PIPE)
        assert victim.stdout is not None
        try:
            heard = 0
            async for line in lines_of(victim.stdout):
                told.hear(line)
                heard += 1
                if heard == lines:
                    victim.kill()
        finally:
            victim.kill()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 10):
                assert await victim.wait() == -signal.SIGKILL


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param(1, id="before anything"),
        pytest.param(4, id="at the first table"),
        pytest.param(12, id="at the last table"),
        pytest.param(15, id="at the commit of the tables"),
        pytest.param(22, id="among the tables' next version"),
        pytest.param(28, id="at the note that a daemon runs"),
        pytest.param(45, id="among the first records"),
        pytest.param(200, id="within a batch"),
        pytest.param(1500, id="late"),
    ],
)
async def test_a_kill_at_a_statement_loses_nothing_acknowledged(tmp_path: Path, statement: int) -> None:
    told = Told()
    await suffer(tmp_path, told, "first", statement=statement)
    await told.check(tmp_path)
    await suffer(tmp_path, told, "second", lines=100)
    await told.check(tmp_path)
    assert len(told.saved) > 5


async def test_kills_at_any_moment_one_after_another_lose_nothing_acknowledged(tmp_path: Path) -> None:
    told = Told()
    for number, lines in enumerate([1, 2, 9, 60, 400, 1500, 4000]):
        await suffer(tmp_path, told, f"s{number}", lines=lines)
        await told.check(tmp_path)
    assert len(told.saved) > 500
    assert len(told.flushed) > 2


if __name__ == "__main__":
    directory, victim_name, statement_number = sys.argv[1:]
    kill_at_statement(int(statement_number))
    trio.run(write_until_killed, Path(directory), victim_name)
