"""What the client holds is bounded, and what is beyond the bound is refused at once (HAZARDS F22, G9)."""

from __future__ import annotations

import pytest
import trio
from oubliette_client.link import MAX_UNSENT_BYTES, TOO_BUSY, Link
from oubliette_client.requests import MAX_BATCH_CHARACTERS, MAX_RUNNING, MAX_RUNNING_CHARACTERS, Batch
from oubliette_client.run import MAX_UNREAD_BYTES, serve
from oubliette_client.streams import MAX_LINE_BYTES, LineStream, Outbox
from trio.testing import MockClock, lockstep_stream_pair, memory_stream_pair, wait_all_tasks_blocked

from oubliette.protocol.lines import CLOSED, OVERSIZED
from tests.unit.client.harness import Agent, Counted, Daemon, Peer, ready_client, text_of


async def test_the_request_after_the_last_that_may_run_is_refused_at_once() -> None:
    async with ready_client("send") as (agent, link, _):
        for id in range(MAX_RUNNING):
            await agent.call(id, "ant_send")
        requests = [await link.receive() for _ in range(MAX_RUNNING)]
        await agent.call("more", "ant_send")
        answer = await agent.receive()
        assert (answer["id"], answer["error"]["code"]) == ("more", -32006)
        assert answer["error"]["data"] == {"kind": "limit_exceeded"}
        await agent.ask("ping", "ping")
        assert (await agent.receive())["id"] == "ping"
        await link.answer(requests[0], "done")
        assert (await agent.receive())["id"] == 0
        await agent.call("more", "ant_send")
        assert (await link.receive())["method"] == "caller_tool"


async def test_requests_that_are_too_long_together_are_refused_at_once() -> None:
    text = "x" * (4 * 1024 * 1024 - 100)
    fitting = MAX_RUNNING_CHARACTERS // len(text)
    async with ready_client("send") as (agent, link, _), trio.open_nursery() as nursery:
        for id in range(fitting + 1):
            nursery.start_soon(agent.call, id, "ant_send", {"text": text})
            await link.receive() if id < fitting else None
        assert (await agent.receive())["error"]["code"] == -32006


async def test_the_answers_of_a_batch_are_sent_in_parts_where_they_are_long() -> None:
    parts: list[str | None] = []
    batch = Batch(3, parts.append)
    batch.reply("1" * (MAX_BATCH_CHARACTERS + 1))
    assert len(parts) == 1
    batch.reply("2")
    batch.reply(None)
    assert parts[1:] == ["[2]"]


async def test_an_agent_that_does_not_read_stops_the_reading_of_the_link() -> None:
    daemon = Daemon()
    agent_end, stdin = memory_stream_pair()
    _unread, stdout = lockstep_stream_pair()
    agent = Agent(agent_end)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, "/the/socket", stdin, stdout, daemon.connect)
        link = await daemon.accept()
        await link.configure("send")
        for id in range(100):
            await agent.call(id, "ant_send")
        for request in [await link.receive() for _ in range(100)]:
            await link.answer(request, "x" * 500_000)
        await wait_all_tasks_blocked()
        assert MAX_UNREAD_BYTES < daemon.read.read_bytes < MAX_UNREAD_BYTES + 2_000_000
        nursery.cancel_scope.cancel()


async def test_an_agent_that_does_not_read_is_not_read() -> None:
    agent_end, client_end = memory_stream_pair()
    stdin = Counted(client_end)
    _unread, stdout = lockstep_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, "/the/socket", stdin, stdout, Daemon().connect)
        for _ in range(30):
            await agent_end.send_all(b'{"id":"%b","method":"ping"}\n' % (b"x" * 1_000_000))
        await wait_all_tasks_blocked()
        assert MAX_UNREAD_BYTES < stdin.read_bytes < MAX_UNREAD_BYTES + 2_000_000
        nursery.cancel_scope.cancel()


async def test_a_daemon_that_does_not_read_makes_calls_fail_before_they_are_sent(autojump_clock: MockClock) -> None:
    ours, theirs = lockstep_stream_pair()

    async def connect(path: str) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        return theirs

    link = Link("/the/socket", lambda kind, params: None, trio.lowlevel.checkpoint, connect)
    arguments = '{"arguments":"' + "x" * 4_000_000 + '"}'
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        await wait_all_tasks_blocked()
        for _ in range(MAX_UNSENT_BYTES // 4_000_000 + 1):
            nursery.start_soon(link.request, "caller_tool", arguments, _no_report)
        await wait_all_tasks_blocked()
        assert (await link.request("caller_tool", "{}", _no_report)).error == TOO_BUSY
        await ours.aclose()
        nursery.cancel_scope.cancel()


def _no_report(progress: dict[str, str]) -> None:
    pytest.fail(f"nobody reported {progress}")


async def test_an_oversized_line_is_told_once_and_the_next_line_read() -> None:
    left, right = memory_stream_pair()
    lines = LineStream(right)
    await left.send_all(b"x" * (MAX_LINE_BYTES + 1))
    assert await lines.receive() is OVERSIZED
    await left.send_all(b"y" * MAX_LINE_BYTES + b"\nnext\n")
    assert await lines.receive() == b"next"
    await left.aclose()
    assert await lines.receive() is CLOSED


async def test_a_connection_that_breaks_is_one_that_was_closed() -> None:
    class Breaking(trio.abc.ReceiveStream):
        async def receive_some(self, max_bytes: int | None = None) -> bytes:
            await trio.lowlevel.checkpoint()
            raise trio.BrokenResourceError

        async def aclose(self) -> None:
            await trio.lowlevel.checkpoint()

    assert await LineStream(Breaking()).receive() is CLOSED


async def test_an_outbox_writes_every_line_in_order_and_whole() -> None:
    left, right = memory_stream_pair()
    outbox = Outbox(100)
    lines = [b"%d" % number * size for number, size in enumerate([1, 70_000, 3, 3, 70_000, 1], start=1)]
    for line in lines:
        outbox.put(line + b"\n")
    full = [outbox.full]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outbox.run, left)
        await outbox.room()
        await outbox.drained()
        full.append(outbox.full)
        assert full == [True, False]
        reader = Peer(right)
        assert [await reader.receive_line() for _ in lines] == lines
        nursery.cancel_scope.cancel()


async def test_an_outbox_whose_stream_broke_lets_everybody_go() -> None:
    left, right = lockstep_stream_pair()
    outbox = Outbox(3)
    outbox.put(b"more than three")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outbox.room)
        nursery.start_soon(outbox.drained)
        nursery.start_soon(outbox.run, left)
        await wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == 3
        await right.aclose()
    outbox.put(b"more than three")
    with trio.fail_after(1):
        await outbox.room()


async def test_room_is_always_a_checkpoint() -> None:
    with trio.testing.assert_checkpoints():
        await Outbox(1).room()


async def test_cancelled_calls_leave_nothing_behind() -> None:
    async with ready_client("send") as (agent, link, _):
        for id in range(MAX_RUNNING + 1):
            await agent.call(id, "ant_send")
            request = await link.receive()
            await agent.cancel(id)
            assert (await link.receive())["params"] == {"requestId": request["id"]}
        await agent.call("last", "ant_send")
        await link.answer(await link.receive(), "done")
        assert text_of(await agent.receive()) == '"done"'
