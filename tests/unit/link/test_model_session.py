"""A session's way to its model, beside its link: there as long as the session, and gone with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from oubliette.errors import InternalError
from oubliette.link.carrying import IDLE_SECONDS
from oubliette.link.model import ModelDoor
from oubliette.link.server import LAST_ANSWERS, LinkDoor
from tests.helpers.domain import Domain, open_domain
from tests.helpers.model_door import ESTABLISHED, SECONDS, ask, read_all, upstream


@asynccontextmanager
async def open_door(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *hosts: str
) -> AsyncIterator[tuple[Domain, LinkDoor]]:
    """A domain whose sessions have real sockets, and a way to `hosts`."""
    door = LinkDoor(folder / "run", 4096, ModelDoor(hosts))
    door.clean()
    monkeypatch.setattr("tests.helpers.domain.NoLinks", lambda: door)
    (folder / "data").mkdir()
    async with open_domain(folder / "data") as domain:
        door.offer(domain.services)
        yield domain, door


async def test_a_session_has_a_model_socket_beside_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_door(folder, monkeypatch, "a:1") as (domain, _):
        session = await domain.start("send")
        assert session.socket is not None
        path = session.socket.parent / "model.sock"
        assert path.stat().st_mode & 0o777 == 0o600
        assert b"runtime.model_hosts" in await ask(path, b"CONNECT b:1 HTTP/1.0\r\n\r\n")
        await domain.sessions.end(session)
        assert not path.parent.exists()


async def test_the_end_of_a_session_waits_for_no_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def think(stream: trio.SocketStream) -> None:
        heard.append(await read_all(stream))

    heard: list[bytes] = []
    async with upstream(think) as port, open_door(folder, monkeypatch, f"127.0.0.1:{port}") as (domain, _):
        session = await domain.start("send")
        assert session.socket is not None
        async with await trio.open_unix_socket(str(session.socket.parent / "model.sock")) as agent:
            await agent.send_all(f"CONNECT 127.0.0.1:{port} HTTP/1.0\r\n\r\n".encode())
            assert await agent.receive_some() == ESTABLISHED
            with trio.fail_after(min(LAST_ANSWERS + SECONDS, IDLE_SECONDS)):
                await domain.sessions.end(session)
                assert await read_all(agent) == b""
    assert heard == [b""]


async def test_a_model_socket_that_cannot_be_opened_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_door(folder, monkeypatch) as (domain, door):
        session = await domain.start("send")
        with monkeypatch.context() as patch:
            patch.setattr("oubliette.link.model.NAME", "missing/model.sock")
            with pytest.raises(InternalError, match="cannot be opened"):
                door.open(session)
        assert len(list((folder / "run").iterdir())) == 1
