"""What the door to models carries: bytes as they are, or one exchange of HTTP (HAZARDS T19, G9)."""

from __future__ import annotations

import socket
from pathlib import Path

import h11
import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from oubliette.link.carrying import CHUNK, AgentGoneError, End, Exchange, Idle, UpstreamGoneError, tunnel
from oubliette.link.proxy import wanted_untrusted
from tests.helpers.model_door import ESTABLISHED, OK, Recorder, read_all, read_until, send_until_broken, through

# A tunnel


async def test_a_tunnel_carries_bytes_as_they_are(folder: Path) -> None:
    async def echo(stream: trio.SocketStream) -> None:
        async for chunk in stream:
            await stream.send_all(chunk)
        await stream.send_all(b"the end")
        await stream.send_eof()

    every_byte = bytes(range(256)) * 4096
    async with through(folder, echo) as (agent, port, listener):
        await agent.send_all(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: x\r\n\r\nearly".encode())
        assert await read_until(agent, b"early") == ESTABLISHED + b"early"
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                await agent.send_all(every_byte)
                await agent.send_eof()

            nursery.start_soon(send)
            assert await read_all(agent) == every_byte + b"the end"
        assert listener.refused == 0


async def test_an_upstream_may_end_first(folder: Path) -> None:
    async def end_first(stream: trio.SocketStream) -> None:
        await stream.send_all(b"bye")
        await stream.send_eof()
        heard.append(await read_all(stream))
        done.set()

    heard: list[bytes] = []
    done = trio.Event()
    async with through(folder, end_first) as (agent, port, _):
        await agent.send_all(f"CONNECT 127.0.0.1:{port} HTTP/1.0\r\n\r\n".encode())
        assert await read_all(agent) == ESTABLISHED + b"bye"
        await agent.send_all(b"one thing more")
        await agent.send_eof()
        await done.wait()
    assert heard == [b"one thing more"]


async def test_an_agent_that_goes_ends_its_connection(folder: Path) -> None:
    """A model that nobody hears must not go on speaking."""

    async def speak(stream: trio.SocketStream) -> None:
        await send_until_broken(stream, bytes(CHUNK))
        ended.set()

    ended = trio.Event()
    async with through(folder, speak) as (agent, port, _):
        await agent.send_all(f"CONNECT 127.0.0.1:{port} HTTP/1.0\r\n\r\n".encode())
        await agent.receive_some(len(ESTABLISHED))
        await agent.aclose()
        await ended.wait()


async def test_what_an_upstream_said_before_it_broke_arrives(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def break_off(stream: trio.SocketStream) -> None:
        await stream.send_all(b"too much")
        await stream.receive_some(1)
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        await stream.aclose()

    async with through(folder, break_off) as (agent, port, _):
        await agent.send_all(f"CONNECT 127.0.0.1:{port} HTTP/1.0\r\n\r\n".encode())
        assert await read_until(agent, b"too much")
        await agent.send_all(b"more")
        await send_until_broken(agent, b"and more")
    assert not caplog.records


async def test_an_upstream_that_takes_no_more_may_still_say_why(autojump_clock: MockClock) -> None:
    (agent, ours), (outer, upstream) = memory_stream_pair(), memory_stream_pair()
    idle = Idle()
    ends = End(ours, idle, AgentGoneError), End(outer, idle, UpstreamGoneError)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tunnel, *ends, idle, b"early")
        assert await upstream.receive_some() == b"early"
        upstream.receive_stream.close()
        await agent.send_all(b"more")
        await trio.testing.wait_all_tasks_blocked()
        await upstream.send_all(b"too much")
        await upstream.send_eof()
        assert await read_all(agent) == b"too much"


async def test_an_exchange_leaves_its_upstream_open_while_the_agent_waits(autojump_clock: MockClock) -> None:
    """A server may take the end of a connection for that of its caller."""
    (agent, ours), (outer, upstream) = memory_stream_pair(), memory_stream_pair()
    idle = Idle()
    protocol = h11.Connection(h11.SERVER)
    protocol.receive_data(b"GET http://a/ HTTP/1.0\r\n\r\n")
    request = protocol.next_event()
    assert isinstance(request, h11.Request)
    head = wanted_untrusted(request).head
    assert head is not None
    exchange = Exchange(protocol, End(ours, idle, AgentGoneError), End(outer, idle, UpstreamGoneError))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange.run, head)
        assert await upstream.receive_some()
        with trio.move_on_after(1) as quiet:
            await upstream.receive_some()
        assert quiet.cancelled_caught
        await upstream.send_all(OK)
        assert await read_until(agent, b"ok")


async def test_who_does_not_read_is_not_read_from(folder: Path) -> None:
    """HAZARDS G9: a direction holds one read, and the kernel what it holds."""

    async def speak(stream: trio.SocketStream) -> None:
        while True:
            await stream.send_all(bytes(CHUNK))
            sent.append(CHUNK)
            progress.set()

    sent: list[int] = []
    progress = trio.Event()
    async with through(folder, speak) as (agent, port, _):
        await agent.send_all(f"CONNECT 127.0.0.1:{port} HTTP/1.0\r\n\r\n".encode())
        await agent.receive_some(len(ESTABLISHED))
        stalled = False
        while not stalled:
            progress = trio.Event()
            with trio.move_on_after(0.2) as quiet:
                await progress.wait()
            stalled = quiet.cancelled_caught
        assert sum(sent) < 16 * 1024 * 1024
        before = len(sent)
        while len(sent) == before:
            await agent.receive_some()


# One exchange


async def test_a_request_goes_on_in_origin_form(folder: Path) -> None:
    server = Recorder(b"body")
    head = "POST http://127.0.0.1:{}/v1?a=b HTTP/1.1\r\nHost: evil\r\n{}\r\nbody"
    own = "Authorization: Bearer sk-key\r\nContent-Length: 4\r\n"
    async with through(folder, server) as (agent, port, _):
        await agent.send_all(head.format(port, f"Proxy-Connection: keep-alive\r\n{own}").encode())
        answer = await read_all(agent)
        expected = f"POST /v1?a=b HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{own}Connection: close\r\n\r\nbody"
    # HAZARDS T19: what came goes on, and nothing is added but that this is all.
    assert server.heard == [expected.encode()]
    assert answer == b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"


async def test_chunks_go_on_as_chunks(folder: Path) -> None:
    answer = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n3\r\none\r\n0\r\n\r\n"
    )
    server = Recorder(b"0\r\n\r\n", answer)
    async with through(folder, server) as (agent, port, _):
        head = f"POST http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        await agent.send_all(head + b"3\r\none\r\n3\r\ntwo\r\n0\r\nX-Trailer: 1\r\n\r\n")
        got = await read_all(agent)
    assert got.endswith(b"\r\n\r\n3\r\none\r\n0\r\n\r\n")
    assert server.heard[0].endswith(b"\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")


async def test_an_agent_of_http_1_0_gets_no_chunks(folder: Path) -> None:
    server = Recorder(b"\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n0\r\n\r\n")
    async with through(folder, server) as (agent, port, _):
        await agent.send_all(f"GET http://127.0.0.1:{port}/ HTTP/1.0\r\n\r\n".encode())
        got = await read_all(agent)
    assert b"chunked" not in got
    assert got.endswith(b"\r\n\r\none")


async def test_an_agent_that_waits_to_be_asked_for_its_body_is(folder: Path) -> None:
    async def ask_for_it(stream: trio.SocketStream) -> None:
        await read_until(stream, b"\r\n\r\n")
        await stream.send_all(b"HTTP/1.1 100 Continue\r\n\r\n")
        await read_until(stream, b"body")
        await stream.send_all(OK)

    async with through(folder, ask_for_it) as (agent, port, _):
        head = f"POST http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
        await agent.send_all(head.encode())
        await read_until(agent, b"100 Continue\r\n\r\n")
        await agent.send_all(b"body")
        assert (await read_all(agent)).endswith(b"ok")


async def test_an_agent_of_http_1_0_is_told_nothing_in_between(folder: Path) -> None:
    """RFC 9110, section 15.2."""
    server = Recorder(b"\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\n\r\n" + OK)
    async with through(folder, server) as (agent, port, _):
        await agent.send_all(f"GET http://127.0.0.1:{port}/ HTTP/1.0\r\n\r\n".encode())
        got = await read_all(agent)
    assert got.startswith(b"HTTP/1.1 200 OK\r\n")


async def test_an_upstream_sees_that_its_agent_has_ended(folder: Path) -> None:
    """Most agents that end have gone: a model that is told of it need not think on."""

    async def wait(stream: trio.SocketStream) -> None:
        heard = await read_all(stream)
        await stream.send_all(b"HTTP/1.0 200 OK\r\n\r\n" + heard)
        await stream.aclose()

    async with through(folder, wait) as (agent, port, _):
        await agent.send_all(f"POST http://127.0.0.1:{port}/ HTTP/1.0\r\nContent-Length: 4\r\n\r\nbody".encode())
        await agent.send_eof()
        assert (await read_all(agent)).endswith(b"\r\n\r\nbody")


@pytest.mark.parametrize("later", [True, False])
async def test_a_second_request_goes_nowhere(folder: Path, later: bool) -> None:
    """It might be for another host, and its key with it."""
    server = Recorder(b"\r\n\r\n")
    async with through(folder, server) as (agent, port, listener):
        first = f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\n\r\n".encode()
        second = b"GET http://other.example/ HTTP/1.1\r\nHost: other.example\r\nAuthorization: Bearer key\r\n\r\n"
        await agent.send_all(first if later else first + second)
        got = await read_until(agent, b"ok")
        if later:
            await send_until_broken(agent, second)
        assert b"Connection: close" in got
        assert listener.refused == 0
    assert len(server.heard) == 1
    assert b"other.example" not in server.heard[0]


SMUGGLED = b"GET http://other.example/ HTTP/1.1\r\nHost: other.example\r\n\r\n"


@pytest.mark.parametrize(
    ("framing", "body"),
    [
        (b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"),
        (b"Transfer-Encoding: chunked\r\nConnection: transfer-encoding\r\n", b"0\r\n\r\n"),
        (b"Content-Length: 0\r\nConnection: content-length\r\n", b""),
        (b"", b""),
    ],
)
async def test_nothing_is_smuggled_behind_a_body(folder: Path, framing: bytes, body: bytes) -> None:
    server = Recorder(body or b"\r\n\r\n")
    async with through(folder, server) as (agent, port, _):
        head = f"POST http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: a\r\n".encode()
        await agent.send_all(head + framing + b"\r\n" + body + SMUGGLED)
        await read_until(agent, b"ok")
    assert b"other.example" not in server.heard[0]


@pytest.mark.parametrize("body", [b"5\r\nab", b"zz\r\n", b"-1\r\n"])
async def test_a_body_that_is_not_what_its_head_said_ends_the_connection(folder: Path, body: bytes) -> None:
    server = Recorder(b"never")
    async with through(folder, server) as (agent, port, _):
        head = f"POST http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        await agent.send_all(head + body)
        await agent.send_eof()
        assert await read_all(agent) == b""


@pytest.mark.parametrize("said", [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"])
async def test_an_upstream_that_speaks_no_http_is_told_in_words(folder: Path, said: bytes) -> None:
    async def say(stream: trio.SocketStream) -> None:
        await read_until(stream, b"\r\n\r\n")
        await stream.send_all(said)
        await stream.aclose()

    async with through(folder, say) as (agent, port, _):
        await agent.send_all(f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        assert (await read_all(agent)).startswith(b"HTTP/1.1 502 Bad Gateway\r\n")


async def test_a_response_that_breaks_off_breaks_off(folder: Path) -> None:
    async def half(stream: trio.SocketStream) -> None:
        await read_until(stream, b"\r\n\r\n")
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
        await stream.aclose()

    async with through(folder, half) as (agent, port, _):
        await agent.send_all(f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        got = await read_all(agent)
    assert got.endswith(b"half")
    assert b"Content-Length: 9" in got


async def test_an_early_refusal_of_the_upstream_arrives(folder: Path) -> None:
    """413 while the body is still under way, as servers send it."""

    async def refuse(stream: trio.SocketStream) -> None:
        await read_until(stream, b"\r\n\r\n")
        await stream.send_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await stream.aclose()

    async with through(folder, refuse) as (agent, port, _):
        head = f"POST http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n".encode()
        await agent.send_all(head)
        assert (await read_all(agent)).startswith(b"HTTP/1.1 413 Too Large\r\n")
