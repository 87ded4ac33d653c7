"""One link over memory streams: framing, ids, requests and their ends. Times are virtual.

WIRE sections 1 and 3; HAZARDS F9 to F13, F22, F23.
"""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from oubliette.link.connection import WRITE_SECONDS
from oubliette.protocol.lines import ENVELOPE_ALLOWANCE
from tests.helpers.link import AgentLink
from tests.helpers.link_bench import MAX_BYTES, LinkBench, open_link_bench
from tests.helpers.packs import packs_of


async def assert_usable(bench: LinkBench, link: AgentLink, id: Any = "usable") -> None:
    """A call still goes all the way."""
    await link.call("send", id=id)
    await bench.answer(await bench.next_request(), result="yes")
    assert await link.receive() == {"jsonrpc": "2.0", "id": id, "result": "yes"}


async def error_of(link: AgentLink) -> tuple[int, Any]:
    """The code and the id of the next message, an error."""
    answer = await link.receive()
    return answer["error"]["code"], answer["id"]


async def has_closed(link: AgentLink) -> bool:
    try:
        await link.receive()
    except trio.EndOfChannel:
        return True
    return False


# Framing

PARSE, INVALID = -32700, -32600
MALFORMED: dict[str, tuple[bytes, int, Any]] = {
    "not JSON": (b"{nope", PARSE, None),
    "half a message": (b'{"id":1,"method":', PARSE, None),
    "two messages": (b'{"id":1,"method":"a"}{"id":2,"method":"b"}', PARSE, None),
    "not UTF-8": (b'{"id":1,"method":"caller_tool","params":{"tool":"\xff"}}', PARSE, None),
    "half a surrogate pair": (b'{"id":1,"method":"\\ud800"}', PARSE, None),
    "too deep": (b'{"id":1,"method":"caller_tool","params":' + b"[" * 128 + b"]" * 128 + b"}", PARSE, None),
    "much too deep": (b"[" * MAX_BYTES, PARSE, None),
    "NUL": (b"\0", PARSE, None),
    "a list": (b'[{"id":1,"method":"a"}]', INVALID, None),
    "a number": (b"1", INVALID, None),
    "null": (b"null", INVALID, None),
    "nothing in it": (b"{}", INVALID, None),
    "no method": (b'{"id":1}', INVALID, 1),
    "an empty method": (b'{"id":"x","method":""}', INVALID, "x"),
    "a method that is no string": (b'{"id":1,"method":5}', INVALID, 1),
    "an id that is no id": (b'{"id":[1],"method":"a"}', INVALID, None),
    "a boolean id": (b'{"id":true,"method":"a"}', INVALID, None),
    "another JSON-RPC": (b'{"jsonrpc":"1.0","id":1,"method":"a"}', INVALID, 1),
    "an id twice": (b'{"id":1,"id":2,"method":"caller_tool"}', INVALID, None),
    "a method twice": (b'{"id":1,"method":"a","method":"caller_tool"}', INVALID, 1),
    "params twice": (b'{"id":1,"method":"caller_tool","params":{},"params":{"tool":"send"}}', INVALID, 1),
    "a response": (b'{"id":1,"result":5}', INVALID, 1),
}


@pytest.mark.parametrize(("line", "code", "id"), MALFORMED.values(), ids=MALFORMED)
async def test_a_malformed_line_is_refused_and_the_link_stays_usable(
    tmp_path: Path, line: bytes, code: int, id: Any
) -> None:
    async with open_link_bench(tmp_path) as bench:
        link = await bench.connect()
        await link.send_line(line)
        answer = await link.receive()
        assert (answer["error"]["code"], answer["id"]) == (code, id)
        assert answer["error"]["data"]["kind"] == ("parse_error" if code == PARSE else "invalid_request")
        await assert_usable(bench, link)


async def test_lines_may_come_in_any_pieces(tmp_path: Path) -> None:
    """h11's habit: whole, byte by byte, and several at once."""
    call = b'{"id":%d,"method":"caller_tool","params":{"tool":"send"}}\n'
    async with open_link_bench(tmp_path) as bench:
        link = await bench.connect()
        for byte in call % 1:
            await link.stream.send_all(bytes([byte]))
        await link.stream.send_all(b"\n  \n\t\n\r\n" + call % 2 + b"\n" + call % 3 + b'{"id":4,"method":')
        await link.stream.send_all(b'"caller_tool","params":{"tool":"send"}}\r\n')
        for id in (1, 2, 3, 4):
            await bench.answer(await bench.next_request(), result=id)
            assert await link.receive() == {"jsonrpc": "2.0", "id": id, "result": id}


async def test_the_last_line_needs_no_newline(tmp_path: Path) -> None:
    """A client that goes has its requests cancelled: it was heard all the same."""
    async with open_link_bench(tmp_path) as bench:
        link = await bench.connect()
        await link.stream.send_all(b'{"id":1,"method":"caller_tool","params":{"tool":"send"}}')
        await trio.aclose_forcefully(link.stream)
        await bench.next_request()
        await wait_all_tasks_blocked()
        assert bench.closings() == [("caller_tool_cancelled", "agent_gone")]


@pytest.mark.parametrize("over", [0, 1])
async def test_a_line_of_the_longest_kind_passes(tmp_path: Path, over: int) -> None:
    async with open_link_bench(tmp_path) as bench:
        link = await bench.connect()
        head, tail = b'{"id":1,"method":"caller_tool","params":{"tool":"send","arguments":{"x":"', b'"}}}'
        filling = MAX_BYTES + ENVELOPE_ALLOWANCE + over - len(head) - len(tail)
        await link.send_line(head + b"x" * filling + tail)
        if over:
            assert await error_of(link) == (INVALID, None)
        else:
            assert len((await bench.next_request())["arguments"]["x"]) == filling


async def test_an_oversized_line_is_refused_at_once_and_takes_no_memory(tmp_path: Path) -> None:
    """HAZARDS F22: told as soon as it is too long; the rest is discarded while it comes."""
    async with open_link_bench(tmp_path) as bench:
        link = await bench.connect()
        chunk = b"x" * 65536
        tracemalloc.start()
        try:
            for number in range(200):
                await link.stream.send_all(chunk)
                await wait_all_tasks_blocked()
                if number == 1:
                    assert await error_of(link) == (INVALID, None)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 1024 * 1024
        await link.stream.send_all(b"\n")
        await assert_usable(bench, link)


async def test_depth_is_counted_in_payloads_too(tmp_path: Path) -> None:
    """HAZARDS F23: 128 levels pass, unchanged; 129 do not."""
    async with open_link_bench(tmp_path) as bench:
        link = await bench.connect()
        for levels in (125, 126):
            value = b"[" * levels + b"]" * levels
            await link.send_line(
                b'{"id":1,"method":"caller_tool","params":{"tool":"send","arguments":{"x":%b}}}' % value
            )
            if levels == 125:
                request = await bench.next_request()
                assert json.dumps(request["arguments"]["x"]).encode() == value
                await bench.answer(request, result=request["arguments"])
                assert (await link.receive())["result"] == request["arguments"]
            else:
                assert await error_of(link) == (PARSE, None)


async def test_payloads_pass_as_they_were_spelled(tmp_path: Path) -> None:
    """WIRE section 1: "with their number spelling, key order and Unicode kept"."""
    payload = '{"b":1.10,"a":1e400,"Z":-0,"é":"\\u00e9\\n","":[ ],"long":12345678901234567890123}'
    async with open_link_bench(tmp_path) as bench:
        link = await bench.connect()
        message = f'{{"id":1,"method":"caller_tool","params":{{"tool":"send","arguments":{payload}}}}}'
        await link.send_line(message.encode())
        await wait_all_tasks_blocked()
        (entry,) = bench.session.relay.pending_entries()
        assert f'"arguments":{payload}'.encode() in entry.data
        bench.session.relay.resolve(json.loads(entry.data)["request_id"], payload.encode())
        assert await link.receive_line() == f'{{"jsonrpc":"2.0","id":1,"result":{payload}}}'.encode()


# Ids


@pytest.mark.parametrize(
    ("sent", "answered"),
    [
        ("1", "1"),
        ("1.0", "1.0"),
        ("-7", "-7"),
        ("1e3", "1e3"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ('"1"', '"1"'),
        ('"\\u0031"', '"1"'),
        ('""', '""'),
        ('"é\\n"', '"é\\n"'),
        ("null", "null"),
    ],
)
async def test_an_id_comes_back_as_it_was(tmp_path: Path, sent: str, answered: str) -> None:
    async with open_link_bench(tmp_path) as bench:
        link = await bench.connect()
        await link.send_line(f'{{"id":{sent},"method":"caller_tool","params":{{"tool":"send"}}}}'.encode())
        await bench.answer(await bench.next_request(), result=1)
        assert await link.receive_line() == f'{{"jsonrpc":"2.0","id":{answered},"result":1}}'.encode()


async def test_a_request_without_id_and_jsonrpc_is_answered_with_null(tmp_path: Path) -> None:
    async with open_link_bench(tmp_path) as bench:
        link = await bench.connect()
        for _ in range(2):
            await link.send_line(b'{"method":"caller_tool","params":{"tool":"send"}}')
        for result in ("a", "b"):
            await bench.answer(await bench.next_request(), result=result)
            assert await link.receive() == {"jsonrpc": "2.0", "id": None, "result": result}
        await link.send_line(b'{"method":"nope"}')
        assert await error_of(link) == (-32601, None)


async def test_an_id_in_use_is_refused_and_the_first_request_goes_on(tmp_path: Path) -> None:
    """HAZARDS F11: ids of different types are different ids."""
    async with open_link_bench(tmp_path) as bench:
        link = await bench.connect()
        ids = ["1", "1.0", '"1"', '"1.0"', "10e-1"]
        line = '{"id":%s,"method":"caller_tool","params":{"tool":"send"}}'
        for id in ids:
            await link.send_line((line % id).encode())
        requests = [await bench.next_request() for _ in ids]
        for id in [*ids, '"\\u0031"']:
            await link.send_line((line % id).encode())
            answer = await link.receive()
            assert answer["error"]["code"] == INVALID
            assert "still in use" in answer["error"]["message"]
        for id, request in zip(ids, requests, strict=True):
            await bench.answer(request, result=1)
            assert await link.receive_line() == f'{{"jsonrpc":"2.0","id":{id},"result":1}}'.encode()
        await assert_usable(bench, link, id=1)


async def test_two_links_may_use_the_same_id(tmp_path: Path) -> None:
    """HAZARDS T6: the key is (connection, id)."""
    async with open_link_bench(tmp_path) as bench:
        links = [await bench.connect() for _ in range(3)]
        requests = []
        for number, link in enumerate(links):
            await link.call("send", {"n": number}, id=1)
            requests.append(await bench.next_request())
        for request in reversed(requests):
            await bench.answer(request, result=request["arguments"])
        assert [(await link.receive())["result"] for link in links] == [{"n": 0}, {"n": 1}, {"n": 2}]


# What is refused


@pytest.mark.parametrize(
    ("message", "code", "field"),
    [
        ({"method": "nope"}, -32601, None),
        ({"method": "caller_tool_response"}, -32601, None),
        ({"method": "tools/call"}, -32601, None),
        ({"method": "x" * 3000}, -32601, None),
        ({"method": "caller_tool", "params": {"tool": "x" * 3000}}, -32602, "tool"),
        ({"method": "caller_tool"}, -32602, "params"),
        ({"method": "caller_tool", "params": None}, -32602, "params"),
        ({"method": "caller_tool", "params": []}, -32602, "params"),
        ({"method": "caller_tool", "params": {}}, -32602, "params"),
        ({"method": "caller_tool", "params": {"tool": 5}}, -32602, "params"),
        ({"method": "caller_tool", "params": {"tool": "nope"}}, -32602, "tool"),
        ({"method": "caller_tool", "params": {"tool": "send", "arguments": []}}, -32602, "arguments"),
        ({"method": "caller_tool", "params": {"tool": "send", "arguments": "x"}}, -32602, "arguments"),
    ],
)
async def test_a_request_that_is_refused_says_why(tmp_path: Path, message: Any, code: int, field: str | None) -> None:
    async with open_link_bench(tmp_path, "send", "get") as bench:
        link = await bench.connect()
        await link.send({"jsonrpc": "2.0", "id": 7, **message})
        answer = await link.receive()
        assert (answer["id"], answer["error"]["code"]) == (7, code)
        assert answer["error"]["data"].get("field") == field
        if field == "tool":
            assert "declared: send, get" in answer["error"]["message"]
        assert len(answer["error"]["message"]) < 400
        assert bench.session.log.last_index == 2, "the caller never hears of it"
        await assert_usable(bench, link)


@pytest.mark.parametrize("arguments", ["", ',"arguments":null', ',"arguments":{}', ',"arguments": null '])
async def test_missing_and_null_arguments_are_an_empty_object(tmp_path: Path, arguments: str) -> None:
    async with open_link_bench(tmp_path) as bench:
        link = await bench.connect()
        await link.send_line(f'{{"id":1,"method":"caller_tool","params":{{"tool":"send"{arguments}}}}}'.encode())
        assert (await bench.next_request())["arguments"] == {}


async def test_more_than_may_be_pending_is_refused_at_once(tmp_path: Path) -> None:
    async with open_link_bench(tmp_path, max_pending=2) as bench:
        link = await bench.connect()
        for id in (1, 2, 3):
            await link.call("send", id=id)
        assert await error_of(link) == (-32006, 3)
        await bench.answer(await bench.next_request(), result=1)
        assert (await link.receive())["id"] == 1
        await link.call("send", id=4)
        await bench.next_request()
        assert (await bench.next_request())["tool"] == "send"


# Cancelling


@pytest.mark.parametrize(
    "params", [b'{"requestId":99}', b'{"requestId":null}', b'{"requestId":{}}', b"{}", b"null", b"[]", b'"x"', b""]
)
async def test_a_cancellation_of_nothing_is_ignored(tmp_path: Path, params: bytes) -> None:
    """HAZARDS F10: before, and of what never was."""
    async with open_link_bench(tmp_path) as bench:
        link = await bench.connect()
        await link.call("send", id=1)
        await link.send_line(b'{"method":"notifications/cancelled"%b}' % (b',"params":%b' % params if params else b""))
        await bench.answer(await bench.next_request(), result=1)
        assert (await link.receive())["result"] == 1


@pytest.mark.parametrize(("id", "named"), [("1", "1"), ('"1"', '"\\u0031"'), ("1.0", "1.0"), ('""', '""')])
async def test_a_cancellation_ends_the_request_and_is_answered(tmp_path: Path, id: str, named: str) -> None:
    async with open_link_bench(tmp_path) as bench:
        link = await bench.connect()
        await link.send_line(f'{{"id":{id},"method":"caller_tool","params":{{"tool":"send"}}}}'.encode())
        request = await bench.next_request()
        cancelled = f'{{"method":"notifications/cancelled","params":{{"requestId":{named},"reason":"bored"}}}}'
        await link.send_line(cancelled.encode())
        answer = await link.receive()
        assert (json.dumps(answer["id"]), answer["error"]["code"]) == (id, -32800)
        assert answer["error"]["data"] == {"kind": "cancelled", "retry_safe": False}
        assert bench.closings() == [("caller_tool_cancelled", "agent_cancelled")]
        with pytest.raises(Exception, match="already ended"):
            await bench.answer(request, result=1)
        await link.send_line(cancelled.encode())
        await assert_usable(bench, link)


async def test_a_cancellation_names_an_id_of_its_own_link_and_type(tmp_path: Path) -> None:
    async with open_link_bench(tmp_path) as bench:
        link, other = await bench.connect(), await bench.connect()
        await link.call("send", id=1)
        request = await bench.next_request()
        for cancelling, id in ((other, 1), (link, "1"), (link, 1.0)):
            await cancelling.send({"method": "notifications/cancelled", "params": {"requestId": id}})
        await wait_all_tasks_blocked()
        await bench.answer(request, result=1)
        assert (await link.receive())["result"] == 1


@pytest.mark.parametrize("method", ["notifications/initialized", "notifications/", "notifications/x"])
async def test_other_notifications_are_ignored_also_with_an_id(tmp_path: Path, method: str) -> None:
    async with open_link_bench(tmp_path) as bench:
        link = await bench.connect()
        await link.send({"method": method})
        await link.send({"id": 1, "method": method, "params": {"x": 1}})
        await assert_usable(bench, link, id=1)


# Concurrency and the end of a link


async def test_a_slow_call_does_not_delay_fast_ones(tmp_path: Path, autojump_clock: MockClock) -> None:
    """FIELD section 2, defects 1 and 2; HAZARDS F12: one of 60 s beside a hundred."""
    async with open_link_bench(tmp_path, "slow", "send") as bench:
        link = await bench.connect()
        await link.call("slow", id="slow")
        await bench.next_request()
        for number in range(100):
            await link.call("send", {"n": number}, id=number)
        requests = [await bench.next_request() for _ in range(100)]
        for request in reversed(requests):
            await bench.answer(request, result=request["arguments"]["n"])
        answers = [await link.receive() for _ in range(100)]
        assert {answer["id"]: answer["result"] for answer in answers} == {number: number for number in range(100)}
        assert trio.current_time() == 0.0
        await trio.sleep_until(59.9)
        assert await error_of(link) == (-32004, "slow")
        assert trio.current_time() == 60.0


async def test_a_link_that_closes_cancels_its_own_requests(tmp_path: Path, autojump_clock: MockClock) -> None:
    """HAZARDS F9: at once, and the late answer is told so."""
    async with open_link_bench(tmp_path) as bench:
        link, other = await bench.connect(), await bench.connect()
        for number in range(3):
            await link.call("send", id=number)
        requests = [await bench.next_request() for _ in range(3)]
        await other.call("send", id=0)
        requests.append(await bench.next_request())
        await link.stream.aclose()
        await wait_all_tasks_blocked()
        assert bench.closings() == [("caller_tool_cancelled", "agent_gone")] * 3
        assert trio.current_time() == 0.0
        with pytest.raises(Exception, match="already ended"):
            await bench.answer(requests[0], result=1)
        await bench.answer(requests[3], result="mine")
        assert (await other.receive())["result"] == "mine"
        assert len(bench.session.on_declared) == 1


async def test_a_link_may_be_idle_for_hours(tmp_path: Path, autojump_clock: MockClock) -> None:
    """FIELD section 2, defect 4: nothing dies for want of traffic."""
    async with open_link_bench(tmp_path) as bench:
        link = await bench.connect()
        await trio.sleep(10 * 3600)
        await assert_usable(bench, link)


async def test_a_client_that_does_not_read_is_cut_and_harms_nobody(tmp_path: Path, autojump_clock: MockClock) -> None:
    """HAZARDS G5: its link is closed rather than its answers kept."""
    async with open_link_bench(tmp_path) as bench:
        stalled, healthy = await bench.connect(clogged=True), await bench.connect()
        for id in (1, 2):
            await stalled.call("send", id=id)
        requests = [await bench.next_request() for _ in range(2)]
        await bench.answer(requests[0], result="never read")
        for second in range(9):
            await trio.sleep(1)
            await assert_usable(bench, healthy, id=second)
        assert len(bench.session.on_declared) == 2
        await trio.sleep(WRITE_SECONDS - 8)
        assert len(bench.session.on_declared) == 1, "the stalled link was closed"
        assert bench.closings()[-1] == ("caller_tool_cancelled", "agent_gone")
        await assert_usable(bench, healthy)


async def test_a_client_that_sends_and_does_not_read_takes_no_memory(tmp_path: Path, autojump_clock: MockClock) -> None:
    """While a refusal waits to be read, nothing more is read."""
    async with open_link_bench(tmp_path) as bench:
        link = await bench.connect(clogged=True)
        sent = 0
        with trio.move_on_after(5):
            while True:
                await link.send_line(b"nope")
                sent += 1
        assert sent < 5


# What a link is told


async def test_the_configs_come_first(tmp_path: Path) -> None:
    nothing = packs_of(allowed=[])
    tools = [{"name": "send", "extra": 1, "timeout_seconds": 5}, "get"]
    async with open_link_bench(tmp_path, *tools, packs=nothing) as bench:
        link = await bench.connect()
        assert link.configs == [
            {
                "jsonrpc": "2.0",
                "type": "caller_tools_config",
                "params": {
                    "caller_id": "myapp",
                    "tools": [
                        {"name": "send", "extra": 1, "timeout_seconds": 5},
                        {"name": "get", "timeout_seconds": 60},
                    ],
                },
            },
            {"jsonrpc": "2.0", "type": "pack_tools_config", "params": {"tools": []}},
        ]


async def test_without_a_declaration_the_config_is_empty(tmp_path: Path) -> None:
    async with open_link_bench(tmp_path) as bench:
        bench.session.relay.declaration = None
        link = await bench.connect()
        assert link.configs[0]["params"] == {"caller_id": None, "tools": []}


async def test_a_new_declaration_reaches_every_link(tmp_path: Path) -> None:
    async with open_link_bench(tmp_path) as bench:
        links = [await bench.connect() for _ in range(3)]
        await links[0].call("send", id=1)
        request = await bench.next_request()
        await bench.declare("ant", "get")
        for link in links:
            config = await link.receive()
            assert (config["type"], config["params"]["caller_id"]) == ("caller_tools_config", "ant")
        await links[1].call("send", id=1)
        assert await error_of(links[1]) == (-32602, 1)
        await bench.answer(request, result="old")
        assert (await links[0].receive())["result"] == "old"


async def test_of_many_declarations_a_slow_client_gets_the_newest(tmp_path: Path, autojump_clock: MockClock) -> None:
    """HAZARDS F31: "updates coalesced"."""
    async with open_link_bench(tmp_path) as bench:
        link = await bench.connect(clogged=True)
        for number in range(100):
            await bench.declare(f"ant{number}", "get")
        await wait_all_tasks_blocked()
        heard = []
        with trio.move_on_after(1):
            while True:
                heard.append((await link.receive())["params"]["caller_id"])
        assert heard[-1] == "ant99"
        assert len(heard) <= 2


async def test_progress_reaches_its_request(tmp_path: Path) -> None:
    async with open_link_bench(tmp_path) as bench:
        link, other = await bench.connect(), await bench.connect()
        await link.send_line(b'{"id":"\\u0061","method":"caller_tool","params":{"tool":"send"}}')
        request = await bench.next_request()
        await bench.report(request, 0.5, total=2, message="half\nway")
        assert await link.receive() == {
            "jsonrpc": "2.0",
            "method": "notifications/progress",
            "params": {"request": "a", "progress": 0.5, "total": 2, "message": "half\nway"},
        }
        await bench.report(request, 1)
        params = (await link.receive())["params"]
        assert params == {"request": "a", "progress": 1, "total": None, "message": None}
        await bench.answer(request, result=1)
        assert (await link.receive())["result"] == 1
        await assert_usable(bench, other)


async def test_of_many_reports_a_slow_client_gets_the_newest_and_none_after_the_answer(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_link_bench(tmp_path) as bench:
        link = await bench.connect(clogged=True)
        for id in ("a", "b"):
            await link.call("send", id=id)
        requests = [await bench.next_request() for _ in range(2)]
        for number in range(100):
            for request in requests:
                await bench.report(request, number)
        await wait_all_tasks_blocked()
        for request in requests:
            await bench.answer(request, result=1)
        heard = []
        with trio.move_on_after(1):
            while True:
                message = await link.receive()
                heard.append(message.get("id") or (message["params"]["request"], message["params"]["progress"]))
        reports = [entry for entry in heard if isinstance(entry, tuple)]
        assert len(reports) <= 3
        assert {"a", "b"} <= set(heard)
        for id, _ in reports[1:]:
            assert heard.index(id) > max(at for at, entry in enumerate(heard) if entry in reports and entry[0] == id)


async def test_progress_of_a_request_without_an_id_goes_nowhere(tmp_path: Path) -> None:
    async with open_link_bench(tmp_path) as bench:
        link = await bench.connect()
        await link.send_line(b'{"method":"caller_tool","params":{"tool":"send"}}')
        request = await bench.next_request()
        await bench.report(request, 1)
        await bench.answer(request, result=1)
        assert await link.receive() == {"jsonrpc": "2.0", "id": None, "result": 1}


# The session's end


async def test_the_sessions_end_answers_every_request_before_the_link_closes(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_link_bench(tmp_path) as bench:
        links = [await bench.connect() for _ in range(2)]
        for link in links:
            for id in (1, 2):
                await link.call("send", id=id)
        for _ in range(4):
            await bench.next_request()
        bench.session.end("ended")
        for connection in bench.connections:
            connection.finish()
        for link in links:
            answers = [await link.receive() for _ in range(2)]
            assert {answer["id"] for answer in answers} == {1, 2}
            assert {answer["error"]["code"] for answer in answers} == {-32800}
            assert {answer["error"]["data"]["kind"] for answer in answers} == {"cancelled"}
            assert await has_closed(link)
        assert trio.current_time() == 0.0
        assert bench.session.on_declared == []


async def test_a_finished_link_closes_at_once_where_nothing_is_pending(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_link_bench(tmp_path) as bench:
        link = await bench.connect()
        bench.connections[0].finish()
        assert await has_closed(link)
        assert trio.current_time() == 0.0


async def test_a_call_in_a_session_that_has_ended_is_a_conflict(tmp_path: Path) -> None:
    async with open_link_bench(tmp_path) as bench:
        link = await bench.connect()
        bench.session.end("ended")
        await link.call("send")
        answer = await link.receive()
        assert (answer["error"]["code"], answer["error"]["data"]["retry_safe"]) == (-32007, True)


# The greeting of older clients


@pytest.mark.parametrize(
    "greeting",
    [b"OUBLIETTE-DOWNSTREAM default", b"OUBLIETTE-DOWNSTREAM default\r", b"OUBLIETTE-DOWNSTREAM   default  "],
)
async def test_the_greeting_of_the_sessions_own_project_is_ignored(tmp_path: Path, greeting: bytes) -> None:
    async with open_link_bench(tmp_path) as bench:
        link = await bench.connect()
        await link.send_line(greeting)
        await assert_usable(bench, link)


@pytest.mark.parametrize("project", [b"other", b"", b"\xff", b"default2", b"x" * 3000])
async def test_the_greeting_of_another_project_closes_the_link(tmp_path: Path, project: bytes) -> None:
    """HAZARDS T10: it proves nothing, so it may only agree."""
    async with open_link_bench(tmp_path) as bench:
        link = await bench.connect()
        await link.send_line(b"OUBLIETTE-DOWNSTREAM " + project)
        answer = await link.receive()
        assert (answer["id"], answer["error"]["code"]) == (None, -32002)
        assert len(answer["error"]["message"]) < 400
        assert await has_closed(link)


async def test_a_greeting_counts_as_the_first_line_alone(tmp_path: Path) -> None:
    async with open_link_bench(tmp_path) as bench:
        link = await bench.connect()
        await link.send_line(b'{"id":1,"method":"nope"}')
        assert await error_of(link) == (-32601, 1)
        await link.send_line(b"OUBLIETTE-DOWNSTREAM other")
        assert await error_of(link) == (PARSE, None)
        await assert_usable(bench, link)
