"""Sessions' sockets: where they lie, who may open them, and that none is left.

WIRE section 1; HAZARDS T10, T11, F25, F34.
"""

from __future__ import annotations

import gc
import os
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from oubliette.errors import InternalError
from oubliette.link.server import MAX_LINKS, MAX_SOCKET_PATH, LinkDoor, SessionLink
from oubliette.session import Session
from oubliette.toolbox.call import Services
from tests.helpers.domain import Domain, open_domain
from tests.helpers.link import AgentLink, open_link


@pytest.fixture
def root() -> Iterator[Path]:
    """A short path: pytest's own use half of what a socket's path may have."""
    with tempfile.TemporaryDirectory(prefix="oub-") as folder:
        yield Path(folder)


@asynccontextmanager
async def open_door(root: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Domain, LinkDoor]]:
    """A domain whose sessions have real sockets."""
    door = LinkDoor(root / "run", 4096)
    door.clean()
    monkeypatch.setattr("tests.helpers.domain.NoLinks", lambda: door)
    (root / "data").mkdir()
    async with open_domain(root / "data") as domain:
        door.offer(domain.services)
        yield domain, door


def mode_of(path: Path) -> str:
    status = path.stat()
    return f"{stat.filemode(status.st_mode)[0]}{stat.S_IMODE(status.st_mode):o}"


@pytest.mark.parametrize("umask", [0o022, 0o000, 0o077])
async def test_a_socket_is_its_users_alone(root: Path, monkeypatch: pytest.MonkeyPatch, umask: int) -> None:
    """FIELD section 2, defect 13."""
    before = os.umask(umask)
    try:
        async with open_door(root, monkeypatch) as (domain, _):
            session = await domain.start("send")
            assert session.socket is not None
            assert session.socket.name == "relay.sock"
            paths = (session.socket, session.socket.parent, root / "run")
            assert [mode_of(path) for path in paths] == ["s600", "d700", "d700"]
    finally:
        os.umask(before)


async def test_a_socket_is_there_as_long_as_its_session(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_door(root, monkeypatch) as (domain, _):
        sessions = [await domain.start("send") for _ in range(3)]
        sockets = [session.socket for session in sessions]
        assert len(set(sockets)) == 3
        await domain.sessions.end(sessions[0])
        assert [path is not None and path.parent.exists() for path in sockets] == [False, True, True]
        await domain.sessions.end_all("shutdown")
        assert list((root / "run").iterdir()) == []


async def test_an_abandoned_session_leaves_no_socket(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_door(root, monkeypatch) as (domain, _):

        async def refuse(record: object) -> None:
            raise InternalError("records cannot be written right now")

        monkeypatch.setattr(domain.records, "save_session", refuse)
        with pytest.raises(InternalError):
            await domain.start("send")
        assert list((root / "run").iterdir()) == []


async def test_the_sessions_end_is_told_on_every_link_before_it_closes(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_door(root, monkeypatch) as (domain, _):
        session = await domain.start("send")
        async with open_link(str(session.socket)) as idle, open_link(str(session.socket)) as busy:
            with domain.stream(session) as stream:
                await busy.call("send", id=1)
                await stream.batch()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(domain.sessions.end, session)
                    answer = await busy.receive()
                    assert (answer["id"], answer["error"]["code"]) == (1, -32800)
                    for link in (idle, busy):
                        with pytest.raises(trio.EndOfChannel):
                            await link.receive()


async def test_an_error_of_one_link_is_not_the_sessions(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_door(root, monkeypatch) as (domain, _):
        session = await domain.start("send")

        def crash(*arguments: object) -> None:
            raise RuntimeError("a bug")

        async with open_link(str(session.socket)) as healthy:
            with monkeypatch.context() as patch:
                patch.setattr("oubliette.link.connection.decode", crash)
                async with open_link(str(session.socket)) as link:
                    await link.send({"id": 1, "method": "nope"})
                    with pytest.raises(trio.EndOfChannel):
                        await link.receive()
            await healthy.send({"id": 1, "method": "nope"})
            assert (await healthy.receive())["error"]["code"] == -32601
        assert "a link failed" in caplog.text
        assert session.status == "running"


async def test_the_links_of_a_session_are_bounded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HAZARDS F25: descriptors are the whole daemon's. N, N+1, and N again."""
    monkeypatch.setattr("oubliette.link.server.MAX_LINKS", 3)
    assert MAX_LINKS == 64
    async with open_door(root, monkeypatch) as (domain, _):
        session = await domain.start("send")
        async with open_link(str(session.socket)), open_link(str(session.socket)):
            async with open_link(str(session.socket)), await trio.open_unix_socket(str(session.socket)) as stream:
                refused = AgentLink(stream)
                assert (await refused.receive())["error"]["code"] == -32006
                with pytest.raises(trio.EndOfChannel):
                    await refused.receive()
            with trio.fail_after(5):
                while True:
                    async with await trio.open_unix_socket(str(session.socket)) as stream:
                        if "type" in await AgentLink(stream).receive():
                            break


# What the door refuses, in words


@pytest.mark.parametrize("over", [0, 1])
def test_a_path_that_is_too_long_is_refused_at_the_start(root: Path, over: int) -> None:
    """A unix socket's path has 107 bytes, counted as the kernel does."""
    length = len(os.fsencode(LinkDoor(root, 1)._new_path().absolute()))
    run_dir = root / _name_of(MAX_SOCKET_PATH - length - 1 + over)
    if over:
        with pytest.raises(InternalError, match="--data-dir") as refused:
            LinkDoor(run_dir, 1)
        assert "108 bytes" in refused.value.message
    else:
        door = LinkDoor(run_dir, 1)
        door.clean()
        path = door._new_path()
        path.parent.mkdir()
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(os.fspath(path))


def _name_of(length: int) -> str:
    """A name of so many bytes and fewer characters."""
    return "é" * (length // 2) + "x" * (length % 2)


def test_what_a_crash_left_is_removed(root: Path) -> None:
    left = root / "run" / "0123456789"
    left.mkdir(parents=True)
    (left / "relay.sock").touch()
    LinkDoor(root / "run", 1).clean()
    assert list((root / "run").iterdir()) == []
    assert mode_of(root / "run") == "d700"


def test_a_planted_link_is_not_followed(root: Path) -> None:
    """HAZARDS T21: what it points to stays."""
    elsewhere = root / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "canary").touch()
    (root / "run").symlink_to(elsewhere)
    with pytest.raises(InternalError, match="symbolic link"):
        LinkDoor(root / "run", 1).clean()
    assert (elsewhere / "canary").exists()
    (root / "run").unlink()
    (root / "run").mkdir()
    (root / "run" / "inner").symlink_to(elsewhere)
    LinkDoor(root / "run", 1).clean()
    assert (elsewhere / "canary").exists()


def test_a_directory_that_cannot_be_made_is_told_in_words(root: Path) -> None:
    (root / "run").write_text("a file")
    with pytest.raises(InternalError, match="cannot be made anew"):
        LinkDoor(root / "run", 1).clean()


async def test_a_socket_that_cannot_be_bound_leaves_nothing_open(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_door(root, monkeypatch) as (domain, door):
        session = await domain.start("send")
        before = len(os.listdir("/proc/self/fd"))

        def refuse(session: Session, path: Path, max_message_bytes: int, services: Services) -> SessionLink:
            return SessionLink(session, path / "missing" / "relay.sock", max_message_bytes, services)

        with monkeypatch.context() as patch:
            patch.setattr("oubliette.link.server.SessionLink", refuse)
            with pytest.raises(InternalError, match="cannot be opened"):
                door.open(session)
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == before
        assert len(list((root / "run").iterdir())) == 1
