"""The tool `session_message`: a child session is started, waited for, spoken to again and found again.

WIRE section 1. The daemon is played by hand: the child's events are what the test says.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from oubliette_client.children import PAUSE_SECONDS
from trio.testing import MockClock

from tests.unit.client.harness import STATELESS, Agent, DaemonEnd, ready_client

CHILD = "ses_child"


class ChildEnd:
    """A daemon with one child session. `asked` are the requests for its events, `status` and `events` the test's."""

    def __init__(self, link: DaemonEnd) -> None:
        self.link = link
        self.status = "running"
        self.events: list[Any] = []
        self.asked: list[Any] = []

    def add(self, type: str, **fields: Any) -> None:
        self.events.append({"type": type, "session_id": CHILD, "index": len(self.events) + 1, **fields})

    def say(self, text: str) -> None:
        self.add("message", role="assistant", text=text)

    def complete(self, text: str) -> None:
        self.add("turn_completed", text=text, usage=None)
        self.status = "idle"

    def fail(self, sentence: str) -> None:
        self.add("error", kind="agent_failed", message=sentence)
        self.status = "failed"

    async def take_message(self, *, spawned: bool = True, **params: Any) -> None:
        """Takes a message that must have these params."""
        request = await self.link.receive()
        assert (request["method"], request["params"]) == ("session_message", params)
        await self.link.answer(request, {"session_id": CHILD, "spawned": spawned})

    async def take_poll(self) -> Any:
        """Takes a request for events, unanswered."""
        request = await self.link.receive()
        assert (request["method"], request["params"]["session_id"]) == ("session_events", CHILD)
        self.asked.append(request["params"])
        return request

    async def answer_poll(self, request: Any = None, limit: int = 100) -> None:
        """Answers a request for events, the next one where none is given, with what there is."""
        request = request or await self.take_poll()
        since = request["params"]["since_index"]
        page = {
            "session_id": CHILD,
            "status": self.status,
            "last_index": len(self.events),
            "events": self.events[since:][:limit] if since < len(self.events) else [],
            "completed": self.status in ("idle", "ended", "completed"),
            "failed": self.status in ("failed", "interrupted"),
        }
        await self.link.answer(request, page)


@asynccontextmanager
async def open_children(revision: str = "2025-11-25") -> AsyncIterator[tuple[Agent, ChildEnd]]:
    async with ready_client("send", revision=revision) as (agent, link, _):
        yield agent, ChildEnd(link)


def shown(answer: Any) -> tuple[list[str], bool]:
    """The texts of a tool result, and whether it is an error."""
    result = answer["result"]
    return [block["text"] for block in result["content"]], result.get("isError", False)


async def test_a_child_is_started_and_its_answer_returned() -> None:
    async with open_children() as (agent, child):
        await agent.call(1, "session_message", {"message": "look for it"})
        await child.take_message(message="look for it")
        child.add("session_started", parent_id="ses_parent")
        child.say("looking")
        await child.answer_poll()
        child.complete("found it")
        await child.answer_poll()
        answer = await agent.receive()
        assert shown(answer) == (["found it", f"[child session {CHILD}: idle]"], False)
        assert answer["result"]["structuredContent"] == {"session_id": CHILD, "status": "idle", "text": "found it"}
        assert [asked["since_index"] for asked in child.asked] == [0, 2]
        assert all(0 < asked["wait_seconds"] <= 30 for asked in child.asked)


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_every_revision_gets_the_text_and_the_id(revision: str) -> None:
    async with open_children(revision) as (agent, child):
        await agent.call(1, "session_message", {"message": "x"})
        await child.take_message(message="x")
        child.complete("done")
        await child.answer_poll()
        answer = await agent.receive()
        assert shown(answer) == (["done", f"[child session {CHILD}: idle]"], False)
        assert ("structuredContent" in answer["result"]) == (revision >= "2025-06-18")


async def test_the_stateless_era_gets_it_too() -> None:
    async with open_children() as (agent, child):
        await agent.call_stateless(1, "session_message", {"message": "x"})
        await child.take_message(message="x")
        child.complete("done")
        await child.answer_poll()
        result = (await agent.receive())["result"]
        assert result["resultType"] == "complete", STATELESS
        assert result["structuredContent"] == {"session_id": CHILD, "status": "idle", "text": "done"}


async def test_the_messages_spelling_survives() -> None:
    text = '"\\ud83d\\ude00 \\u00e9 \u2028"'
    async with open_children() as (agent, child):
        params = f'{{"name":"session_message","arguments":{{"message":{text}}}}}'
        await agent.send(f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}'.encode())
        assert f'"params":{{"message":{text}}}' in (await child.link.receive_line()).decode()


async def test_a_child_is_spoken_to_again() -> None:
    """What was there before is neither its answer nor its progress."""
    async with open_children() as (agent, child):
        child.say("old news")
        child.complete("old")
        await agent.call(1, "session_message", {"message": "and now?", "session_id": CHILD}, token="t")
        await child.answer_poll()
        await child.take_message(message="and now?", session_id=CHILD, spawned=False)
        child.status = "running"
        child.say("thinking again")
        await child.answer_poll()
        child.complete("new")
        await child.answer_poll()
        told = [(await agent.receive())["params"]["message"] for _ in range(2)]
        assert told == [f"child session {CHILD} is at work", "thinking again"]
        assert shown(await agent.receive())[0][0] == "new"
        assert [asked["since_index"] for asked in child.asked[1:]] == [2, 3]


async def test_a_child_that_is_at_work_is_waited_for_until_it_rests() -> None:
    """The message is queued: the turn under way is not its own."""
    async with open_children() as (agent, child):
        child.say("busy")
        await agent.call(1, "session_message", {"message": "next", "session_id": CHILD})
        await child.answer_poll()
        await child.take_message(message="next", session_id=CHILD, spawned=False)
        child.add("turn_completed", text="of the turn before", usage=None)
        await child.answer_poll()
        child.complete("of this one")
        await child.answer_poll()
        assert shown(await agent.receive())[0][0] == "of this one"


async def test_the_next_turn_that_ends_is_the_one_waited_for() -> None:
    """Somebody else's message to the same child may follow at once."""
    async with open_children() as (agent, child):
        await agent.call(1, "session_message", {"message": "x"})
        await child.take_message(message="x")
        child.add("turn_completed", text="mine", usage=None)
        child.say("already at the next one")
        await child.answer_poll()
        answer = await agent.receive()
        assert shown(answer)[0][0] == "mine"
        assert answer["result"]["structuredContent"]["status"] == "running"


async def test_without_a_message_the_turn_under_way_is_waited_for() -> None:
    async with open_children() as (agent, child):
        child.say("so far")
        await agent.call(1, "session_message", {"session_id": CHILD})
        await child.answer_poll()
        child.complete("done")
        await child.answer_poll()
        assert shown(await agent.receive()) == (["done", f"[child session {CHILD}: idle]"], False)


@pytest.mark.parametrize("events_before", [0, 300])
async def test_what_a_child_said_meanwhile_is_found(events_before: int) -> None:
    async with open_children() as (agent, child):
        for number in range(events_before):
            child.say(f"{number}")
        child.complete("done meanwhile")
        await agent.call(1, "session_message", {"session_id": CHILD})
        await child.answer_poll()
        await child.answer_poll(limit=30)
        if events_before:
            await child.answer_poll(limit=30)
        assert shown(await agent.receive()) == (["done meanwhile", f"[child session {CHILD}: idle]"], False)
        assert child.asked[1]["since_index"] == max(0, len(child.events) - 50)


async def test_a_child_that_has_ended_well_is_no_error() -> None:
    async with open_children() as (agent, child):
        child.complete("all there is")
        child.add("session_ended", reason="ended", exit_code=None)
        child.status = "ended"
        await agent.call(1, "session_message", {"session_id": CHILD})
        await child.answer_poll()
        await child.answer_poll()
        assert shown(await agent.receive()) == (["all there is", f"[child session {CHILD}: ended]"], False)


async def test_a_child_that_fails_is_an_error_with_its_reason() -> None:
    async with open_children() as (agent, child):
        await agent.call(1, "session_message", {"message": "x"})
        await child.take_message(message="x")
        child.fail("the agent 'x' exited with code 3: no model")
        await child.answer_poll()
        answer = await agent.receive()
        assert shown(answer) == (
            ["the agent 'x' exited with code 3: no model", f"[child session {CHILD}: failed]"],
            True,
        )
        assert answer["result"]["structuredContent"]["status"] == "failed"


@pytest.mark.parametrize("status", ["ended", "interrupted"])
async def test_a_child_that_is_ended_under_its_turn_is_an_error(status: str) -> None:
    async with open_children() as (agent, child):
        await agent.call(1, "session_message", {"message": "x"})
        await child.take_message(message="x")
        child.add("session_ended", reason="ended", exit_code=None)
        child.status = status
        await child.answer_poll()
        assert shown(await agent.receive()) == (
            ["the session has ended before its turn was over", f"[child session {CHILD}: {status}]"],
            True,
        )


async def test_a_turn_without_words_has_no_empty_block() -> None:
    async with open_children() as (agent, child):
        await agent.call(1, "session_message", {"message": "x"})
        await child.take_message(message="x")
        child.complete("")
        await child.answer_poll()
        answer = await agent.receive()
        assert shown(answer) == ([f"[child session {CHILD}: idle]"], False)
        assert answer["result"]["structuredContent"]["text"] == ""


async def test_progress_tells_in_short_what_the_child_does() -> None:
    async with open_children() as (agent, child):
        await agent.call(1, "session_message", {"message": "x"}, token="t")
        await child.take_message(message="x")
        child.add("message", role="user", text="x")
        child.say("first\n\nline  " + "y" * 1000)
        child.add("tool_call", tool="Bash", arguments={"command": "ls"})
        child.add("tool_result", tool="Bash", is_error=False)
        child.add("caller_tool_request", tool="send", arguments={}, request_id="r", timeout_seconds=60)
        child.complete("done")
        await child.answer_poll()
        told = [(await agent.receive())["params"] for _ in range(4)]
        assert [report["message"] for report in told] == [
            f"child session {CHILD} is at work",
            "first line " + "y" * 189,
            "calls Bash",
            "calls send",
        ]
        assert [report["progress"] for report in told] == [1, 2, 3, 4]
        assert shown(await agent.receive())[0][0] == "done"


async def test_a_child_that_is_silent_is_heard_of_all_the_same(autojump_clock: MockClock) -> None:
    """WIRE section 1: "at least every 10 s"."""
    async with open_children() as (agent, child):
        await agent.call(1, "session_message", {"message": "x"}, token="t")
        await child.take_message(message="x")
        request = await child.take_poll()
        values = []
        for _ in range(5):
            before = trio.current_time()
            report = await agent.receive()
            assert trio.current_time() - before < 10
            values.append(report["params"]["progress"])
        assert values == sorted(set(values))
        child.complete("done")
        await child.answer_poll(request)
        assert shown(await agent.receive())[0][0] == "done"


async def test_a_cancelled_call_leaves_the_child_to_its_work() -> None:
    """Only the asking ends, and a later call finds the child."""
    async with open_children() as (agent, child):
        await agent.call(1, "session_message", {"message": "x"})
        await child.take_message(message="x")
        request = await child.take_poll()
        await agent.cancel(1)
        cancelled = await child.link.receive()
        assert (cancelled["method"], cancelled["params"]) == ("notifications/cancelled", {"requestId": request["id"]})
        child.complete("done without you")
        await agent.call(2, "session_message", {"session_id": CHILD})
        await child.answer_poll()
        await child.answer_poll()
        answer = await agent.receive()
        assert answer["id"] == 2, "a cancelled call is not answered"
        assert shown(answer)[0][0] == "done without you"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "needs message"),
        ({"message": None}, "needs message"),
        ({"message": 5}, "message must be a string"),
        ({"session_id": ["x"]}, "session_id must be a string"),
        ({"message": "x", "project_id": "other"}, "no argument 'project_id'"),
        ([1], "must be an object"),
    ],
)
async def test_arguments_that_are_wrong_are_named_and_nothing_is_sent(arguments: Any, words: str) -> None:
    async with open_children() as (agent, child):
        await agent.ask(1, "tools/call", {"name": "session_message", "arguments": arguments})
        texts, is_error = shown(await agent.receive())
        assert is_error
        assert words in texts[0]
        await agent.call(2, "ant_send")
        assert (await child.link.receive())["method"] == "caller_tool"


async def test_what_the_daemon_refuses_is_told_in_its_words() -> None:
    async with open_children() as (agent, child):
        await agent.call(1, "session_message", {"message": "x"})
        await child.link.fail((await child.link.receive())["id"], -32006, "as deep as one may be")
        assert shown(await agent.receive()) == (["as deep as one may be"], True)
        await agent.call(2, "session_message", {"session_id": "ses_other"})
        await child.link.fail((await child.link.receive())["id"], -32005, "no such child")
        assert shown(await agent.receive()) == (["no such child"], True)
        child.complete("idle")
        await agent.call(3, "session_message", {"session_id": CHILD, "message": "x"})
        await child.answer_poll()
        await child.link.fail((await child.link.receive())["id"], -32007, "it has ended")
        assert shown(await agent.receive()) == (["it has ended"], True)


async def test_a_lost_connection_is_told_with_the_childs_id(autojump_clock: MockClock) -> None:
    async with open_children() as (agent, child):
        await agent.call(1, "session_message", {"message": "x"})
        await child.take_message(message="x")
        await child.take_poll()
        await child.link.stream.aclose()
        [text], is_error = shown(await agent.receive())
        assert is_error
        assert CHILD in text
        assert "may still be at work" in text


async def test_a_daemon_that_never_waits_is_not_asked_without_pause(autojump_clock: MockClock) -> None:
    async with open_children() as (agent, child):
        await agent.call(1, "session_message", {"message": "x"})
        await child.take_message(message="x")
        before = trio.current_time()
        for _ in range(10):
            await child.answer_poll()
        assert trio.current_time() - before == pytest.approx(9 * PAUSE_SECONDS)


async def test_events_that_are_gone_are_passed_over() -> None:
    async with open_children() as (agent, child):
        await agent.call(1, "session_message", {"message": "x"})
        await child.take_message(message="x")
        request = await child.take_poll()
        notice = {"type": "events_purged", "session_id": CHILD, "since_index": 0, "first_index": 8}
        page = {"session_id": CHILD, "status": "idle", "last_index": 8, "completed": True, "failed": False}
        await child.link.answer(request, {**page, "events": [notice]})
        request = await child.take_poll()
        assert request["params"]["since_index"] == 7
        last = {"type": "turn_completed", "session_id": CHILD, "index": 8, "text": "the end"}
        await child.link.answer(request, {**page, "events": [last]})
        assert shown(await agent.receive())[0][0] == "the end"
