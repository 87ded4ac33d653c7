"""What an agent asks of the daemon itself: its own project, and with a key the daemon's tools.

WIRE section 1; HAZARDS G12, G17, T9, T12, T18, T19, F33.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from oubliette import gate
from oubliette.link import methods
from oubliette.protocol.lines import ENVELOPE_ALLOWANCE
from oubliette.protocol.link import CallToolParams, ToolsParams
from oubliette.protocol.names import MAX_MCP_NAME, mcp_name
from oubliette.toolbox import box
from tests.helpers.keyed_link import KeyedLink, keyed_link
from tests.helpers.link_bench import MAX_BYTES, open_link_bench

SCOPES = ("admin", "admin:ro", "project:default", "project:default:ro")
KEYED_METHODS = ("oubliette_tools", "oubliette_call_tool")


def code_of(answer: Any) -> int:
    """The code of an error, whose `kind` is there too."""
    assert answer["error"]["data"]["kind"]
    code: int = answer["error"]["code"]
    return code


def failure_of(answer: Any) -> Any:
    """What a tool that failed says of it."""
    result = answer["result"]
    failure = result["_meta"]["oubliette/error"]
    assert (result["isError"], result["content"]) == (True, [{"type": "text", "text": failure["message"]}])
    return failure


# Without a key


@pytest.mark.parametrize("params", [b"", b',"params":{}'])
async def test_an_agent_is_shown_its_own_project_alone(tmp_path: Path, params: bytes) -> None:
    async with open_link_bench(tmp_path) as bench:
        link = await bench.connect()
        await link.send_line(b'{"id":1,"method":"project_list"%b}' % params)
        [project] = (await link.receive())["result"]["projects"]
        assert project.keys() == {"project_id", "name", "description", "created_at"}
        assert (project["project_id"], project["name"]) == ("default", "default")


async def test_another_project_cannot_be_asked_for(tmp_path: Path) -> None:
    """HAZARDS T9."""
    async with open_link_bench(tmp_path) as bench:
        link = await bench.connect()
        await link.ask("project_list", {"project_id": "other"})
        error = (await link.receive())["error"]
        assert (error["code"], error["data"]["kind"]) == (-32602, "invalid_params")
        assert "project_id" in error["message"]


# What a key opens


@pytest.mark.parametrize("scope", SCOPES)
async def test_a_key_is_shown_what_its_scope_may_call(tmp_path: Path, scope: str) -> None:
    async with keyed_link(tmp_path, scope) as agent:
        tools = await agent.offered()
        names = {tool["name"] for tool in tools}
        assert {"session_get", "session_list", "session_events"} <= names
        assert not names & {"caller_tool_response", "caller_tool_progress"}
        assert ("session_message" in names) == (not scope.endswith(":ro"))
        assert ("token_create" in names) == (scope == "admin")
        assert all(tool == box.TOOLS[tool["name"]].entry for tool in tools)


async def test_the_whole_list_fits_a_line_of_the_smallest_bound(tmp_path: Path) -> None:
    """`relay.max_message_bytes` may be 64 KiB: the list is not cut, so it must never come near."""
    async with keyed_link(tmp_path) as agent:
        assert len(json.dumps(await agent.offered())) < ENVELOPE_ALLOWANCE
        for name in box.TOOLS:
            assert len(mcp_name("oubliette", name)) <= MAX_MCP_NAME


async def test_a_session_that_a_key_starts_belongs_to_the_key(tmp_path: Path) -> None:
    """Not to the owner of the session that the agent is in."""
    async with keyed_link(tmp_path) as agent:
        view = await agent.structured("session_message", message="hi", agent="echo", wait=True)
        assert (view["owner"], view["parent_id"], view["text"]) == (agent.token_id, None, "hi")
        assert view["owner"] != agent.bench.session.owner


async def test_an_argument_that_is_wrong_is_named(tmp_path: Path) -> None:
    async with keyed_link(tmp_path) as agent:
        failure = failure_of(await agent.answer("session_list", limit="many"))
        assert (failure["kind"], failure["field"]) == ("invalid_params", "limit")
        failure = failure_of(await agent.answer("session_get"))
        assert (failure["kind"], failure["field"]) == ("invalid_params", "session_id")


async def test_a_key_among_the_arguments_is_refused_and_not_repeated(tmp_path: Path) -> None:
    """HAZARDS T19: what a tool is given has no place for it."""
    async with keyed_link(tmp_path) as agent:
        answer = await agent.answer("session_list", api_key=agent.key)
        assert failure_of(answer)["field"] == "api_key"
        assert agent.key not in json.dumps(answer)


@pytest.mark.parametrize("arguments", ["", ',"arguments":null', ',"arguments":{}'])
async def test_arguments_may_be_missing(tmp_path: Path, arguments: str) -> None:
    async with keyed_link(tmp_path) as agent:
        params = f'{{"api_key":"{agent.key}","tool":"token_list"{arguments}}}'
        await agent.link.send_line(f'{{"id":1,"method":"oubliette_call_tool","params":{params}}}'.encode())
        [token] = (await agent.link.receive())["result"]["structuredContent"]["tokens"]
        assert token["token_id"] == agent.token_id


# What it does not


@pytest.mark.parametrize("tool", ["", "nope", "oubliette_session_list", "caller_tool_response", "caller_tool_progress"])
async def test_a_tool_that_is_not_offered_is_unknown(tmp_path: Path, tool: str) -> None:
    async with keyed_link(tmp_path) as agent:
        error = (await agent.answer(tool))["error"]
        assert (error["code"], error["data"]) == (-32602, {"kind": "invalid_params", "field": "tool"})
        assert "session_list" in error["message"]


async def test_a_scope_that_does_not_allow_a_tool_is_forbidden_it(tmp_path: Path) -> None:
    async with keyed_link(tmp_path, "project:default:ro") as agent:
        for tool in ("session_message", "session_end", "token_create", "token_list"):
            assert code_of(await agent.answer(tool, message="x")) == -32002
        assert agent.bench.domain.services.tokens.all()[0].token_id == agent.token_id
        assert len(agent.bench.domain.records.saved) == 1


async def test_what_lies_outside_the_scope_does_not_exist(tmp_path: Path) -> None:
    """HAZARDS T12: it is the key's scope that counts, not the session that the agent is in."""
    async with keyed_link(tmp_path, "project:elsewhere") as agent:
        own = agent.bench.session.id
        foreign, missing = [
            failure_of(await agent.answer("session_get", session_id=id)) for id in (own, "ses_" + "0" * 32)
        ]
        assert (foreign["kind"], missing["kind"]) == ("not_found", "not_found")


KEYS: dict[str, Any] = {
    "missing": {},
    "null": {"api_key": None},
    "empty": {"api_key": ""},
    "no key": {"api_key": "canary"},
    "an unknown one": {"api_key": f"oub_canary_{'0' * 64}"},
}


@pytest.mark.parametrize("method", KEYED_METHODS)
@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
async def test_without_a_valid_key_there_is_nothing(tmp_path: Path, method: str, key: Any) -> None:
    async with open_link_bench(tmp_path) as bench:
        link = await bench.connect()
        # A tool that there is and one that there is not get the same answer.
        for tool in ("session_list", "nope"):
            await link.ask(method, {"tool": tool, **key})
            error = (await link.receive())["error"]
            assert (error["code"], error["data"]) == (-32001, {"kind": "unauthorized"})
            assert "canary" not in error["message"]


@pytest.mark.parametrize("method", KEYED_METHODS)
async def test_a_wrong_secret_and_an_expired_key_are_refused(tmp_path: Path, method: str) -> None:
    async with keyed_link(tmp_path, expires_in_seconds=1e-6) as agent:
        live, _ = await agent.bench.domain.services.tokens.create("live", "admin")
        for key in (agent.key, live[:-1] + ("0" if live[-1] != "0" else "1"), live + "0", live.upper()):
            await agent.link.ask(method, {"api_key": key, "tool": "session_list"})
            answer = await agent.link.receive()
            assert code_of(answer) == -32001
            assert key[-64:] not in json.dumps(answer)


@pytest.mark.parametrize("params", [[], "x", {"api_key": 5}, {"api_key": ["oub_canary_x"]}, {"api_key": {}}])
@pytest.mark.parametrize("method", KEYED_METHODS)
async def test_params_of_another_shape_are_refused(tmp_path: Path, method: str, params: Any) -> None:
    async with open_link_bench(tmp_path) as bench:
        link = await bench.connect()
        await link.ask(method, params)
        answer = await link.receive()
        assert code_of(answer) == -32602
        assert "canary" not in json.dumps(answer)


async def test_wrong_keys_are_soon_not_told_why_and_the_right_one_goes_on(tmp_path: Path) -> None:
    """The gate's bound, one for each session, whatever the number of its links."""
    async with keyed_link(tmp_path) as agent:
        other = await agent.bench.connect()
        codes = []
        for number in range(int(gate.BURST) + 2):
            link = (agent.link, other)[number % 2]
            await link.ask("oubliette_tools", {"api_key": f"oub_nobody_{number:064x}"})
            codes.append(code_of(await link.receive()))
        assert codes[:-2] == [-32001] * int(gate.BURST)
        assert codes[-1] == -32006
        assert await agent.offered()


# The key's end


@pytest.mark.parametrize("method", KEYED_METHODS)
async def test_a_revoked_key_is_refused_from_its_next_call_on(tmp_path: Path, method: str) -> None:
    """HAZARDS G12."""
    async with keyed_link(tmp_path) as agent:
        await agent.structured("session_list")
        await agent.revoke()
        await agent.link.ask(method, {"api_key": agent.key, "tool": "session_list"})
        assert code_of(await agent.link.receive()) == -32001


async def test_a_revoked_key_ends_what_it_waits_for(tmp_path: Path, autojump_clock: MockClock) -> None:
    """HAZARDS F33: "call fails `unauthorized`". The session that was started stays."""
    async with keyed_link(tmp_path) as agent:
        await agent.ask("session_message", id="turn", message="hi", agent="slow", wait=True)
        await agent.ask(
            "session_events", id="poll", session_id=agent.bench.session.id, since_index=1000, wait_seconds=30
        )
        await wait_all_tasks_blocked()
        await agent.revoke()
        answers = [await agent.link.receive() for _ in range(2)]
        assert {answer["id"]: code_of(answer) for answer in answers} == {"turn": -32001, "poll": -32001}
        assert trio.current_time() == 0
        statuses = {record.agent: record.status for record in agent.bench.domain.records.saved.values()}
        assert statuses == {"external": "running", "slow": "running"}


async def test_a_key_that_revokes_itself_is_told_so(tmp_path: Path) -> None:
    async with keyed_link(tmp_path) as agent:
        assert await agent.structured("token_revoke", token_id=agent.token_id) == {"revoked": True}
        assert code_of(await agent.answer("token_list")) == -32001


# Requests that wait


async def test_requests_run_at_once_and_are_answered_as_they_end(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with keyed_link(tmp_path) as agent:
        own = agent.bench.session
        await agent.ask("session_events", id="long", session_id=own.id, since_index=1000, wait_seconds=20)
        await agent.ask("session_events", id="short", session_id=own.id, since_index=1000, wait_seconds=10)
        await agent.ask("session_list", id="at once")
        assert [(await agent.link.receive())["id"] for _ in range(3)] == ["at once", "short", "long"]
        assert trio.current_time() == 20


async def test_a_cancellation_ends_the_waiting_and_not_the_session(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with keyed_link(tmp_path) as agent:
        await agent.ask("session_message", id="a", message="hi", agent="slow", wait=True)
        await wait_all_tasks_blocked()
        await agent.link.send({"method": "notifications/cancelled", "params": {"requestId": "a"}})
        answer = await agent.link.receive()
        assert (answer["id"], code_of(answer), answer["error"]["data"]["kind"]) == ("a", -32800, "cancelled")
        sessions = (await agent.structured("session_list", project_id="default"))["sessions"]
        assert [(session["agent"], session["status"]) for session in sessions] == [
            ("slow", "running"),
            ("external", "running"),
        ]


async def test_a_link_that_closes_ends_its_requests(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with keyed_link(tmp_path) as agent:
        other = KeyedLink(agent.bench, await agent.bench.connect(), agent.key, agent.token_id)
        for one in (agent, other):
            await one.ask("session_message", message="hi", agent="slow", wait=True)
        await wait_all_tasks_blocked()
        await agent.link.stream.aclose()
        await wait_all_tasks_blocked()
        # The closed link's place is free, the other one still waits.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(methods, "MAX_WORKING", 2)
            await other.ask("session_list", id="list")
            assert (await other.link.receive())["id"] == "list"


async def test_the_sessions_end_answers_what_waits_at_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    """WIRE section 1: "Whatever is pending when its session ends or the daemon stops is answered with -32800"."""
    async with keyed_link(tmp_path) as agent:
        await agent.ask("session_message", message="hi", agent="slow", wait=True)
        await wait_all_tasks_blocked()
        agent.bench.session.end("ended")
        agent.bench.connections[0].finish()
        assert code_of(await agent.link.receive()) == -32800
        with pytest.raises(trio.EndOfChannel):
            await agent.link.receive()
        assert trio.current_time() == 0


@pytest.mark.parametrize("method", [*KEYED_METHODS, "project_list"])
async def test_a_session_that_is_ending_takes_no_more_requests(tmp_path: Path, method: str) -> None:
    """The reader may have lines left that came before."""
    async with keyed_link(tmp_path) as agent:
        agent.bench.session.end("ended")
        await agent.link.ask(method, {"api_key": agent.key, "tool": "session_list"})
        assert code_of(await agent.link.receive()) == -32007


async def test_an_id_is_in_use_until_its_answer(tmp_path: Path) -> None:
    async with keyed_link(tmp_path) as agent:
        await agent.ask("session_message", id=7, message="hi", agent="slow", wait=True)
        assert code_of(await agent.answer("session_list", id=7)) == -32600
        await agent.link.call("send", id=7)
        assert code_of(await agent.link.receive()) == -32600
        await agent.link.send({"method": "notifications/cancelled", "params": {"requestId": 7}})
        assert code_of(await agent.link.receive()) == -32800
        assert (await agent.answer("session_list", id=7))["id"] == 7


async def test_a_request_without_an_id_is_answered_with_null(tmp_path: Path) -> None:
    async with keyed_link(tmp_path) as agent:
        await agent.link.send({"method": "oubliette_tools", "params": {"api_key": agent.key}})
        answer = await agent.link.receive()
        assert (answer["id"], "tools" in answer["result"]) == (None, True)


async def test_what_a_session_asks_at_once_is_bounded(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N, N+1, and N again; over all links."""
    assert methods.MAX_WORKING == 100
    monkeypatch.setattr(methods, "MAX_WORKING", 3)
    async with keyed_link(tmp_path) as agent:
        other = KeyedLink(agent.bench, await agent.bench.connect(), agent.key, agent.token_id)
        poll = {"session_id": agent.bench.session.id, "since_index": 1000, "wait_seconds": 5}
        for id in ("a", "b"):
            await agent.ask("session_events", id=id, **poll)
        await other.ask("session_events", id="c", **poll)
        await wait_all_tasks_blocked()
        assert code_of(await other.answer("session_list", id="d")) == -32006
        assert {(await agent.link.receive())["id"] for _ in range(2)} == {"a", "b"}
        assert (await other.link.receive())["id"] == "c"
        assert (await other.answer("session_list", id="d"))["id"] == "d"
        # A caller's tools are not held up, nor are they counted here.
        await agent.link.call("send", id="e")
        await agent.bench.answer(await agent.bench.next_request(), result=1)
        assert (await agent.link.receive())["result"] == 1


async def test_a_result_that_no_line_may_carry_is_refused_in_words(tmp_path: Path) -> None:
    async with keyed_link(tmp_path) as agent:
        failure = failure_of(await agent.answer("session_message", message="x" * 3000, agent="echo", wait=True))
        assert (failure["kind"], str(MAX_BYTES) in failure["message"]) == ("limit_exceeded", True)
        assert "was carried out" in failure["message"]
        await agent.structured("session_list", limit=1)


async def test_a_mistake_of_ours_in_a_tool_ends_that_call_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def crash(*arguments: object) -> bytes:
        raise RuntimeError("a bug")

    async with keyed_link(tmp_path) as agent:
        with monkeypatch.context() as patch:
            patch.setattr(box, "run", crash)
            failure = failure_of(await agent.answer("session_list"))
        assert (failure["kind"], "a bug" in failure["message"]) == ("internal_error", False)
        assert "a bug" in caplog.text
        await agent.structured("session_list")


# The key is nowhere else


async def test_a_key_is_in_no_log_record_and_no_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """HAZARDS G17, T18."""
    caplog.set_level(logging.DEBUG)
    async with keyed_link(tmp_path) as agent:
        secret = agent.key.rpartition("_")[2]
        for line in (
            '{"id":1,"method":"oubliette_tools","params":{"api_key":"KEY"}}',
            '{"id":1,"method":"oubliette_tools","params":{"api_key":"KEY"}',
            '{"id":1,"method":"oubliette_tools","params":["KEY"]}',
            '{"id":1,"method":"oubliette_call_tool","params":{"api_key":"KEY","tool":5}}',
            '{"id":1,"method":"oubliette_call_tool","params":{"api_key":"KEY","tool":"nope"}}',
            '{"id":1,"method":"oubliette_call_tool","params":{"api_key":"KEY","tool":"session_get","arguments":{}}}',
            '{"id":1,"method":"oubliette_call_tool","params":{"api_key":"KEY","tool":"session_get","arguments":[]}}',
            '{"id":1,"method":"oubliette_call_tool","params":{"api_key":"KEYx","tool":"session_get"}}',
            '{"id":1,"method":"project_list","params":{"api_key":"KEY"}}',
            '{"id":1,"method":"caller_tool","params":{"api_key":"KEY"}}',
        ):
            await agent.link.send_line(line.replace("KEY", agent.key).encode())
            assert secret not in (await agent.link.receive_line()).decode()
        await agent.revoke()
        assert code_of(await agent.answer("session_list")) == -32001
        said = [repr(record.__dict__) for record in caplog.records]
        assert said
        assert [line for line in said if secret in line] == []
        assert [event for event in agent.bench.domain.records.stored if secret.encode() in event.data] == []


def test_what_is_decoded_shows_no_key_and_does_not_hold_on_to_its_line() -> None:
    line = b'{"api_key":"oub_canary_x","tool":"t","arguments":{"a":1}}'
    for kind in (ToolsParams, CallToolParams):
        params = msgspec.json.decode(line, type=kind)
        assert params.api_key == "oub_canary_x"
        assert "canary" not in repr(params) + str(params)
        arguments = getattr(params, "arguments", b"{}")
        del params
        # This name, and the argument of the count: nothing that was decoded keeps the line, and the key in it, alive.
        assert sys.getrefcount(line) <= 3
        assert bytes(arguments) in (b'{"a":1}', b"{}")
