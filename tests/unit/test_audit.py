"""The audit log: what a line says, where it goes, and what happens when it cannot (HAZARDS T7, T11, G17, F26)."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from oubliette import audit
from oubliette.audit import AUDIT_FILE, Audit, AuditFile, outcome_of
from oubliette.errors import CallerToolError, Conflict, Forbidden, OublietteError
from oubliette.scopes import Scope
from oubliette.store_files import StoreError
from oubliette.tokens import Principal
from tests.helpers.audit import NoFile, Unwritten, lines_of
from tests.helpers.domain import OTHER, OWNER, open_domain

RESULT, TEXT, REASON = "result-canary", "message-canary", "error-canary"
TOKEN = f"oub_abc123_{'0123456789abcdef' * 4}"

# The file


def file_at(folder: Path, **options: Any) -> AuditFile:
    return AuditFile(folder / AUDIT_FILE, **options)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o777])
def test_the_file_is_made_with_its_mode(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        file_at(tmp_path).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / AUDIT_FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_what_is_no_file_of_ours_is_refused(tmp_path: Path, kind: str) -> None:
    """HAZARDS T11: nothing is ever written through somebody else's file."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("canary")
    if kind == "link":
        (tmp_path / AUDIT_FILE).symlink_to(elsewhere)
    else:
        (tmp_path / AUDIT_FILE).mkdir()
    with pytest.raises(StoreError):
        file_at(tmp_path)
    assert elsewhere.read_text() == "canary"


def test_it_goes_on_where_it_ended_also_behind_half_a_line(tmp_path: Path) -> None:
    for found, kept in ((b"", b""), (b"one\n", b"one\n"), (b"one\ntw", b"one\ntw\n")):
        (tmp_path / AUDIT_FILE).write_bytes(found)
        file = file_at(tmp_path)
        file.append(b"three\n")
        file.close()
        assert (tmp_path / AUDIT_FILE).read_bytes() == kept + b"three\n"


def test_it_is_rotated_by_size_and_the_oldest_goes(tmp_path: Path) -> None:
    file = file_at(tmp_path, max_bytes=20, kept=2)
    for number in range(9):
        file.append(b"line %03d\n" % number)
    file.close()
    assert names(tmp_path) == [AUDIT_FILE, f"{AUDIT_FILE}.1", f"{AUDIT_FILE}.2"]
    found = [(tmp_path / name).read_text().split() for name in names(tmp_path)]
    assert [lines[1::2] for lines in found] == [["008"], ["006", "007"], ["004", "005"]]
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in names(tmp_path)} == {0o600}


def test_a_rotation_that_fails_moves_nothing(tmp_path: Path) -> None:
    file = file_at(tmp_path, max_bytes=20, kept=2)
    file.append(b"line 000\nline 001\n")
    (tmp_path / f"{AUDIT_FILE}.new").mkdir()
    for _ in range(5):
        with pytest.raises(StoreError):
            file.append(b"line 002\n")
    assert names(tmp_path) == [AUDIT_FILE, f"{AUDIT_FILE}.new"]
    (tmp_path / f"{AUDIT_FILE}.new").rmdir()
    file.append(b"line 002\n")
    file.close()
    assert (tmp_path / AUDIT_FILE).read_text() == "line 002\n"


def test_what_does_not_fit_on_the_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = file_at(tmp_path)
    file.append(b"one\n")
    write = os.pwrite

    def first_half_alone(descriptor: int, data: Any, at: int) -> int:
        if at > len(b"one\n"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[: len(data) // 2], at)

    monkeypatch.setattr(os, "pwrite", first_half_alone)
    with pytest.raises(OSError, match="No space"):
        file.append(b"two and more\n")
    monkeypatch.undo()
    assert (tmp_path / AUDIT_FILE).read_bytes() == b"one\n"
    file.append(b"three\n")
    file.close()
    assert (tmp_path / AUDIT_FILE).read_bytes() == b"one\nthree\n"


# Lines


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "ok"),
        (Forbidden("no"), "forbidden"),
        (Conflict("no"), "conflict"),
        (CallerToolError("no"), "caller_tool_error"),
        (RuntimeError("no"), "internal_error"),
    ],
)
def test_how_an_action_came_out(error: BaseException | None, outcome: str) -> None:
    assert outcome_of(error) == outcome


async def test_an_action_that_is_cancelled_is_noted_as_that() -> None:
    unwritten = Unwritten()
    with trio.CancelScope() as scope, unwritten.action("x"):
        scope.cancel()
        await trio.lowlevel.checkpoint()
    assert [line["outcome"] for line in unwritten.noted] == ["cancelled"]


def test_a_line_is_masked_bounded_and_one_line() -> None:
    unwritten = Unwritten()
    objects = {"session_id": TOKEN, "project_id": "a\nb\u2028\x1b[31m", "scope": "s" * 10_000}
    unwritten.note("x", "ok", objects, token=None)
    (line,) = unwritten._lines
    assert line.count(b"\n") == 1
    assert line.isascii()
    assert len(line) < 600
    told = json.loads(line)
    assert told["on"]["session_id"] == "oub_…"
    assert "token" not in told


# Writing


async def test_lines_are_written_in_order_and_the_last_ones_at_the_end(tmp_path: Path) -> None:
    noted = Audit(file_at(tmp_path))
    async with trio.open_nursery() as nursery:
        await nursery.start(noted.run)
        for number in range(100):
            noted.note("x", "ok", number=number)
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert [line["number"] for line in lines_of(tmp_path / AUDIT_FILE)] == list(range(100))


class FullDisk(NoFile):
    """A file on a disk that is full until the test says otherwise."""

    def __init__(self) -> None:
        self.is_full = True
        self.written: list[Any] = []
        self._tried = trio.Event()

    async def next_try(self) -> None:
        """Returns when the audit log has tried to write once more."""
        self._tried = trio.Event()
        await self._tried.wait()
        await wait_all_tasks_blocked()

    def append(self, lines: bytes) -> None:
        was_full = self.is_full
        self.written += [] if was_full else [json.loads(line) for line in lines.splitlines()]
        trio.from_thread.run_sync(lambda: self._tried.set())
        if was_full:
            raise OSError(errno.ENOSPC, "No space left on device")


async def test_a_full_disk_is_told_once_and_nothing_is_lost(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FullDisk()
    noted = Audit(disk)
    async with trio.open_nursery() as nursery:
        await nursery.start(noted.run)
        for number in range(5):
            noted.note("x", "ok", number=number)
            await disk.next_try()
        disk.is_full = False
        await disk.next_try()
        assert [line["number"] for line in disk.written] == [0, 1, 2, 3, 4]
        nursery.cancel_scope.cancel()
    told = [record.levelname for record in caplog.records if record.name == audit.__name__]
    assert told == ["ERROR", "WARNING"]


async def test_beyond_the_bound_lines_are_counted_and_the_count_is_written(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MAX_BACKLOG", 3)
    disk = FullDisk()
    noted = Audit(disk)
    async with trio.open_nursery() as nursery:
        await nursery.start(noted.run)
        for number in range(10):
            noted.note("x", "ok", number=number)
        assert len(noted._lines) == 3
        await disk.next_try()
        disk.is_full = False
        await disk.next_try()
        nursery.cancel_scope.cancel()
    assert [line.get("number") for line in disk.written] == [0, 1, 2, None]
    assert (disk.written[3]["action"], disk.written[3]["lines"]) == ("audit.lost", 7)


async def test_a_stop_does_not_wait_for_a_disk_that_fails() -> None:
    noted = Audit(FullDisk())
    noted.note("x", "ok")
    with trio.fail_after(audit.CLOSE_SECONDS + 1):
        async with trio.open_nursery() as nursery:
            await nursery.start(noted.run)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()


# What tools note


async def test_what_changes_something_is_noted_with_who_and_on_what(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        session = await domain.start("send", message=TEXT)
        await domain.run(OWNER, "session_message", session_id=session.id, message=TEXT)
        await domain.run(OWNER, "session_end", session_id=session.id)
        lines = domain.audit.noted
    assert [(line["action"], line["outcome"]) for line in lines] == [
        ("session_message", "ok"),
        ("session_message", "ok"),
        ("session_end", "ok"),
    ]
    for line in lines:
        assert (line["token_id"], line["door"]) == (OWNER.token_id, "mcp")
        ids = {"project_id": session.project_id, "workspace_id": session.workspace_id, "session_id": session.id}
        assert line["on"] == ids
    assert TEXT not in str(lines)


async def test_what_reads_is_not_noted(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        session = await domain.start()
        noted = len(domain.audit.noted)
        await domain.run(OWNER, "session_get", session_id=session.id)
        await domain.run(OWNER, "session_list")
        assert len(domain.audit.noted) == noted


async def test_what_was_refused_is_noted_with_the_reason(tmp_path: Path) -> None:
    reader = Principal("reader", Scope("default", True), "dashboard")
    agent = Principal("agent", Scope("default", False))
    refused: list[tuple[Principal, str, dict[str, Any], str]] = [
        (reader, "session_end", {"session_id": "ses_x"}, "forbidden"),
        (agent, "token_create", {"name": "x", "scope": "admin"}, "forbidden"),
        (OWNER, "session_end", {"session_id": "ses_nobody"}, "not_found"),
        (OWNER, "session_end", {"sesion_id": "typo"}, "invalid_params"),
        (OWNER, "token_create", {"name": "x", "scope": TOKEN}, "invalid_params"),
    ]
    async with open_domain(tmp_path) as domain:
        for who, tool, arguments, kind in refused:
            with pytest.raises(OublietteError):
                await domain.run(who, tool, **arguments)
            line = domain.audit.noted[-1]
            assert (line["action"], line["outcome"], line["token_id"]) == (tool, kind, who.token_id)
        assert [line.get("token") for line in domain.audit.noted[:2]] == ["dashboard", ""]
        assert domain.audit.noted[2]["on"]["session_id"] == "ses_nobody"
        assert TOKEN not in str(domain.audit.noted)


async def test_a_token_is_noted_by_its_id_and_scope(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        made = await domain.run(OWNER, "token_create", name="x", scope="project:default:ro")
        await domain.run(OWNER, "token_revoke", token_id=made["token_id"])
        created, revoked = domain.audit.noted
    assert created["on"] == {"token_id": made["token_id"], "scope": "project:default:ro"}
    assert revoked["on"] == {"token_id": made["token_id"]}
    assert created["token_id"] == revoked["token_id"] == OWNER.token_id
    assert made["token"].rpartition("_")[2] not in str((created, revoked))


async def test_of_answers_only_those_are_noted_that_were_none_of_the_askers_business(tmp_path: Path) -> None:
    """HAZARDS T7; the others are in the session's events."""
    async with open_domain(tmp_path) as domain:
        session = await domain.start("send")
        with domain.stream(session):
            pending = session.relay.begin("send", b"{}")
            noted = len(domain.audit.noted)
            answer = {"session_id": session.id, "request_id": pending.request_id}
            with pytest.raises(Forbidden):
                await domain.run(OTHER, "caller_tool_response", **answer, result=RESULT)
            await domain.run(OWNER, "caller_tool_response", **answer, error=REASON)
            with pytest.raises(Conflict):
                await domain.run(OWNER, "caller_tool_response", **answer, result=RESULT)
            with pytest.raises(CallerToolError):
                await session.relay.outcome(pending)
        (line,) = domain.audit.noted[noted:]
    assert (line["token_id"], line["outcome"]) == (OTHER.token_id, "forbidden")
    assert line["on"] == {"session_id": session.id, "request_id": pending.request_id}
    assert RESULT not in str(line)
