"""The profile `acp`: an agent of the Agent Client Protocol on pipes in memory, with a clock that jumps."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MemoryReceiveStream, MemorySendStream, MockClock, memory_stream_one_way_pair

from oubliette.agents import acp, acp_protocol
from oubliette.agents.acp import CANCEL_SECONDS, START_SECONDS, AcpAgent
from oubliette.agents.acp_protocol import Answer, TurnUpdates, Update
from oubliette.agents.base import Conversation, Program, Running, ToolOutcome, ToolUse, TurnResult
from oubliette.agents.profile import MAX_MESSAGE, Heard, Options, Permissions, Said
from oubliette.errors import AgentFailed
from oubliette.protocol.jsonrpc import Message
from tests.helpers import streams_of_agents as streams
from tests.helpers.sandbox import CLIENT, HostSandbox, Told

Json = dict[str, Any]
SECRET = "canary-secret"
TEXT: Json = {"type": "text", "text": "hello"}


class Peer:
    """The agent's end of one process. `received` are the messages of the client, all of them."""

    def __init__(self, stdin: MemoryReceiveStream, stdout: MemorySendStream) -> None:
        self.received: list[Json] = []
        self._stdin = stdin
        self._stdout = stdout
        self._buffer = b""

    async def receive(self) -> Json:
        """Returns the next message. Raises `EndOfChannel` where the client has hung up."""
        while b"\n" not in self._buffer:
            data = bytes(await self._stdin.receive_some())
            if not data:
                raise trio.EndOfChannel
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message = json.loads(line)
        assert message["jsonrpc"] == "2.0"
        self.received.append(message)
        return dict(message)

    async def send_line(self, line: bytes) -> None:
        await self._stdout.send_all(line + b"\n")

    async def send(self, message: Json) -> None:
        await self.send_line(json.dumps({"jsonrpc": "2.0", **message}).encode())

    async def answer(self, asked: Json, result: Any) -> None:
        await self.send({"id": asked["id"], "result": result})

    async def update(self, kind: str, /, **members: Any) -> None:
        update = {"sessionUpdate": kind, **members}
        await self.send({"method": "session/update", "params": {"sessionId": "s-1", "update": update}})

    async def say(self, text: str, **members: Any) -> None:
        await self.update("agent_message_chunk", content={"type": "text", "text": text}, **members)

    async def open_session(self, *, can_load: bool = False, version: int = 1, **new: Any) -> Json:
        """Takes part in the beginning; returns what session/new or session/load came with."""
        hello = {"protocolVersion": version, "agentCapabilities": {"loadSession": can_load}}
        await self.answer(await self.receive(), hello)
        asked = await self.receive()
        await self.answer(asked, None if asked["method"] == "session/load" else {"sessionId": "s-1", **new})
        return asked

    async def prompt(self) -> Json:
        asked = await self.receive()
        assert asked["method"] == "session/prompt"
        return asked


Behaviour = Callable[[Peer], Awaitable[None]]


class PeerSandbox(HostSandbox):
    """Each program that is started behaves as the next of `behaviours` says; its end is the process's."""

    def __init__(self, folder: Path, behaviours: tuple[Behaviour, ...], variables: dict[str, str]) -> None:
        super().__init__(folder, variables=variables)
        self.peers: list[Peer] = []
        self._behaviours = list(behaviours)

    @asynccontextmanager
    async def start(self, program: Program) -> AsyncIterator[Running]:
        self.programs.append(program)
        running = PeerProcess()
        self.peers.append(running.peer)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(running.run, self._behaviours.pop(0))
            yield running
            nursery.cancel_scope.cancel()


class PeerProcess:
    complaint = "it broke"

    def __init__(self) -> None:
        self.stdin, theirs = memory_stream_one_way_pair()
        self._stdout, self.stdout = memory_stream_one_way_pair()
        self.peer = Peer(theirs, self._stdout)
        self._over = trio.Event()

    async def run(self, behave: Behaviour) -> None:
        await behave(self.peer)
        self._stdout.close()
        self._over.set()

    async def wait(self) -> int:
        await self._over.wait()
        return 3


@asynccontextmanager
async def conversing(
    folder: Path, *behaviours: Behaviour, permissions: Permissions = "sandbox", model: str = "", **variables: str
) -> AsyncIterator[tuple[Conversation, PeerSandbox]]:
    sandbox = PeerSandbox(folder, behaviours, variables)
    agent = AcpAgent(Options(command=("agent", "acp"), permissions=permissions, model=model))
    async with agent.converse(sandbox) as conversation:
        yield conversation, sandbox


async def one_turn(folder: Path, behave: Behaviour, **options: Any) -> tuple[TurnResult, Told, Peer]:
    """Raises what the turn raises."""
    told, failure = Told(), None
    async with conversing(folder, behave, **options) as (conversation, sandbox):
        try:
            result = await conversation.turn(told.turn("hello"))
        except (AgentFailed, OSError) as error:
            failure = error
    if failure is not None:
        raise failure
    return result, told, sandbox.peers[0]


def answering(*updates: tuple[str, Json], **end: Any) -> Behaviour:
    """An agent that tells these updates in one turn, and waits for more."""

    async def behave(peer: Peer) -> None:
        await peer.open_session()
        asked = await peer.prompt()
        for kind, members in updates:
            await peer.update(kind, **members)
        await peer.answer(asked, {"stopReason": "end_turn", **end})
        await trio.sleep_forever()

    return behave


def chunk(text: str, **members: Any) -> tuple[str, Json]:
    return "agent_message_chunk", {"content": {"type": "text", "text": text}, **members}


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


# What is told


async def test_pieces_become_messages(tmp_path: Path, autojump_clock: MockClock) -> None:
    updates: list[tuple[str, Json]] = [
        ("agent_thought_chunk", {"content": {"type": "text", "text": "hm"}}),
        ("of_later", {"content": 7}),
        chunk("one ", messageId="a"),
        chunk("message", messageId="a"),
        chunk("another", messageId="b"),
        ("agent_message_chunk", {"content": {"type": "image", "data": ""}, "messageId": "b"}),
        ("plan", {"entries": []}),
        ("tool_call", {"toolCallId": "1", "title": "ls"}),
        chunk("the end"),
    ]
    counts = {"inputTokens": 3, "outputTokens": 4, "cachedReadTokens": 5, "thoughtTokens": None}
    result, told, _ = await one_turn(tmp_path, answering(*updates, usage=counts))
    assert told.all == ["one message", "another", "the end"]
    usage = {"input_tokens": 3, "output_tokens": 4, "cache_read_input_tokens": 5}
    assert result == TurnResult(text="the end", usage=usage)


def test_a_message_that_is_too_long_becomes_several() -> None:
    updates = TurnUpdates()
    piece = acp_protocol.receive(update_line(*chunk("x" * (MAX_MESSAGE // 2 + 1))))
    assert isinstance(piece, Update)
    told = [said for _ in range(3) for said in updates.hear(piece)] + list(updates.end())
    assert [len(said.text) for said in told if isinstance(said, Said)] == [MAX_MESSAGE // 2 + 1] * 3


def update_line(kind: str, members: Json) -> bytes:
    params = {"sessionId": "s-1", "update": {"sessionUpdate": kind, **members}}
    return json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params}).encode()


def call(status: str | None = None, **members: Any) -> tuple[str, Json]:
    stated = {"status": status} if status else {}
    return "tool_call", {"toolCallId": "c", "title": "oubliette_look", **stated, **members}


def changed(status: str | None = None, **members: Any) -> tuple[str, Json]:
    return "tool_call_update", {"toolCallId": "c", "status": status, **members}


AT: Json = {"rawInput": {"at": 1.5}}
# What is reported: the arguments of a use, or whether it ended with an error.
BEGUN, EMPTY, DONE, FAILED = {"at": 1.5}, dict[str, Any](), False, True


@pytest.mark.parametrize(
    ("updates", "expected"),
    [
        ([call("in_progress", **AT), changed("completed")], [BEGUN, DONE]),
        # Announced first; its arguments come with its beginning, before it, or never.
        ([call("pending", rawInput={}), changed("in_progress", **AT), changed("failed")], [BEGUN, FAILED]),
        ([call("pending"), changed(None, **AT), changed("in_progress", rawInput=None)], [BEGUN]),
        ([call("pending"), changed("in_progress"), changed("in_progress"), changed("completed")], [EMPTY, DONE]),
        ([call(**AT), changed("completed")], [BEGUN, DONE]),
        ([call("completed", **AT)], [BEGUN, DONE]),
        ([call("pending", **AT)], []),
        ([changed("in_progress", title="oubliette_look", **AT)], [BEGUN]),
        ([changed("in_progress", content=7, locations={}, kind=None)], [EMPTY]),
        ([changed("in_progress", title=7)], []),
    ],
)
async def test_calls_of_tools(
    tmp_path: Path, autojump_clock: MockClock, updates: list[tuple[str, Json]], expected: list[Any]
) -> None:
    _, told, _ = await one_turn(tmp_path, answering(*updates))
    found = [
        json.loads(bytes(report.arguments)) if isinstance(report, ToolUse) else report.is_error
        for report in told.reports
    ]
    assert found == expected


async def test_a_call_has_a_name(tmp_path: Path, autojump_clock: MockClock) -> None:
    updates = [call("in_progress"), changed("completed"), ("tool_call", {"toolCallId": "d", "status": "completed"})]
    _, told, _ = await one_turn(tmp_path, answering(*updates))
    assert [report.tool for report in told.reports] == ["look", "look", "a tool", "a tool"]


def test_a_recorded_turn() -> None:
    received = [acp_protocol.receive(line) for line in streams.recorded(streams.ACP)]
    updates, told = TurnUpdates(), list[Heard]()
    for one in received:
        if isinstance(one, Update):
            told += updates.hear(one)
    assert (streams.uses(told), streams.ends(told)) == (streams.USED, streams.ENDED)
    assert list(updates.end()) == [Said("all done: the disk is full")]
    answers = [one for one in received if isinstance(one, Answer)]
    new = acp_protocol.read(acp_protocol.NewSession, answers[1].result)
    assert new is not None
    assert new.model_option == "model"
    end = acp_protocol.read(acp_protocol.PromptEnd, answers[-1].result)
    assert end is not None
    assert (end.stop_reason, end.used.usage) == ("end_turn", {"input_tokens": 1, "output_tokens": 1})


@given(st.binary() | streams.varied(streams.ACP))
def test_whatever_it_says_is_understood_or_is_not(line: bytes) -> None:
    received = acp_protocol.receive(line)
    assert received is None or isinstance(received, Message | Answer | Update)
    if isinstance(received, Update):
        assert all(isinstance(one, Said | ToolUse | ToolOutcome) for one in TurnUpdates().hear(received))


@pytest.mark.parametrize("reason", ["max_tokens", "max_turn_requests", "refusal"])
async def test_a_turn_that_stops_early_says_why(tmp_path: Path, autojump_clock: MockClock, reason: str) -> None:
    result, told, _ = await one_turn(tmp_path, answering(chunk("half"), stopReason=reason))
    assert (result.text, told.all) == ("half", ["half", f"[the agent stopped: {reason}]"])


async def test_lines_that_are_nothing_are_passed_over(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acp, "MAX_LINE", 10_000)

    async def behave(peer: Peer) -> None:
        await peer.open_session()
        asked = await peer.prompt()
        for line in (b"Warning", b"{}", b"[]", b'{"id": "x", "result": 1}', b"\xff", b""):
            await peer.send_line(line)
        for number in (b"99", b"-1", b"1.0", b"9" * 5000):
            await peer.send_line(b'{"id": %b, "result": 1}' % number)
        await peer.say("before")
        await peer.say("x" * 10_000)
        await peer.answer(asked, {"stopReason": "end_turn"})
        await trio.sleep_forever()

    _, told, _ = await one_turn(tmp_path, behave)
    assert told.all == ["before", acp_protocol.LEFT_OUT_NOTE]


# What it asks

ONCE, ALWAYS = {"optionId": "o", "kind": "allow_once"}, {"optionId": "a", "kind": "allow_always"}
NO, NEVER = {"optionId": "n", "kind": "reject_once"}, {"optionId": "v", "kind": "reject_always"}
OURS = {"toolCallId": "1", "title": "mcp__oubliette__look", "kind": "other"}
SHELL = {"toolCallId": "1", "title": "rm -rf /", "kind": "execute"}
DISGUISED = {"toolCallId": "1", "title": "oubliette_look", "kind": "execute"}


@pytest.mark.parametrize(
    ("permissions", "tool", "options", "chosen"),
    [
        ("sandbox", SHELL, [NO, ONCE, ALWAYS], "a"),
        ("sandbox", SHELL, [NO, ONCE], "o"),
        ("tools", OURS, [NO, ALWAYS, ONCE], "o"),
        ("tools", {**OURS, "kind": None}, [ALWAYS], "a"),
        ("tools", SHELL, [ONCE, ALWAYS, NEVER, NO], "n"),
        ("tools", DISGUISED, [ONCE, NEVER], "v"),
        ("tools", {"toolCallId": "1", "title": None}, [ONCE, NO], "n"),
        ("tools", SHELL, [ONCE], None),
        ("sandbox", SHELL, [], None),
    ],
)
async def test_permission_is_policy(
    tmp_path: Path,
    autojump_clock: MockClock,
    permissions: Permissions,
    tool: Json,
    options: list[Json],
    chosen: str | None,
) -> None:
    async def behave(peer: Peer) -> None:
        await peer.open_session()
        asked = await peer.prompt()
        params = {"sessionId": "s-1", "toolCall": tool, "options": options}
        await peer.send({"id": "p", "method": "session/request_permission", "params": params})
        await peer.receive()
        await peer.answer(asked, {"stopReason": "end_turn"})
        await trio.sleep_forever()

    _, _, peer = await one_turn(tmp_path, behave, permissions=permissions)
    outcome = {"outcome": "selected", "optionId": chosen} if chosen else {"outcome": "cancelled"}
    assert peer.received[-1] == {"jsonrpc": "2.0", "id": "p", "result": {"outcome": outcome}}


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("fs/read_text_file", {"path": "/etc/passwd"}, -32601),
        ("terminal/create", {}, -32601),
        ("x" * 1000, {}, -32601),
        ("session/request_permission", {"options": 7}, -32602),
    ],
)
async def test_what_is_not_offered_is_refused(
    tmp_path: Path, autojump_clock: MockClock, method: str, params: Json, code: int
) -> None:
    async def behave(peer: Peer) -> None:
        await peer.open_session()
        asked = await peer.prompt()
        await peer.send({"id": 7, "method": method, "params": params})
        await peer.receive()
        await peer.answer(asked, {"stopReason": "end_turn"})
        await trio.sleep_forever()

    _, _, peer = await one_turn(tmp_path, behave)
    assert (peer.received[-1]["id"], peer.received[-1]["error"]["code"]) == (7, code)
    assert len(peer.received[-1]["error"]["message"]) < 200


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
