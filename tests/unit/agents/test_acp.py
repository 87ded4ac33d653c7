"""The profile `acp`: turns with an agent on pipes in memory, with a clock that jumps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from oubliette.agents import acp
from oubliette.agents.acp import CANCEL_SECONDS, START_SECONDS, AcpAgent
from oubliette.agents.base import Conversation, TurnResult
from oubliette.agents.profile import Options
from oubliette.errors import AgentFailed
from tests.helpers.acp_peer import TEXT, Json, Peer, answering, chunk, conversing, one_turn
from tests.helpers.sandbox import CLIENT, HostSandbox, Told

SECRET = "canary-secret"


async def test_it_says_what_the_client_offers_and_where_it_works(tmp_path: Path, autojump_clock: MockClock) -> None:
    result, told, peer = await one_turn(tmp_path, answering(chunk("hi")), OUBLIETTE_API_KEY=SECRET)
    hello, new, prompt = peer.received
    assert hello["method"] == "initialize"
    assert hello["params"]["protocolVersion"] == 1
    nothing = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
    assert hello["params"]["clientCapabilities"] == nothing
    program, *arguments = CLIENT
    assert (new["method"], new["params"]) == (
        "session/new",
        {
            "cwd": str(tmp_path / "workspace"),
            "mcpServers": [
                {
                    "name": "oubliette",
                    "command": program,
                    "args": [*arguments, "--socket", "/nowhere/relay.sock"],
                    "env": [{"name": "OUBLIETTE_API_KEY", "value": SECRET}],
                }
            ],
        },
    )
    assert prompt["params"] == {"sessionId": "s-1", "prompt": [TEXT]}
    assert (result, told.all) == (TurnResult(text="hi"), ["hi"])


async def test_its_files_are_its_own_and_its_server_is_closed(tmp_path: Path, autojump_clock: MockClock) -> None:
    """HAZARDS T37."""
    async with conversing(tmp_path, answering()) as (conversation, sandbox):
        await conversation.turn(Told().turn("hello", KEY=SECRET, HOME="/root", OPENCODE_SERVER_PASSWORD="known"))
    [ran] = sandbox.programs
    assert ran.argv == ("agent", "acp")
    assert (ran.environment["KEY"], ran.environment["HOME"]) == (SECRET, sandbox.place.home)
    assert len(ran.environment["OPENCODE_SERVER_PASSWORD"]) > 32
    assert SECRET not in repr(ran)


# Its model


async def test_its_model_is_chosen_where_it_lets_us(tmp_path: Path, autojump_clock: MockClock) -> None:
    async def behave(peer: Peer) -> None:
        await peer.open_session(configOptions=[{"id": "mode"}, {"id": "m", "category": "model"}])
        await peer.answer(await peer.receive(), {"configOptions": []})
        await peer.answer(await peer.prompt(), {"stopReason": "end_turn"})
        await trio.sleep_forever()

    _, _, peer = await one_turn(tmp_path, behave, model="big")
    assert peer.received[2]["method"] == "session/set_config_option"
    assert peer.received[2]["params"] == {"sessionId": "s-1", "configId": "m", "value": "big"}


async def test_a_model_that_nobody_can_choose_is_a_failure(tmp_path: Path, autojump_clock: MockClock) -> None:
    with pytest.raises(AgentFailed, match="leaves the choice of its model to nobody"):
        await one_turn(tmp_path, answering(), model="big")


# Several turns


async def one_after_the_other(peer: Peer) -> None:
    await peer.open_session()
    for number in range(3):
        asked = await peer.prompt()
        await peer.say(f"answer {number}")
        await peer.answer(asked, {"stopReason": "end_turn"})
        # Nobody listens, and nobody waits for that.
        await peer.say("between the turns" * 10_000)
    await trio.sleep_forever()


async def test_one_process_serves_all_turns(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with conversing(tmp_path, one_after_the_other) as (conversation, sandbox):
        told = [Told(), Told(), Told()]
        for number, one in enumerate(told):
            assert (await conversation.turn(one.turn("hello"))).text == f"answer {number}"
            await trio.testing.wait_all_tasks_blocked()
        assert [one.all for one in told] == [["answer 0"], ["answer 1"], ["answer 2"]]
        assert len(sandbox.programs) == 1


async def dies_after_a_turn(peer: Peer) -> None:
    await peer.open_session()
    await peer.answer(await peer.prompt(), {"stopReason": "end_turn"})


async def loads(peer: Peer) -> None:
    asked = await peer.open_session(can_load=True)
    assert asked["method"] == "session/load"
    await peer.answer(await peer.prompt(), {"stopReason": "end_turn"})
    await trio.sleep_forever()


async def test_an_agent_that_died_between_turns_loads_the_conversation(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async def replays(peer: Peer) -> None:
        await peer.answer(await peer.receive(), {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}})
        asked = await peer.receive()
        # Told again of what was said before, nobody is to hear it again.
        await peer.say("of the first turn")
        await peer.answer(asked, None)
        await peer.answer(await peer.prompt(), {"stopReason": "end_turn"})
        await trio.sleep_forever()

    told = Told()
    async with conversing(tmp_path, dies_after_a_turn, replays) as (conversation, sandbox):
        await conversation.turn(Told().turn("one"))
        await trio.testing.wait_all_tasks_blocked()
        await conversation.turn(told.turn("two"))
    _, load, prompt = sandbox.peers[1].received
    assert (load["method"], load["params"]["sessionId"]) == ("session/load", "s-1")
    assert load["params"]["mcpServers"] == sandbox.peers[0].received[1]["params"]["mcpServers"]
    assert (prompt["params"]["sessionId"], told.all) == ("s-1", [])


@pytest.mark.parametrize("refuses", [False, True])
async def test_an_agent_that_cannot_load_says_that_it_has_forgotten(
    tmp_path: Path, autojump_clock: MockClock, refuses: bool
) -> None:
    async def forgets(peer: Peer) -> None:
        await peer.answer(await peer.receive(), {"protocolVersion": 1, "agentCapabilities": {"loadSession": refuses}})
        asked = await peer.receive()
        if refuses:
            await peer.send({"id": asked["id"], "error": {"code": -32002, "message": "not found"}})
            asked = await peer.receive()
        assert asked["method"] == "session/new"
        await peer.answer(asked, {"sessionId": "s-2"})
        await peer.answer(await peer.prompt(), {"stopReason": "end_turn"})
        await trio.sleep_forever()

    told = Told()
    async with conversing(tmp_path, dies_after_a_turn, forgets) as (conversation, sandbox):
        await conversation.turn(Told().turn("one"))
        await trio.testing.wait_all_tasks_blocked()
        await conversation.turn(told.turn("two"))
    assert told.all == [acp._FORGOTTEN]
    assert sandbox.peers[1].received[-1]["params"]["sessionId"] == "s-2"


# Interruption


async def interrupted(conversation: Conversation, told: Told, after: float = 1) -> float:
    """Cancels a turn; returns how long that took."""
    with trio.CancelScope() as scope:
        scope.deadline = trio.current_time() + after
        await conversation.turn(told.turn("hello"))
    assert scope.cancelled_caught
    return trio.current_time() - scope.deadline


async def test_an_interrupted_turn_is_cancelled_and_waited_for(tmp_path: Path, autojump_clock: MockClock) -> None:
    async def behave(peer: Peer) -> None:
        await peer.open_session()
        asked = await peer.prompt()
        await peer.say("half a ", messageId="a")
        cancel = await peer.receive()
        assert (cancel["method"], cancel["params"], "id" in cancel) == ("session/cancel", {"sessionId": "s-1"}, False)
        await trio.sleep(CANCEL_SECONDS / 2)
        await peer.say("message")
        await peer.answer(asked, {"stopReason": "cancelled"})
        await peer.say("too late")
        asked = await peer.prompt()
        await peer.say("again", messageId="b")
        await peer.answer(asked, {"stopReason": "end_turn"})
        await trio.sleep_forever()

    async with conversing(tmp_path, behave) as (conversation, sandbox):
        told = Told()
        assert await interrupted(conversation, told) == CANCEL_SECONDS / 2
        await trio.testing.wait_all_tasks_blocked()
        assert told.all == []
        assert (await conversation.turn(told.turn("go on"))).text == "again"
        assert (told.all, len(sandbox.programs)) == (["again"], 1)


async def test_an_agent_that_does_not_stop_is_stopped(tmp_path: Path, autojump_clock: MockClock) -> None:
    async def deaf(peer: Peer) -> None:
        await peer.open_session()
        await trio.sleep_forever()

    async with conversing(tmp_path, deaf, loads) as (conversation, sandbox):
        assert await interrupted(conversation, Told()) == CANCEL_SECONDS
        assert (await conversation.turn(Told().turn("go on"))).exit_code == 0
        assert len(sandbox.programs) == 2


async def test_an_interruption_while_it_starts_stops_it(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with conversing(tmp_path, sleeps, dies_after_a_turn) as (conversation, sandbox):
        assert await interrupted(conversation, Told()) == 0
        assert (await conversation.turn(Told().turn("go on"))).exit_code == 0
        assert sandbox.peers[1].received[1]["method"] == "session/new"


async def sleeps(peer: Peer) -> None:
    await trio.sleep_forever()


async def test_an_interruption_while_the_message_is_sent_stops_it(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Half a line cannot be taken back."""
    clogged = trio.Event()

    async def behave(peer: Peer) -> None:
        await peer.open_session()
        await trio.sleep_forever()

    async def clog() -> None:
        clogged.set()
        await trio.sleep_forever()

    async with conversing(tmp_path, behave, loads) as (conversation, sandbox):
        with trio.CancelScope() as scope:
            process = await conversation._start(Told().turn(""))  # type: ignore[attr-defined]  # to reach its stdin
            conversation._process = process  # type: ignore[attr-defined]
            process._stdin.send_all_hook = clog
            scope.deadline = trio.current_time() + 1
            await conversation.turn(Told().turn("hello"))
        assert clogged.is_set()
        assert trio.current_time() == scope.deadline
        assert (await conversation.turn(Told().turn("go on"))).exit_code == 0
        assert len(sandbox.programs) == 2


async def test_leaving_the_conversation_ends_the_process(tmp_path: Path, autojump_clock: MockClock) -> None:
    ended = trio.Event()

    async def behave(peer: Peer) -> None:
        try:
            await answering()(peer)
        finally:
            ended.set()

    await one_turn(tmp_path, behave)
    assert ended.is_set()


# Faults


async def test_an_agent_that_dies_within_a_turn_fails_it(tmp_path: Path, autojump_clock: MockClock) -> None:
    async def behave(peer: Peer) -> None:
        await peer.open_session()
        await peer.prompt()
        await peer.say("half")

    result, told, _ = await one_turn(tmp_path, behave)
    assert (result.exit_code, result.complaint) == (3, "it broke")
    assert told.all == []


async def test_an_agent_that_dies_at_its_start_fails_the_turn(tmp_path: Path, autojump_clock: MockClock) -> None:
    async def behave(peer: Peer) -> None:
        await peer.receive()

    result, _, _ = await one_turn(tmp_path, behave)
    assert (result.exit_code, result.complaint) == (3, "it broke")


async def test_an_agent_that_opens_no_session_fails_the_turn(tmp_path: Path, autojump_clock: MockClock) -> None:
    begun = trio.current_time()
    with pytest.raises(AgentFailed, match="opened no session within 120 s"):
        await one_turn(tmp_path, sleeps)
    assert trio.current_time() - begun == START_SECONDS


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ({"code": -32000, "message": "Authentication required"}, "session/prompt: Authentication required"),
        ({"code": -1, "message": "x" * 10_000}, "x" * 2000),
        ({"code": -1, "message": "bad", "data": {"details": "why"}}, 'bad {"details": "why"}'),
        ({"message": 7}, "an error"),
        ({}, "an error"),
    ],
)
async def test_an_error_is_the_turns_failure(
    tmp_path: Path, autojump_clock: MockClock, error: Json, words: str
) -> None:
    async def behave(peer: Peer) -> None:
        await peer.open_session()
        asked = await peer.prompt()
        await peer.send({"id": asked["id"], "error": error})
        await trio.sleep_forever()

    with pytest.raises(AgentFailed) as caught:
        await one_turn(tmp_path, behave)
    assert words in caught.value.message
    assert len(caught.value.message) < 2100


async def test_another_version_of_the_protocol_is_a_failure(tmp_path: Path, autojump_clock: MockClock) -> None:
    async def behave(peer: Peer) -> None:
        await peer.open_session(version=2)

    with pytest.raises(AgentFailed, match="speaks version 2"):
        await one_turn(tmp_path, behave)


@pytest.mark.parametrize("result", [None, 7, [], {}, {"stopReason": 7}])
async def test_an_answer_that_is_none_is_a_failure(tmp_path: Path, autojump_clock: MockClock, result: Any) -> None:
    async def behave(peer: Peer) -> None:
        await peer.open_session()
        await peer.answer(await peer.prompt(), result)
        await trio.sleep_forever()

    with pytest.raises(AgentFailed, match="session/prompt: its answer is not one of its protocol"):
        await one_turn(tmp_path, behave)


async def test_an_agent_that_cannot_be_started_says_why(tmp_path: Path) -> None:
    agent = AcpAgent(Options(command=("/nowhere/agent",)))
    async with agent.converse(HostSandbox(tmp_path)) as conversation:
        with pytest.raises(FileNotFoundError, match="No such file"):
            await conversation.turn(Told().turn("hello"))


async def test_an_agent_that_talks_faster_than_it_is_heard_waits(tmp_path: Path, autojump_clock: MockClock) -> None:
    sent = 0

    async def behave(peer: Peer) -> None:
        nonlocal sent
        await peer.open_session()
        asked = await peer.prompt()
        for sent in range(100):
            await peer.say(f"{sent}", messageId=f"{sent}")
        await peer.answer(asked, {"stopReason": "end_turn"})
        await trio.sleep_forever()

    said: list[str] = []

    async def say(text: str) -> None:
        await trio.sleep(1)
        said.append(text)

    async with conversing(tmp_path, behave) as (conversation, _):
        turn = Told().turn("hello")
        begun = trio.current_time()
        await conversation.turn(type(turn)(prompt="hello", say=say, report=turn.report))
        assert trio.current_time() - begun == 100
    assert said == [f"{number}" for number in range(100)]
