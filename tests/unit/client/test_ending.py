"""How the client ends: by its stdin, by its stdout, and what becomes of what is under way."""

from __future__ import annotations

import trio
from oubliette_client.run import serve
from oubliette_client.server import DRAIN_SECONDS
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from tests.unit.client.harness import Agent, Daemon, beside_own


async def test_the_end_of_stdin_ends_the_client_at_once(autojump_clock: MockClock) -> None:
    agent_end, client_end = memory_stream_pair()
    daemon = Daemon()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, "/the/socket", client_end, client_end, daemon.connect)
        link = await daemon.accept()
        await link.configure("send")
        await wait_all_tasks_blocked()
        await agent_end.send_stream.aclose()
    assert trio.current_time() == 0
    assert await link.receive_line() == b""


async def test_what_was_asked_before_the_end_of_stdin_is_answered() -> None:
    """`printf … | oubliette-client` in a shell."""
    agent_end, client_end = memory_stream_pair()
    daemon = Daemon()
    agent = Agent(agent_end)
    await agent.ask(1, "initialize")
    await agent.ask(2, "tools/list")
    await agent_end.send_stream.aclose()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, "/the/socket", client_end, client_end, daemon.connect)
        await (await daemon.accept()).configure("send")
    assert (await agent.receive())["id"] == 1
    assert list(beside_own((await agent.receive())["result"]["tools"])) == ["ant_send"]


async def test_an_agent_that_dies_with_calls_pending_ends_them_within_1_s(autojump_clock: MockClock) -> None:
    """HAZARDS F9."""
    agent_end, client_end = memory_stream_pair()
    daemon = Daemon()
    agent = Agent(agent_end)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, "/the/socket", client_end, client_end, daemon.connect)
        link = await daemon.accept()
        await link.configure("send")
        await agent.call(1, "ant_send", token="t")
        assert (await link.receive())["method"] == "caller_tool"
        await agent_end.send_stream.aclose()
        while await link.receive_line():
            pass
        assert trio.current_time() <= DRAIN_SECONDS < 1


async def test_a_broken_stdout_ends_the_client(autojump_clock: MockClock) -> None:
    stdin, _open = memory_stream_pair()
    left, stdout = memory_stream_pair()
    daemon = Daemon()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, "/the/socket", stdin, stdout, daemon.connect)
        await daemon.accept()
        await left.aclose()
        await _open.send_all(b'{"id":1,"method":"ping"}\n')
    assert trio.current_time() == 0
