"""The Agent Client Protocol: what an agent tells and asks, and what becomes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from oubliette.agents import acp, acp_protocol
from oubliette.agents.acp_protocol import Answer, TurnUpdates, Update
from oubliette.agents.base import ToolOutcome, ToolUse, TurnResult
from oubliette.agents.profile import MAX_MESSAGE, Heard, Permissions, Said
from oubliette.protocol.jsonrpc import Message
from tests.helpers import streams_of_agents as streams
from tests.helpers.acp_peer import Json, Peer, answering, chunk, one_turn

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
