"""A call of a tool from the agent to the daemon and back (WIRE section 1)."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from oubliette_client import methods
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.client.harness import client, ready_client, text_of

SPELLING = '{"n":1.10,"big":12345678901234567890123,"exp":1e400,"ü":"\\u00e9 \u2028","z":1,"a":[ 1 , 2 ]}'


async def test_arguments_arrive_as_they_were_written() -> None:
    async with ready_client("send") as (agent, link, _):
        params = f'{{"name":"ant_send","arguments":{SPELLING}}}'
        await agent.send(f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}'.encode())
        assert (await link.receive_line()).decode() == (
            f'{{"jsonrpc":"2.0","id":1,"method":"caller_tool","params":{{"tool":"send","arguments":{SPELLING}}}}}'
        )


@pytest.mark.parametrize("params", ['{"name":"ant_send"}', '{"name":"ant_send","arguments":null}'])
async def test_missing_arguments_are_an_empty_object(params: str) -> None:
    async with ready_client("send") as (agent, link, _):
        await agent.send(f'{{"id":1,"method":"tools/call","params":{params}}}'.encode())
        assert (await link.receive())["params"] == {"tool": "send", "arguments": {}}


async def test_a_result_arrives_as_it_was_written() -> None:
    async with ready_client("send") as (agent, link, _):
        await agent.call(1, "ant_send")
        await link.receive()
        await link.send(f'{{"jsonrpc":"2.0","id":1,"result":{SPELLING}}}'.encode())
        line = (await agent.receive_line()).decode()
        assert line.endswith(f'"structuredContent":{SPELLING}}}}}')
        assert text_of(json.loads(line)) == SPELLING


BLOCK = {"type": "text", "text": "sent"}


@pytest.mark.parametrize(
    "result",
    [{"content": [BLOCK]}, {"content": [], "isError": True}, {"content": [BLOCK], "structuredContent": {"a": 1}}],
)
async def test_a_call_tool_result_passes_as_it_is(result: Any) -> None:
    async with ready_client("send") as (agent, link, _):
        await agent.call(1, "ant_send")
        await link.answer(await link.receive(), result)
        assert (await agent.receive())["result"] == result


@pytest.mark.parametrize("result", ["done", 5, None, True, [1], {"content": []}, {"error": "not one of ours"}])
async def test_any_other_value_becomes_a_text_block_and_no_error(result: Any) -> None:
    """FIELD section 2, defect 11: "a normal result with an `error` string is taken for a failure"."""
    async with ready_client("send") as (agent, link, _):
        await agent.call(1, "ant_send")
        await link.answer(await link.receive(), result)
        answer = await agent.receive()
        assert json.loads(text_of(answer)) == result
        assert "isError" not in answer["result"]


async def test_an_error_of_the_daemon_is_an_error_for_the_agent() -> None:
    """FIELD section 2, defect 11: "Tool errors come back as success"."""
    async with ready_client("send") as (agent, link, _):
        await agent.call(1, "ant_send")
        request = await link.receive()
        await link.fail(request["id"], -32004, "caller tool 'send' timed out after 60 s")
        answer = await agent.receive()
        assert answer["result"]["isError"] is True
        assert text_of(answer) == "caller tool 'send' timed out after 60 s"


@pytest.mark.parametrize("error", [b'{"code":-32000}', b'"no"', b"[]", b'{"message":5}'])
async def test_an_error_without_words_is_an_error_all_the_same(error: bytes) -> None:
    async with ready_client("send") as (agent, link, _):
        await agent.call(1, "ant_send")
        await link.receive()
        await link.send(b'{"id":1,"error":%b}' % error)
        assert (await agent.receive())["result"]["isError"] is True


async def test_a_null_error_beside_a_result_is_none() -> None:
    async with ready_client("send") as (agent, link, _):
        await agent.call(1, "ant_send")
        await link.receive()
        await link.send(b'{"id":1,"error":null,"result":"fine"}')
        assert text_of(await agent.receive()) == '"fine"'


async def test_a_pack_tool_is_called_by_its_identity() -> None:
    async with client() as (agent, daemon):
        link = await daemon.accept()
        await link.declare(caller_id=None)
        await link.offer({"pack": "ot", "name": "tools", "description": "Lists"})
        assert list(await agent.tools()) == ["ot_tools"]
        await agent.call(1, "ot_tools", {"compact": True})
        request = await link.receive()
        assert request["method"] == "pack_tool"
        assert request["params"] == {"name": "ot.tools", "arguments": {"compact": True}}
        await link.answer(request, {"content": [BLOCK]})
        assert (await agent.receive())["result"] == {"content": [BLOCK]}


async def test_one_slow_call_does_not_hold_up_a_hundred_fast_ones() -> None:
    """HAZARDS F12; FIELD section 2, defect 2."""
    async with ready_client("slow", "fast") as (agent, link, _):
        await agent.call("slow", "ant_slow")
        slow = await link.receive()
        for number in range(100):
            await agent.call(number, "ant_fast", {"n": number})
        for request in [await link.receive() for _ in range(100)]:
            await link.answer(request, request["params"]["arguments"]["n"])
        answers = [await agent.receive() for _ in range(100)]
        assert {answer["id"]: text_of(answer) for answer in answers} == {n: str(n) for n in range(100)}
        await link.answer(slow, "at last")
        assert (await agent.receive())["id"] == "slow"


async def test_a_call_waits_as_long_as_the_daemon_lets_it(autojump_clock: MockClock) -> None:
    """FIELD section 2, defect 1; HAZARDS F13: the client has no deadline of its own."""
    async with ready_client("send") as (agent, link, _):
        await agent.call(1, "ant_send")
        request = await link.receive()
        await trio.sleep(3600)
        await link.answer(request, "done")
        assert text_of(await agent.receive()) == '"done"'


IDS = ["1", "1.0", '"1"', '"a\\u0062"', "-7", "1e3"]


async def test_ids_of_different_type_or_spelling_are_different_ids() -> None:
    """HAZARDS F11."""
    async with ready_client("send") as (agent, link, _):
        for id in IDS:
            await agent.send(f'{{"id":{id},"method":"tools/call","params":{{"name":"ant_send"}}}}'.encode())
        for id in IDS:
            await link.answer(await link.receive(), "done")
            assert (await agent.receive_line()).startswith(f'{{"jsonrpc":"2.0","id":{id},'.encode())


@pytest.mark.parametrize(("first", "second"), [("1", "1"), ('"ab"', '"a\\u0062"')])
async def test_an_id_that_is_still_in_use_is_refused(first: str, second: str) -> None:
    """HAZARDS F11."""
    async with ready_client("send") as (agent, link, _):
        for id in (first, second):
            await agent.send(f'{{"id":{id},"method":"tools/call","params":{{"name":"ant_send"}}}}'.encode())
        refusal = await agent.receive()
        assert (refusal["error"]["code"], refusal["id"]) == (-32600, json.loads(second))
        await link.answer(await link.receive(), "first")
        assert text_of(await agent.receive()) == '"first"'


async def test_an_id_may_be_used_again_after_its_answer() -> None:
    async with ready_client("send") as (agent, link, _):
        for _ in range(2):
            await agent.call(1, "ant_send")
            await link.answer(await link.receive(), "done")
            assert (await agent.receive())["id"] == 1


async def test_a_cancelled_call_tells_the_daemon_and_answers_nothing(autojump_clock: MockClock) -> None:
    """HAZARDS F10."""
    async with ready_client("send") as (agent, link, _):
        await agent.call("a", "ant_send")
        request = await link.receive()
        await agent.cancel("a")
        assert await link.receive() == {
            "jsonrpc": "2.0",
            "method": "notifications/cancelled",
            "params": {"requestId": request["id"]},
        }
        await link.fail(request["id"], -32800, "cancelled")
        assert await agent.is_silent(30)


async def test_a_cancelled_id_is_free_at_once() -> None:
    async with ready_client("send") as (agent, link, _):
        await agent.call(1, "ant_send")
        first = await link.receive()
        await agent.cancel(1)
        await agent.call(1, "ant_send")
        received = [await link.receive(), await link.receive()]
        [second] = [message for message in received if message["method"] == "caller_tool"]
        assert second["id"] != first["id"]
        await link.answer(first, "late")
        await link.answer(second, "right")
        assert text_of(await agent.receive()) == '"right"'


@pytest.mark.parametrize("params", [{"requestId": 99}, {"requestId": None}, {"requestId": [1]}, {}])
async def test_cancelling_what_does_not_run_does_nothing(params: dict[str, Any]) -> None:
    async with ready_client("send") as (agent, link, _):
        await agent.send({"method": "notifications/cancelled", "params": params})
        await agent.call(1, "ant_send")
        await link.answer(await link.receive(), "done")
        assert (await agent.receive())["id"] == 1


async def test_a_cancel_that_crosses_the_answer_leaves_at_most_the_answer(autojump_clock: MockClock) -> None:
    async with ready_client("send") as (agent, link, _):
        await agent.call(1, "ant_send")
        request = await link.receive()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.answer, request, "done")
            nursery.start_soon(agent.cancel, 1)
        await wait_all_tasks_blocked()
        await agent.ask(2, "ping")
        ids = [(await agent.receive())["id"]]
        if ids == [1]:
            ids.append((await agent.receive())["id"])
        assert ids[-1] == 2
        assert await agent.is_silent(30)


@pytest.mark.parametrize("name", ['"ant_other"', '"send"', '""'])
async def test_an_unknown_tool_is_refused(name: str) -> None:
    async with ready_client("send") as (agent, _, _):
        await agent.send(f'{{"id":1,"method":"tools/call","params":{{"name":{name}}}}}'.encode())
        assert (await agent.receive())["error"]["code"] == -32602


@pytest.mark.parametrize("params", ["{}", '{"name":5}', "[]", '"x"', '{"name":"ant_send","name":"ant_send"}'])
async def test_params_of_a_wrong_shape_are_refused(params: str) -> None:
    async with ready_client("send") as (agent, _, _):
        await agent.send(f'{{"id":1,"method":"tools/call","params":{params}}}'.encode())
        answer = await agent.receive()
        assert (answer["id"], answer["error"]["code"]) == (1, -32602)


async def test_a_mistake_of_ours_ends_its_own_request_alone(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """HAZARDS T31; G17: what went wrong may hold arguments, so it is said nowhere."""

    def fail(source: str, *, structured: bool) -> str:
        raise KeyError(source)

    async with ready_client("send") as (agent, link, _):
        with monkeypatch.context() as broken:
            broken.setattr(methods, "call_tool_result", fail)
            await agent.call(1, "ant_send", token="t")
            await link.answer(await link.receive(), "a secret")
            answer = await agent.receive()
        assert (answer["id"], answer["error"]["code"]) == (1, -32603)
        await agent.call(1, "ant_send")
        await link.answer(await link.receive(), "done")
        assert text_of(await agent.receive()) == '"done"'
    said = capfd.readouterr().err
    assert "internal error in tools/call: KeyError" in said
    assert "secret" not in said + json.dumps(answer)


async def test_tools_that_share_a_name_are_said_on_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    async with client() as (agent, daemon):
        link = await daemon.accept()
        await link.configure("a.b", "a_b", "c")
        assert list(await agent.tools()) == ["ant_c"]
    assert "more than one tool is called ant_a_b" in capfd.readouterr().err


async def test_a_call_before_the_configs_waits_for_them(autojump_clock: MockClock) -> None:
    async with client() as (agent, daemon), trio.open_nursery() as nursery:
        link = await daemon.accept()
        nursery.start_soon(agent.call, 1, "ant_send")
        await trio.sleep(1)
        await link.configure("send")
        assert (await link.receive())["params"]["tool"] == "send"
