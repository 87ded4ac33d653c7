"""The link under the client: what ends it, what that means for calls, how it comes back (WIRE section 1)."""

from __future__ import annotations

import errno
import socket
import tempfile
from itertools import pairwise

import pytest
import trio
from oubliette_client.link import LOST, NOT_CONNECTED, Answer, Connection, Pauses, SocketUnavailableError, open_socket
from oubliette_client.run import serve
from oubliette_client.streams import MAX_LINE_BYTES
from oubliette_client.tools import ToolSet
from trio.testing import MockClock, memory_stream_pair

from tests.unit.client.harness import Agent, Daemon, client, ready_client, text_of

REFUSED = OSError(errno.ECONNREFUSED, "Connection refused")


async def test_calls_that_wait_fail_at_once_when_the_daemon_dies(autojump_clock: MockClock) -> None:
    """HAZARDS F14."""
    async with ready_client("send") as (agent, link, _):
        for id in range(20):
            await agent.call(id, "ant_send")
        for _ in range(20):
            await link.receive()
        died = trio.current_time()
        await link.stream.aclose()
        answers = [await agent.receive() for _ in range(20)]
        assert trio.current_time() - died < 1
        assert {answer["id"] for answer in answers} == set(range(20))
        assert all(answer["result"]["isError"] and text_of(answer) == LOST for answer in answers)


def test_the_words_say_whether_the_tool_may_have_run() -> None:
    """HAZARDS F14: "with `outcome_unknown`"; WIRE section 3: "The message says the same in words"."""
    assert "Outcome unknown" in LOST
    assert "may or may not have run" in LOST
    assert "not sent" in NOT_CONNECTED
    assert "safe to call it again" in NOT_CONNECTED


async def test_a_call_without_a_connection_fails_at_once(autojump_clock: MockClock) -> None:
    async with ready_client("send") as (agent, link, daemon):
        daemon.refusal = REFUSED
        await link.stream.aclose()
        await trio.sleep(60)
        began = trio.current_time()
        await agent.call(1, "ant_send")
        answer = await agent.receive()
        assert trio.current_time() == began
        assert answer["result"]["isError"] is True
        assert text_of(answer) == NOT_CONNECTED


class _Dying(trio.abc.Stream):
    """A daemon that takes nothing any more, has said some last words, and has not closed yet."""

    def __init__(self, *chunks: bytes) -> None:
        self._chunks = list(chunks)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        raise trio.BrokenResourceError

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.sleep(0.1)
        if not self._chunks:
            await trio.sleep_forever()
        return self._chunks.pop(0)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_what_a_dying_daemon_answered_counts_and_the_rest_is_lost_within_1_s(autojump_clock: MockClock) -> None:
    connection = Connection(_Dying(b'{"id":1,"result":"in time"}\n'), _no_config, trio.lowlevel.checkpoint)
    answers: list[Answer] = []

    async def request() -> None:
        answers.append(await connection.request("caller_tool", "{}", _no_report))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        nursery.start_soon(request)
        nursery.start_soon(request)
    assert answers == [Answer(result='"in time"'), Answer(error=LOST, is_lost=True)]
    assert trio.current_time() < 1


def _no_config(kind: str, params: str) -> None:
    pytest.fail(f"nobody sent {kind}")


def _no_report(progress: dict[str, str]) -> None:
    pytest.fail(f"nobody reported {progress}")


async def test_a_full_backlog_is_no_connection() -> None:
    """connect(2) says EAGAIN for a unix socket, which trio takes for a connection under way."""
    with tempfile.TemporaryDirectory(prefix="oub-") as folder, socket.socket(socket.AF_UNIX) as listener:
        path = f"{folder}/s"
        listener.bind(path)
        listener.listen(0)
        first = await open_socket(path)
        with pytest.raises(OSError, match="not connected"):
            await open_socket(path)
        await first.aclose()


async def test_nothing_is_sent_twice(autojump_clock: MockClock) -> None:
    async with ready_client("send") as (agent, link, daemon):
        await agent.call(1, "ant_send")
        await link.receive()
        await link.stream.aclose()
        await agent.receive()
        assert await (await daemon.accept()).is_silent(60)


async def test_the_next_connection_serves_calls(autojump_clock: MockClock) -> None:
    async with ready_client("send") as (agent, link, daemon):
        await link.stream.aclose()
        link = await daemon.accept()
        await link.configure("send")
        await agent.call(1, "ant_send")
        await link.answer(await link.receive(), "done")
        assert text_of(await agent.receive()) == '"done"'


async def test_a_lost_link_is_tried_ever_less_often_up_to_every_5_s(autojump_clock: MockClock) -> None:
    async with ready_client("send") as (agent, link, daemon):
        daemon.refusal = REFUSED
        await link.stream.aclose()
        lost = trio.current_time()
        await trio.sleep(60)
        pauses = [after - before for before, after in pairwise([lost, *daemon.attempts[1:]])]
        ceilings = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2] + [5] * len(pauses)
        assert len(pauses) >= 15
        assert all(ceiling / 2 <= pause <= ceiling for pause, ceiling in zip(pauses, ceilings, strict=False))
        await agent.ask(1, "ping")
        assert (await agent.receive())["result"] == {}


async def test_a_daemon_that_ends_every_connection_is_asked_less_often_too(autojump_clock: MockClock) -> None:
    async with client() as (_, daemon):
        while trio.current_time() < 60:
            await (await daemon.accept()).stream.aclose()
        assert len(daemon.attempts) < 30


async def test_after_a_connection_that_held_the_first_pause_is_short(autojump_clock: MockClock) -> None:
    async with ready_client("send") as (_, link, daemon):
        for _ in range(5):
            await trio.sleep(10)
            lost = trio.current_time()
            await link.stream.aclose()
            link = await daemon.accept()
            assert trio.current_time() - lost <= 0.1


def test_pauses_have_jitter() -> None:
    assert len({Pauses(5).next() for _ in range(20)}) > 1


@pytest.mark.parametrize(
    "line",
    [
        b"x" * (MAX_LINE_BYTES + 1),
        b"no JSON",
        b"[1]",
        b'{"id":1,"result":"\xff"}',
        b'{"id":1,"result":%b%b}' % (b"[" * 128, b"]" * 128),
        b'{"id":1,"id":2,"result":1}',
    ],
    ids=["oversized", "no JSON", "no object", "no UTF-8", "too deep", "duplicate key"],
)
async def test_a_line_that_cannot_be_read_breaks_the_link(autojump_clock: MockClock, line: bytes) -> None:
    """Whose answer it was cannot be known, and that call must not wait for ever."""
    async with ready_client("send") as (agent, link, daemon):
        await agent.call(1, "ant_send")
        await link.receive()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.send, line)
            assert text_of(await agent.receive()) == LOST
            await (await daemon.accept()).configure("send")
            nursery.cancel_scope.cancel()
        assert list(await agent.tools()) == ["ant_send"]


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":99,"result":1}',
        b'{"jsonrpc":"2.0","id":null,"result":1}',
        b'{"jsonrpc":"2.0","id":"1","result":1}',
        b'{"jsonrpc":"2.0","method":"notifications/other","params":{}}',
        b'{"jsonrpc":"2.0","type":"another_config","params":{"tools":[]}}',
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":[]}',
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"request":99,"progress":1}}',
        b"{}",
        b"",
    ],
)
async def test_a_message_that_concerns_nobody_is_ignored(line: bytes) -> None:
    async with ready_client("send") as (agent, link, _):
        await agent.call(1, "ant_send")
        request = await link.receive()
        await link.send(line)
        await link.answer(request, "done")
        assert text_of(await agent.receive()) == '"done"'


async def test_a_request_that_the_daemon_found_too_long_to_read_fails_alone() -> None:
    """`relay.max_message_bytes` may be lower than the client's bound: the refusal has no id then (WIRE section 1)."""
    async with ready_client("send") as (agent, link, _):
        await agent.call("short", "ant_send", {"text": "x"})
        short = await link.receive()
        await agent.call("long", "ant_send", {"text": "x" * 10_000})
        await link.receive()
        await agent.call("middle", "ant_send", {"text": "x" * 5_000})
        middle = await link.receive()
        await link.send(b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"too long"}}')
        answer = await agent.receive()
        assert (answer["id"], text_of(answer)) == ("long", "too long")
        for request in (short, middle):
            await link.answer(request, "done")
        assert {(await agent.receive())["id"], (await agent.receive())["id"]} == {"short", "middle"}


async def test_a_cancelled_request_that_was_too_long_takes_its_refusal_along() -> None:
    async with ready_client("send") as (agent, link, _):
        await agent.call("short", "ant_send")
        short = await link.receive()
        await agent.call("long", "ant_send", {"text": "x" * 10_000})
        await link.receive()
        await agent.cancel("long")
        await link.receive()
        await link.send(b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"too long"}}')
        await link.answer(short, "done")
        answer = await agent.receive()
        assert (answer["id"], text_of(answer)) == ("short", '"done"')


async def test_a_mistake_of_ours_with_a_line_costs_the_connection_alone(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """HAZARDS T31."""

    def fail(self: ToolSet, kind: str, params: str) -> list[str]:
        raise KeyError(params)

    async with ready_client("send") as (agent, link, daemon):
        await agent.call(1, "ant_send")
        await link.receive()
        with monkeypatch.context() as broken:
            broken.setattr(ToolSet, "take", fail)
            await link.configure("a_secret")
            assert text_of(await agent.receive()) == LOST
        await (await daemon.accept()).configure("get")
        assert (await agent.receive())["method"] == "notifications/tools/list_changed"
    said = capfd.readouterr().err
    assert "internal error, KeyError" in said
    assert "secret" not in said


async def test_a_refusal_without_id_while_nothing_waits_is_ignored() -> None:
    async with ready_client("send") as (agent, link, _):
        await link.send(b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"too long"}}')
        await agent.call(1, "ant_send")
        await link.answer(await link.receive(), "done")
        assert text_of(await agent.receive()) == '"done"'


async def test_a_request_that_would_be_too_long_for_the_link_is_not_sent() -> None:
    async with ready_client("send") as (agent, link, _):
        line = b'{"id":1,"method":"tools/call","params":{"name":"ant_send","arguments":{"a":"%b"}}}'
        await agent.send(line % (b"x" * (MAX_LINE_BYTES - len(line) + 2)))
        answer = await agent.receive()
        assert answer["result"]["isError"] is True
        assert "too long" in text_of(answer)
        await agent.call(2, "ant_send")
        assert (await link.receive())["params"]["arguments"] == {}


async def test_a_socket_that_never_opens_ends_the_client_after_10_s(autojump_clock: MockClock) -> None:
    daemon = Daemon()
    daemon.refusal = OSError(errno.ENOENT, "No such file or directory")
    _, client_end = memory_stream_pair()
    with pytest.RaisesGroup(
        pytest.RaisesExc(SocketUnavailableError, match="^cannot open the socket /no within 10 s: No such file")
    ):
        await serve("/no", client_end, client_end, daemon.connect)
    assert trio.current_time() == 10
    assert max(after - before for before, after in pairwise(daemon.attempts)) <= 0.5


async def test_a_socket_that_opens_late_is_no_failure(autojump_clock: MockClock) -> None:
    daemon = Daemon()
    daemon.refusal = REFUSED
    async with client(daemon) as (agent, _):
        await agent.initialize()
        assert await agent.tools() == {}
        await trio.sleep(7)
        daemon.refusal = None
        link = await daemon.accept()
        assert trio.current_time() < 9.6
        await link.configure("send")
        assert (await agent.receive())["method"] == "notifications/tools/list_changed"


async def test_before_the_socket_opens_initialize_is_answered_and_calls_fail_in_words(
    autojump_clock: MockClock,
) -> None:
    daemon = Daemon()
    daemon.refusal = REFUSED
    async with client(daemon) as (agent, _):
        await agent.initialize()
        assert trio.current_time() == 0
        await agent.call(1, "ant_send")
        answer = await agent.receive()
        assert trio.current_time() <= 2
        assert text_of(answer) == NOT_CONNECTED


async def test_an_agent_that_leaves_before_the_socket_opens_ends_the_client(autojump_clock: MockClock) -> None:
    daemon = Daemon()
    daemon.refusal = REFUSED
    agent_end, client_end = memory_stream_pair()
    agent = Agent(agent_end)
    await agent.send({"id": 1, "method": "ping"})
    await agent_end.send_stream.aclose()
    await serve("/no", client_end, client_end, daemon.connect)
    assert trio.current_time() == 0
    assert (await agent.receive())["id"] == 1
