"""The ports of a sandbox: what comes through one goes to the daemon's socket, byte for byte, and back.

The loop is turned by hand, so that every step is the test's own.
"""

from __future__ import annotations

import selectors
import socket
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from oubliette_client import carry
from oubliette_client.carry import CHUNK_BYTES, LINGER_SECONDS, MAX_CONNECTIONS, Carrier

from oubliette.link.model import MAX_CONNECTIONS as MAX_OF_DAEMON

GRANTED = b"HTTP/1.1 200 Connection established\r\n\r\n"
SECONDS = 10  # ends a test that hangs


class Loop:
    """A carrier on its loop, with the daemon's socket and the agents as the test plays them."""

    def __init__(self, folder: Path) -> None:
        self.selector = selectors.DefaultSelector()
        self.path = folder / "model.sock"
        self.carrier = Carrier(self.selector, str(self.path))
        self.daemon = socket.socket(socket.AF_UNIX)
        self.daemon.bind(str(self.path))
        self.daemon.listen()
        self._ends: list[socket.socket] = [self.daemon]

    @property
    def ports(self) -> list[tuple[str, int]]:
        """The open ports, in the order in which they were opened."""
        found = [key.fileobj for key in self.selector.get_map().values() if key.data is None]
        return [listening.getsockname()[:2] for listening in found if isinstance(listening, socket.socket)]

    def turn(self) -> None:
        """Turns until nothing is ready."""
        self.carrier.patience()
        while ready := self.selector.select(0):
            for key, _ in ready:
                self.carrier.serve(key)

    def connect(self, port: int = 0) -> socket.socket:
        """Returns an agent's connection to one of the ports."""
        agent = socket.create_connection(self.ports[port], timeout=SECONDS)
        self._ends.append(agent)
        self.turn()
        return agent

    def accept(self) -> socket.socket:
        """Returns the daemon's end of the next connection."""
        self.daemon.settimeout(SECONDS)
        model, _ = self.daemon.accept()
        model.settimeout(SECONDS)
        self._ends.append(model)
        return model

    def pair(self) -> tuple[socket.socket, socket.socket]:
        return self.connect(), self.accept()

    def is_silent(self, end: socket.socket) -> bool:
        """Says whether there is nothing to read at an end."""
        self.turn()
        end.setblocking(False)
        try:
            end.recv(1)
        except BlockingIOError:
            return True
        finally:
            end.settimeout(SECONDS)
        return False

    def receive(self, end: socket.socket, size: int) -> bytes:
        """Returns so many bytes, or those until the end."""
        data = b""
        while len(data) < size:
            self.turn()
            chunk = end.recv(size - len(data))
            if not chunk:
                break
            data += chunk
        return data

    def close(self) -> None:
        for connection in list(self.carrier._connections):
            connection.close()
        for end in (*self._ends, *self.carrier._ports):
            end.close()
        self.selector.close()


@pytest.fixture
def loop() -> Iterator[Loop]:
    with tempfile.TemporaryDirectory(prefix="oub-") as folder:
        loop = Loop(Path(folder))
        yield loop
        loop.close()


def test_what_comes_through_the_proxy_goes_to_the_daemon_as_it_is(loop: Loop) -> None:
    loop.carrier.open_proxy(0)
    agent, model = loop.pair()
    agent.sendall(b"CONNECT a:1 HTTP/1.1\r\n\r\n")
    assert loop.receive(model, 24) == b"CONNECT a:1 HTTP/1.1\r\n\r\n"
    model.sendall(GRANTED)
    assert loop.receive(agent, len(GRANTED)) == GRANTED


def test_each_end_is_carried_as_such(loop: Loop) -> None:
    loop.carrier.open_proxy(0)
    agent, model = loop.pair()
    agent.sendall(b"all")
    agent.shutdown(socket.SHUT_WR)
    assert loop.receive(model, 99) == b"all"
    assert loop.is_silent(agent)
    model.sendall(b"answer")
    model.shutdown(socket.SHUT_WR)
    assert loop.receive(agent, 99) == b"answer"
    assert not loop.carrier._connections


def test_every_byte_arrives_in_its_order_however_slowly_it_is_read(loop: Loop) -> None:
    loop.carrier.open_proxy(0)
    agent, model = loop.pair()
    agent.setblocking(False)
    model.setblocking(False)
    data = rest = bytes(range(256)) * 16384
    found = b""
    while len(found) < len(data):
        with suppress(BlockingIOError):
            rest = rest[agent.send(rest[:100_000]) :] if rest else rest
        loop.turn()
        with suppress(BlockingIOError):
            found += model.recv(30_001)
    assert found == data


def test_who_does_not_read_is_not_read_from(loop: Loop) -> None:
    """HAZARDS G9: what is held is the kernel's, and one read of ours."""
    loop.carrier.open_proxy(0)
    agent, model = loop.pair()
    agent.setblocking(False)
    sent = 0
    try:
        while sent < 64 * 1024 * 1024:
            sent += agent.send(bytes(CHUNK_BYTES))
            loop.turn()
    except BlockingIOError:
        loop.turn()
    [connection] = loop.carrier._connections
    assert len(connection._out._waiting) <= CHUNK_BYTES
    assert sent < 64 * 1024 * 1024
    agent.settimeout(SECONDS)
    assert loop.receive(model, sent) == bytes(sent)


# A base URL


@pytest.mark.parametrize("cuts", [[0], [1], [20], [37, 39], [38], [45]])
def test_a_forward_is_asked_for_and_its_head_kept(loop: Loop, cuts: list[int]) -> None:
    loop.carrier.open_forward("127.0.0.1", _free_port())
    port = loop.ports[0][1]
    agent, model = loop.pair()
    asked = f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
    agent.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert loop.receive(model, len(asked) + 18) == asked + b"GET / HTTP/1.1\r\n\r\n"
    answer = GRANTED + b"HTTP/1.1 200 OK\r\n\r\nhello"
    for start, end in zip([0, *cuts], [*cuts, len(answer)], strict=True):
        model.sendall(answer[start:end])
        loop.turn()
    assert loop.receive(agent, 24) == b"HTTP/1.1 200 OK\r\n\r\nhello"


@pytest.mark.parametrize("answer", [b"HTTP/1.1 403 Forbidden\r\n\r\nwhy", b"HTTP/1.1 403", b"x" * CHUNK_BYTES])
def test_a_refused_forward_is_told_to_the_agent(loop: Loop, answer: bytes) -> None:
    loop.carrier.open_forward("127.0.0.1", _free_port())
    agent, model = loop.pair()
    model.sendall(answer)
    model.close()
    assert loop.receive(agent, len(answer) + 1) == answer


@pytest.mark.parametrize(
    ("host", "opened"),
    [
        ("127.0.0.1", {"127.0.0.1"}),
        ("127.9.9.9", {"127.9.9.9"}),
        ("localhost", {"127.0.0.1", "::1"}),
        ("LOCALHOST.", {"127.0.0.1", "::1"}),
        ("[::1]", {"::1"}),
        ("[0:0:0:0:0:0:0:1]", {"::1"}),
        ("api.example.com", set()),
        ("10.0.0.1", set()),
        ("[2001:db8::1]", set()),
        ("[::ffff:127.0.0.1]", set()),
        ("[::12]", set()),
        ("localhost.example.com", set()),
        ("127.1", set()),
    ],
)
def test_only_the_loopback_is_opened(loop: Loop, host: str, opened: set[str]) -> None:
    loop.carrier.open_forward(host, _free_port())
    assert {address for address, _ in loop.ports} == opened & _bindable()


def _bindable() -> set[str]:
    """The addresses of the table that this machine has: not every one has IPv6."""
    found = {"127.0.0.1", "127.9.9.9"}
    with socket.socket(socket.AF_INET6) as tried:
        try:
            tried.bind(("::1", 0))
        except OSError:
            return found
    return found | {"::1"}


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
    return port


def test_a_port_that_is_taken_is_said_and_the_rest_goes_on(loop: Loop, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        loop.carrier.open_forward("127.0.0.1", port)
    loop.carrier.open_proxy(0)
    assert capfd.readouterr().err == (
        f"oubliette-launch: 127.0.0.1:{port} cannot be opened in the sandbox: Address already in use\n"
    )
    assert len(loop.ports) == 1


# What breaks


def test_a_daemon_that_is_not_there_is_told_to_the_agent(loop: Loop) -> None:
    loop.carrier.open_proxy(0)
    loop.path.unlink()
    agent = loop.connect()
    agent.sendall(b"x" * 1000)
    answer = loop.receive(agent, 10_000)
    assert answer.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
    assert b"No such file" in answer


def test_an_agent_that_is_gone_is_gone_for_the_daemon(loop: Loop) -> None:
    loop.carrier.open_proxy(0)
    agent, model = loop.pair()
    agent.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    agent.close()
    assert loop.receive(model, 1) == b""
    with pytest.raises(BrokenPipeError):
        model.sendall(b"nobody hears this")
    assert not loop.carrier._connections


def test_a_model_that_speaks_to_an_agent_that_is_gone_is_told(loop: Loop) -> None:
    loop.carrier.open_proxy(0)
    agent, model = loop.pair()
    agent.close()
    loop.turn()
    with pytest.raises((BrokenPipeError, ConnectionResetError)):  # noqa: PT012  # the kernel takes the first bytes
        for _ in range(1000):
            model.sendall(bytes(CHUNK_BYTES))
            loop.turn()
    assert not loop.carrier._connections


def test_an_answer_that_comes_before_the_request_has_ended_is_not_lost(loop: Loop) -> None:
    """The daemon closes with the request unread; the agent goes on to send, and reads why."""
    loop.carrier.open_proxy(0)
    agent, model = loop.pair()
    agent.sendall(bytes(CHUNK_BYTES))
    loop.turn()
    model.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")
    model.close()
    for _ in range(50):
        agent.sendall(bytes(CHUNK_BYTES))
        loop.turn()
    assert loop.receive(agent, 99) == b"HTTP/1.1 403 Forbidden\r\n\r\n"
    assert len(loop.carrier._connections) == 1
    agent.shutdown(socket.SHUT_WR)
    loop.turn()
    assert not loop.carrier._connections


def test_an_agent_that_does_not_end_after_its_daemon_is_closed(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("oubliette_client.carry.time.monotonic", lambda: now)
    loop.carrier.open_proxy(0)
    agent, model = loop.pair()
    other = loop.pair()
    assert loop.carrier.patience() is None
    model.close()
    assert loop.receive(agent, 1) == b""
    assert loop.carrier.patience() == LINGER_SECONDS
    now += LINGER_SECONDS
    assert loop.carrier.patience() is None
    assert len(loop.carrier._connections) == 1
    other[0].sendall(b"still here")
    assert loop.receive(other[1], 10) == b"still here"


def test_connections_are_bounded_and_more_wait(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """HAZARDS F25: N, N+1, and N again."""
    assert MAX_CONNECTIONS == MAX_OF_DAEMON
    monkeypatch.setattr(carry, "MAX_CONNECTIONS", 2)
    loop.carrier.open_proxy(0)
    loop.carrier.open_proxy(0)
    ports = loop.ports
    agents = [socket.create_connection(ports[number % 2], timeout=SECONDS) for number in range(4)]
    loop.turn()
    models = [loop.accept(), loop.accept()]
    assert len(loop.carrier._connections) == 2
    assert loop.ports == []
    for agent in agents:
        agent.sendall(b"x")
    loop.turn()
    for model in models:
        model.close()
    for agent in agents:
        agent.shutdown(socket.SHUT_WR)
    loop.turn()
    assert [loop.receive(loop.accept(), 1) for _ in range(2)] == [b"x", b"x"]
    for agent in agents:
        agent.close()


def test_a_system_without_descriptors_is_left_alone_for_a_moment(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    class Exhausted(socket.socket):
        def accept(self) -> tuple[socket.socket, object]:
            raise OSError(24, "Too many open files")

    monkeypatch.setattr("oubliette_client.carry.time.sleep", slept.append)
    with Exhausted() as listening:
        loop.carrier._accept(listening)
    assert slept == [carry._EXHAUSTED_SECONDS]
    assert not loop.carrier._connections


def test_an_agent_whose_way_on_cannot_be_made_is_let_go(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> socket.socket:
        raise OSError(24, "Too many open files")

    loop.carrier.open_proxy(0)
    with monkeypatch.context() as patch:
        patch.setattr(loop.carrier, "_reach_daemon", refuse)
        assert loop.receive(loop.connect(), 1) == b""
    assert not loop.carrier._connections
    agent, model = loop.pair()
    agent.sendall(b"x")
    assert loop.receive(model, 1) == b"x"


def test_an_error_of_one_connection_is_not_the_sandboxs(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def crash(way: object) -> None:
        raise RuntimeError("a bug")

    loop.carrier.open_proxy(0)
    other = loop.pair()
    with monkeypatch.context() as patch:
        patch.setattr(carry.Way, "read", crash)
        agent, _ = loop.pair()
        agent.sendall(b"x")
        with pytest.raises(ConnectionResetError):
            loop.receive(agent, 1)
    assert capfd.readouterr().err == "oubliette-launch: a connection failed: RuntimeError('a bug')\n"
    other[0].sendall(b"still here")
    assert loop.receive(other[1], 10) == b"still here"
