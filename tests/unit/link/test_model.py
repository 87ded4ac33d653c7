"""The door to models: who is let through, and what ends a connection (HAZARDS T23, F25, G9)."""

from __future__ import annotations

import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from oubliette.link import model
from oubliette.link.carrying import IDLE_SECONDS, LINGER_SECONDS
from oubliette.link.model import CONNECT_SECONDS, HEAD_SECONDS, MAX_CONNECTIONS, MAX_HEAD, MAX_LOGGED, ModelDoor
from tests.helpers.model_door import (
    ESTABLISHED,
    SECONDS,
    Recorder,
    ask,
    door,
    read_all,
    send_until_broken,
    through,
    upstream,
)


@pytest.fixture
def connects(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What the door connects to, and so looks up."""
    asked: list[tuple[str, int]] = []
    connect = trio.open_tcp_stream

    async def record(host: str, port: int) -> trio.SocketStream:
        asked.append((host, port))
        return await connect(host, port)

    monkeypatch.setattr(trio, "open_tcp_stream", record)
    return asked


async def never(stream: trio.SocketStream) -> None:
    raise AssertionError("nobody may come here")


# Who is let through


@pytest.mark.parametrize(
    ("allowed", "asked"),
    [
        ("LOCALHOST.:{}", "CONNECT localhost:{} HTTP/1.0\r\n\r\n"),
        ("localhost:{}", "CONNECT LocalHost.:{} HTTP/1.0\r\n\r\n"),
        ("127.0.0.1:{}", "GET http://127.0.0.1:{}/ HTTP/1.0\r\n\r\n"),
    ],
)
async def test_one_host_in_another_spelling_is_that_host(folder: Path, allowed: str, asked: str) -> None:
    server = Recorder(b"\r\n\r\n")
    async with upstream(server) as port, door(folder, allowed.format(port)) as listener:
        async with await trio.open_unix_socket(str(listener.path)) as agent:
            await agent.send_all(asked.format(port).encode())
            assert b" 200 " in await agent.receive_some()
        assert listener.refused == 0


OTHERS = [
    "CONNECT 127.0.0.1:{other} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n",
    "CONNECT localhost:{port} HTTP/1.0\r\n\r\n",
    "CONNECT 127.1:{port} HTTP/1.0\r\n\r\n",
    "CONNECT 2130706433:{port} HTTP/1.0\r\n\r\n",
    "CONNECT 0x7f000001:{port} HTTP/1.0\r\n\r\n",
    "CONNECT [::ffff:127.0.0.1]:{port} HTTP/1.0\r\n\r\n",
    "CONNECT 0.0.0.0:{port} HTTP/1.0\r\n\r\n",
    "CONNECT 127.0.0.1.example.com:{port} HTTP/1.0\r\n\r\n",
    "CONNECT 169.254.169.254:80 HTTP/1.0\r\n\r\n",
    "CONNECT 127.0.0.1 HTTP/1.0\r\n\r\n",
    "CONNECT /run/other.sock HTTP/1.0\r\n\r\n",
    "GET http://127.0.0.1/ HTTP/1.0\r\n\r\n",
    "GET http://127.0.0.1:{port}@evil.example/ HTTP/1.0\r\n\r\n",
    "GET http://evil.example/http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n",
    "GET https://127.0.0.1:{port}/ HTTP/1.0\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n",
    "CONNECT 127.0.0.1:{port}\r\n\r\n",
    "\x16\x03\x01\x02\x00\x01\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]


@pytest.mark.parametrize("asked", OTHERS)
async def test_everything_else_is_refused_in_words(folder: Path, asked: str, connects: list[Any]) -> None:
    async with upstream(never) as port, upstream(never) as other, door(folder, f"127.0.0.1:{port}") as listener:
        answer = await ask(listener.path, asked.format(port=port, other=other).encode())
        assert answer.startswith(b"HTTP/1.1 403 Forbidden\r\n")
        assert b"runtime.model_hosts" in answer
        assert (listener.refused, connects) == (1, [])


async def test_a_door_without_hosts_lets_nothing_through(folder: Path, connects: list[Any]) -> None:
    async with door(folder) as listener:
        assert b" 403 " in await ask(listener.path, b"CONNECT localhost:80 HTTP/1.0\r\n\r\n")
        assert connects == []


@pytest.mark.parametrize("host", ["api.example.com", "*.example.com:443", "https://api.example.com", ""])
def test_hosts_that_are_none_are_refused_at_once(host: str) -> None:
    with pytest.raises(ValueError, match=r"no HOST:PORT|no host name"):
        ModelDoor(["a:1", host])


async def test_a_refusal_is_logged_once_for_each_host(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(model, "MAX_LOGGED", 3)
    assert MAX_LOGGED == 100
    async with door(folder) as listener:
        for host in ["a", "a", "b", "A.", "", "", "c", "d"]:
            await ask(listener.path, f"CONNECT {host}:1 HTTP/1.0\r\n\r\n".encode())
        assert listener.refused == 8
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert "the-session" in lines[0]
    assert "a:1" in lines[0]


@pytest.mark.parametrize(
    ("name", "found", "is_let_through"),
    [
        ("localhost", "127.0.0.1", True),
        ("model.localhost", "127.0.0.1", True),
        ("api.example.com", "127.0.0.1", False),
        ("localhost.example.com", "127.0.0.1", False),
    ],
)
async def test_a_name_that_was_turned_to_this_machine_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, found: str, is_let_through: bool
) -> None:
    """HAZARDS T23, "rebinding name"."""
    connect = trio.open_tcp_stream

    async def look_up(host: str, port: int) -> trio.SocketStream:
        assert host == name
        return await connect(found, port)

    async def listen(stream: trio.SocketStream) -> None:
        heard.append(await read_all(stream))

    heard: list[bytes] = []
    monkeypatch.setattr(trio, "open_tcp_stream", look_up)
    async with upstream(listen) as port, door(folder, f"{name}:{port}") as listener:
        answer = await ask_and_end(listener.path, f"CONNECT {name}:{port} HTTP/1.0\r\n\r\nsecret".encode())
    assert (answer == ESTABLISHED, b" 502 " in answer) == (is_let_through, not is_let_through)
    assert b"".join(heard) == (b"secret" if is_let_through else b"")


HERE = ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1", "169.254.169.254", "fe80::1%eth0"]
ELSEWHERE = ["10.0.0.1", "192.0.2.1", "2001:db8::1"]


@pytest.mark.parametrize("address", HERE + ELSEWHERE)
def test_which_addresses_are_this_machines_alone(address: str) -> None:
    class Socket:
        def getpeername(self) -> tuple[str, int]:
            return address, 80

    class Connected:
        socket = Socket()

    stream: Any = Connected()
    assert model._is_here(stream) == (address in HERE)


async def test_a_host_that_cannot_be_reached_is_told_in_words(folder: Path) -> None:
    with socket.socket() as bound:  # bound and not listening: nobody answers, and nobody else gets the port
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        async with door(folder, f"127.0.0.1:{port}") as listener:
            answer = await ask(listener.path, f"CONNECT 127.0.0.1:{port} HTTP/1.0\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
    assert b"Connection refused" in answer


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: -1\r\n",
        b"Content-Length: 1_0\r\n",
        b"Transfer-Encoding: gzip\r\n",
        b"Transfer-Encoding: chunked, chunked\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"Host: b\r\n",
        b"X\0: 1\r\n",
    ],
)
async def test_a_head_that_could_be_read_in_two_ways_is_refused(
    folder: Path, framing: bytes, connects: list[Any]
) -> None:
    async with door(folder, "127.0.0.1:1") as listener:
        head = b"POST http://127.0.0.1:1/ HTTP/1.1\r\nHost: a\r\n" + framing + b"\r\n"
        assert b"403 Forbidden" in await ask(listener.path, head)
        assert (listener.refused, connects) == (1, [])


# Bounds


@pytest.mark.parametrize("over", [-1, 0, 1])
async def test_a_head_is_bounded(folder: Path, over: int) -> None:
    server = Recorder(b"\r\n\r\n")
    async with through(folder, server) as (agent, port, listener):
        head = f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: a\r\nX: \r\n\r\n".encode()
        filled = head.replace(b"X: ", b"X: " + b"x" * (MAX_HEAD - len(head) + over))
        assert len(filled) == MAX_HEAD + over
        await agent.send_all(filled)
        answer = await agent.receive_some()
        assert (b" 200 " in answer, b" 403 " in answer) == ((False, True) if over > 0 else (True, False))
        assert listener.refused == (over > 0)


async def test_connections_are_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HAZARDS F25. N, N+1, and N again."""
    monkeypatch.setattr(model, "MAX_CONNECTIONS", 2)
    assert MAX_CONNECTIONS == 64
    async with upstream(Recorder(b"never")) as port, door(folder, f"127.0.0.1:{port}") as listener:

        async def is_taken(stack: list[trio.SocketStream]) -> bool:
            stack.append(await trio.open_unix_socket(str(listener.path)))
            await stack[-1].send_all(f"CONNECT 127.0.0.1:{port} HTTP/1.0\r\n\r\n".encode())
            return b" 200 " in await stack[-1].receive_some()

        streams: list[trio.SocketStream] = []
        assert [await is_taken(streams) for _ in range(3)] == [True, True, False]
        await streams[0].aclose()
        with trio.fail_after(SECONDS):
            while not await is_taken(streams):
                await streams[-1].aclose()
        for stream in streams:
            await stream.aclose()


class Memory:
    """A listener that is given memory streams, on a clock that jumps."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, host: str = "a:1") -> None:
        self.listener = ModelDoor([host]).open(folder, "the-session")
        self.upstream: trio.StapledStream[Any, Any] | None = None
        monkeypatch.setattr(trio, "open_tcp_stream", self._connect)
        monkeypatch.setattr(model, "_is_here", lambda stream: False)
        self._patch = monkeypatch

    async def _connect(self, host: str, port: int) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        ours, self.upstream = memory_stream_pair()
        return ours

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[Any]:
        agent, ours = memory_stream_pair()
        stream: Any = ours
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.listener._handle, stream)
            yield agent
            await agent.aclose()
        self.listener.close()


async def test_a_head_that_does_not_come_is_not_waited_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async with Memory(folder, monkeypatch).agent() as agent:
        await agent.send_all(b"CONNECT a:1 HTTP/1.0\r\n")
        assert (await read_all(agent)).startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        assert trio.current_time() == pytest.approx(HEAD_SECONDS)


async def test_a_host_that_does_not_answer_is_not_waited_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    memory = Memory(folder, monkeypatch)

    async def hang(host: str, port: int) -> trio.abc.Stream:
        await trio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(trio, "open_tcp_stream", hang)
    async with memory.agent() as agent:
        await agent.send_all(b"CONNECT a:1 HTTP/1.0\r\n\r\n")
        assert (await read_all(agent)).startswith(b"HTTP/1.1 504 Gateway Timeout\r\n")
        assert trio.current_time() == pytest.approx(CONNECT_SECONDS)


@pytest.mark.parametrize("request_head", [b"CONNECT a:1 HTTP/1.0\r\n\r\n", b"GET http://a:1/ HTTP/1.0\r\n\r\n"])
async def test_a_model_may_think_and_a_connection_that_is_forgotten_ends(
    folder: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock, request_head: bytes
) -> None:
    memory = Memory(folder, monkeypatch)
    answer = b"HTTP/1.0 200 OK\r\n\r\n"
    async with memory.agent() as agent:
        await agent.send_all(request_head)
        await trio.testing.wait_all_tasks_blocked()
        assert memory.upstream is not None
        for _ in range(3):
            await trio.sleep(IDLE_SECONDS - 1)
            await memory.upstream.send_all(answer)
            answer = b"."
        begun = trio.current_time()
        assert (await read_all(agent)).endswith(b"..")
        assert trio.current_time() - begun == pytest.approx(IDLE_SECONDS)


async def test_an_agent_that_is_slow_to_close_is_closed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    memory = Memory(folder, monkeypatch)
    async with memory.agent() as agent:
        await agent.send_all(b"CONNECT a:1 HTTP/1.0\r\n\r\n")
        await trio.testing.wait_all_tasks_blocked()
        assert memory.upstream is not None
        await memory.upstream.send_eof()
        assert await read_all(agent) == ESTABLISHED
        await agent.send_all(b"x")
        await trio.sleep(LINGER_SECONDS - 1)
        await agent.send_all(b"x")
        await trio.sleep(LINGER_SECONDS + 1)
        with pytest.raises(trio.BrokenResourceError):
            await agent.send_all(b"x")


# Containment


async def test_an_error_of_one_connection_is_not_the_doors(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def crash(*arguments: object) -> None:
        raise RuntimeError("a bug")

    async with door(folder) as listener:
        with monkeypatch.context() as patch:
            patch.setattr(model, "wanted_untrusted", crash)
            assert await ask(listener.path, b"CONNECT a:1 HTTP/1.0\r\n\r\n") == b""
        assert b" 403 " in await ask(listener.path, b"CONNECT a:1 HTTP/1.0\r\n\r\n")
    assert "a connection to a model failed" in caplog.text


async def test_an_agent_that_connects_and_goes_is_nothing_to_tell(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with door(folder) as listener:
        assert await ask_and_end(listener.path, b"") == b""
        await (await trio.open_unix_socket(str(listener.path))).aclose()
        assert listener.refused == 0
    assert not caplog.records


async def ask_and_end(path: Path, data: bytes) -> bytes:
    async with await trio.open_unix_socket(str(path)) as agent:
        await agent.send_all(data)
        await agent.send_eof()
        return await read_all(agent)


async def test_the_end_of_the_session_ends_its_connections(folder: Path) -> None:
    server = Recorder(b"never")
    async with upstream(server) as port:
        async with door(folder, f"127.0.0.1:{port}") as listener:
            assert stat.S_IMODE(listener.path.stat().st_mode) == 0o600
            agent = await trio.open_unix_socket(str(listener.path))
            await agent.send_all(f"CONNECT 127.0.0.1:{port} HTTP/1.0\r\n\r\n".encode())
            assert await agent.receive_some() == ESTABLISHED
        assert not listener.path.exists()
        with trio.fail_after(SECONDS):
            await send_until_broken(agent, b"x")
        await agent.aclose()
        listener.close()


def test_a_socket_that_cannot_be_opened_is_an_error(folder: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        ModelDoor([]).open(folder / "missing", "the-session")
