"""What holds for every input at the door to models: nothing is raised, nobody else is connected to (HAZARDS T23)."""

from __future__ import annotations

import tempfile
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import h11
import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, memory_stream_pair

from oubliette.link import model
from oubliette.link.addresses import parse
from oubliette.link.model import ModelDoor

# Examples are not kept between runs, and a busy machine is no failure.
few: Final = settings(deadline=None, database=None, max_examples=100)
ALLOWED: Final = ("model.example:80", "127.0.0.1:8000", "[::1]:443")
HOSTS: Final = st.sampled_from(
    ["model.example", "MODEL.example.", "127.0.0.1", "[::1]", "127.1", "evil.example", "model.example@evil.example", ""]
)
PORTS: Final = st.sampled_from([":80", ":8000", ":443", "", ":0", ":080", ":99999"])
# Most of what is made is nearly right: what is refused for its first byte tells little.
AUTHORITIES: Final = st.sampled_from(ALLOWED) | st.builds(str.__add__, HOSTS, PORTS)
TARGETS: Final = (
    AUTHORITIES
    | AUTHORITIES.map("http://{}/v1?a".format)
    | st.sampled_from(ALLOWED).map("http://{}".format)
    | AUTHORITIES.map("https://{}/".format)
    | AUTHORITIES.map("http://evil.example/http://{}/".format)
    | st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20)
)
METHODS: Final = st.sampled_from(["CONNECT", "GET", "POST", "HEAD", "OPTIONS", "connect"])
NAMES: Final = st.sampled_from(
    ["Connection"] * 3 + ["Expect", "Upgrade", "X", "Host", "Content-Length", "Transfer-Encoding", "Host ", "", "X\0"]
)
VALUES: Final = st.sampled_from(
    [
        "evil.example",
        "0",
        "5",
        "5, 5",
        "chunked",
        "gzip",
        "close, host, content-length",
        "100-continue",
        "websocket",
        "\t",
    ]
)
HEADERS: Final = st.builds(
    lambda first, *more: first + "".join(more),
    st.sampled_from(["Host: a\r\n"] * 4 + [""]),
    st.sampled_from(["", "Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n"]),
    st.lists(st.builds("{}: {}\r\n".format, NAMES, VALUES), max_size=2).map("".join),
)
BODIES: Final = st.sampled_from(
    [
        b"",
        b"12345",
        b"0\r\n\r\n",
        b"5\r\n12345\r\n0\r\n\r\n",
        b"5\r\n1",
        b"zz\r\n",
        b"GET http://evil.example/ HTTP/1.0\r\n\r\n",
    ]
)
VERSIONS: Final = st.sampled_from(["HTTP/1.1"] * 4 + ["HTTP/1.0", "HTTP/2.0"])
HEADS: Final = st.builds("{} {} {}\r\n{}\r\n".format, METHODS, TARGETS, VERSIONS, HEADERS).map(str.encode)
REQUESTS: Final = st.builds(lambda *parts: b"".join(parts), HEADS, BODIES, BODIES) | st.binary(max_size=100)
RESPONSES: Final = st.sampled_from(
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nto the end",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n2\r\nok\r\n0\r\nX: y\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2, 3\r\n\r\n",
        b"HTTP/1.1 999\r\n\r\n",
    ]
) | st.binary(max_size=60)


class World:
    """One door, one agent that sends and ends, and servers that answer the same whoever they are."""

    def __init__(self, response: bytes) -> None:
        self.response = response
        self.asked: list[tuple[str, int]] = []
        self.heard: list[bytes] = []
        self.failures: list[str] = []
        self.answer = b""

    async def connect(self, host: str, port: int) -> Any:
        await trio.lowlevel.checkpoint()
        self.asked.append((host, port))
        ours, theirs = memory_stream_pair()
        self._nursery.start_soon(self._serve, theirs)
        return ours

    async def _serve(self, stream: trio.StapledStream[Any, Any]) -> None:
        with suppress(trio.BrokenResourceError):
            self.heard.append(bytes(await stream.receive_some()))
            await stream.send_all(self.response)
            await stream.send_eof()

    async def run(self, folder: Path, request: bytes, cut: int) -> None:
        listener = ModelDoor(ALLOWED).open(folder, "the-session")
        agent, ours = memory_stream_pair()
        stream: Any = ours
        with closing(listener):
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(listener._handle, stream)
                self._nursery.start_soon(self._speak, agent, request, cut)
                async for chunk in agent:
                    self.answer += chunk
                self._nursery.cancel_scope.cancel()

    async def _speak(self, agent: trio.StapledStream[Any, Any], request: bytes, cut: int) -> None:
        with suppress(trio.BrokenResourceError):
            for start in range(0, len(request), cut):
                await agent.send_all(request[start : start + cut])
            await agent.send_eof()


def meet(request: bytes, response: bytes, cut: int) -> World:
    world = World(response)
    with tempfile.TemporaryDirectory(prefix="oub-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(trio, "open_tcp_stream", world.connect)
        patch.setattr(model, "_is_here", lambda stream: False)
        patch.setattr(model.log, "exception", lambda event, **fields: world.failures.append(event))
        trio.run(world.run, Path(folder), request, cut, clock=MockClock(autojump_threshold=0))
    return world


@few
@given(REQUESTS, RESPONSES, st.sampled_from([1, 7, 65536]))
@example(b"POST http://127.0.0.1:8000/ HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n12345", b"", 7)
@example(
    b"GET http://[::1]:443/ HTTP/1.0\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 1
)
def test_whatever_an_agent_sends_only_what_is_allowed_hears_of_it(request: bytes, response: bytes, cut: int) -> None:
    world = meet(request, response, cut)
    assert not world.failures
    assert set(world.asked) <= {tuple(parse(host)) for host in ALLOWED}
    assert len(world.asked) <= 1
    if world.answer:
        assert world.answer.startswith(b"HTTP/1.1 ")
        assert (b"runtime.model_hosts" in world.answer) <= (not world.asked)
    if not request.startswith(b"CONNECT ") and world.heard and world.heard[0]:
        is_host_of_upstream(world.heard[0], world.asked[0])


def is_host_of_upstream(heard: bytes, asked: tuple[str, int]) -> None:
    """Asserts that what an upstream was sent is one request, and for it."""
    server = h11.Connection(h11.SERVER)
    server.receive_data(heard)
    request = server.next_event()
    assert isinstance(request, h11.Request)
    hosts = [value.decode() for name, value in request.headers if name == b"host"]
    assert [tuple(parse(host, 80)) for host in hosts] == [asked]
    assert request.target.startswith(b"/")
    assert (b"connection", b"close") in list(request.headers)


@few
@given(st.text(max_size=40) | AUTHORITIES)
def test_whatever_a_text_is_it_is_an_address_or_refused(text: str) -> None:
    try:
        address = parse(text)
    except ValueError:
        return
    assert str(address).isascii()
    assert parse(str(address)) == address
