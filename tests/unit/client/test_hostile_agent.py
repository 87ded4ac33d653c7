"""What is no message is refused, and the conversation goes on (WIRE section 1, "Framing"; HAZARDS F22, F23, T30)."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from oubliette_client import era, messages, source
from oubliette_client.requests import MAX_RUNNING
from oubliette_client.streams import MAX_LINE_BYTES

from oubliette.protocol.revisions import NEWEST
from tests.unit.client.harness import STATELESS, client, ready_client

DEEP = b"[" * 128 + b"]" * 128


@pytest.mark.parametrize(
    ("line", "code", "id"),
    [
        (b"no JSON", -32700, None),
        (b'{"id":1,"method":"ping"', -32700, None),
        (b'{"id":1,"method":"ping"}}', -32700, None),
        (b'{"id":NaN,"method":"ping"}', -32700, None),
        (b'{"id":1,"method":"ping","params":{"a":"\xff"}}', -32700, None),
        (b'{"id":1,"method":"p\xffing"}', -32700, None),
        (b'{"id":1,"method":"ping","params":{"a":"\\ud800"}}', -32700, None),
        (b'{"id":1,"method":"ping","params":%b}' % DEEP, -32700, None),
        (b"[" * 1_000_000, -32700, None),
        (b"5", -32600, None),
        (b'"x"', -32600, None),
        (b"null", -32600, None),
        (b"{}", -32600, None),
        (b'{"id":1}', -32600, 1),
        (b'{"id":1,"method":5}', -32600, 1),
        (b'{"id":1,"method":null,"result":{}}', -32600, 1),
        (b'{"id":null,"method":"ping"}', -32600, None),
        (b'{"id":true,"method":"ping"}', -32600, None),
        (b'{"id":[1],"method":"ping"}', -32600, None),
        (b'{"id":{},"method":"ping"}', -32600, None),
        (b'{"id":1,"method":"ping","method":"tools/list"}', -32600, None),
        (b'{"id":1,"method":"ping","\\u0069d":2}', -32600, None),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600, 1),
        (b"x" * (MAX_LINE_BYTES + 1), -32600, None),
        (b"[]", -32600, None),
        (b'[{"id":1,"method":"ping"}', -32700, None),
        (b'[{"id":1,"method":"ping"}]', -32600, None),
    ],
)
async def test_what_is_no_message_is_refused_and_the_next_one_served(line: bytes, code: int, id: Any) -> None:
    async with client() as (agent, _):
        await agent.send(line)
        answer = await agent.receive()
        assert (answer["error"]["code"], answer["id"]) == (code, id)
        assert answer["error"]["data"]["kind"] in {"parse_error", "invalid_request"}
        await agent.ask("next", "ping")
        assert (await agent.receive())["id"] == "next"


@pytest.mark.parametrize("size", [MAX_LINE_BYTES - 1, MAX_LINE_BYTES])
async def test_a_line_up_to_the_bound_is_read(size: int) -> None:
    async with client() as (agent, _):
        start = b'{"id":1,"method":"ping","params":{"a":"'
        await agent.send(start + b"x" * (size - len(start) - 3) + b'"}}')
        assert (await agent.receive())["result"] == {}


async def test_depth_128_is_read() -> None:
    async with client() as (agent, _):
        await agent.send(b'{"id":1,"method":"ping","params":{"a":%b}}' % DEEP[2:-2])
        assert (await agent.receive())["result"] == {}


async def test_blank_lines_are_ignored() -> None:
    async with client() as (agent, _):
        await agent.send(b"", b"  \t", b"\r", b'{"id":1,"method":"ping"}\r')
        assert (await agent.receive())["id"] == 1


async def test_a_message_in_single_bytes_is_read() -> None:
    async with client() as (agent, _):
        for byte in b'{"id":1,"method":"ping"}\n':
            await agent.stream.send_all(bytes([byte]))
        assert (await agent.receive())["id"] == 1


async def test_the_message_of_a_refusal_holds_an_excerpt_alone() -> None:
    async with client() as (agent, _):
        await agent.ask(1, "x" * 1_000_000)
        assert len((await agent.receive())["error"]["message"]) < 200


async def test_line_ends_in_names_stay_within_their_line() -> None:
    """HAZARDS T28."""
    name = "a\nb\r\u2028\x85c"
    async with ready_client("send") as (agent, link, _):
        await agent.ask(name, "tools/call", {"name": name})
        answer = await agent.receive()
        assert (answer["id"], answer["error"]["code"]) == (name, -32602)
        await agent.call(1, "ant_send", {name: name})
        request = await link.receive()
        assert request["params"]["arguments"] == {name: name}
        await link.fail(request["id"], -32000, name)
        assert (await agent.receive())["result"]["content"][0]["text"] == name


METHODS = ["initialize", "tools/call", "tools/list", "ping", "server/discover", "subscriptions/listen"]
META: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        era.PROTOCOL_VERSION: st.sampled_from([STATELESS, "2025-11-25", None, 5]),
        era.CLIENT_CAPABILITIES: st.sampled_from([{}, None, "{"]),
    },
)
# Messages with something wrong in them, and plain noise.
ANYTHING = st.one_of(
    st.binary(max_size=80),
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["id", "method", "params", "jsonrpc", "name", "_meta", "requestId"]), inner
            )
        ),
        max_leaves=8,
    ).map(lambda value: json.dumps(value).encode()),
    st.fixed_dictionaries(
        {"id": st.integers(), "method": st.sampled_from(METHODS)},
        optional={"params": st.dictionaries(st.sampled_from(["name", "arguments", "_meta"]), st.text() | st.none())},
    ).map(lambda value: json.dumps(value).encode()),
    st.fixed_dictionaries(
        {"id": st.integers(), "method": st.sampled_from(METHODS), "params": st.fixed_dictionaries({"_meta": META})},
    ).map(lambda value: json.dumps(value).encode()),
)


def _read(data: bytes) -> list[era.Request | None]:
    text = messages.text_untrusted(data)
    items = messages.batch_untrusted(text) if messages.is_batch(text) else [text]
    found = [messages.message_untrusted(item) for item in items]
    return [None if message is None else era.read(message, message.id or messages.NULL, NEWEST) for message in found]


@settings(deadline=None)
@given(data=ANYTHING)
def test_bytes_of_the_agent_are_messages_or_a_request_error(data: bytes) -> None:
    try:
        found = _read(data)
    except messages.RequestError as failure:
        event(f"refused with {failure.code}")
        found = []
    assert all(request is None or request.revision.stateless is _is_enveloped(request) for request in found)


def _is_enveloped(request: era.Request) -> bool:
    return STATELESS in source.fields(request.params.get("_meta")).get(era.PROTOCOL_VERSION, "")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(lines=st.lists(ANYTHING, max_size=20))
def test_no_lines_end_the_client(lines: list[bytes]) -> None:
    """HAZARDS T31."""

    async def conversation() -> None:
        with trio.fail_after(5):
            async with client() as (agent, daemon):
                await (await daemon.accept()).configure("send")
                await agent.send(*lines, b"", b'{"id":"the last","method":"ping"}')
                while (await agent.receive_line()) != b'{"jsonrpc":"2.0","id":"the last","result":{}}':
                    pass

    trio.run(conversation)


async def test_a_batch_is_answered_in_one_array() -> None:
    async with ready_client("send", revision="2025-03-26") as (agent, link, _):
        await agent.send(
            json.dumps(
                [
                    {"id": 1, "method": "tools/call", "params": {"name": "ant_send"}},
                    {"method": "notifications/other"},
                    {"id": 2, "method": "ping"},
                    5,
                    {"id": 3, "result": {}},
                    {"id": 4, "method": "nothing"},
                ]
            ).encode()
        )
        await link.answer(await link.receive(), "done")
        batch = await agent.receive()
        assert {answer["id"]: answer.get("error", {}).get("code") for answer in batch} == {
            1: None,
            2: None,
            None: -32600,
            4: -32601,
        }


@pytest.mark.parametrize("batch", [b'[{"method":"notifications/other"}]', b'[{"id":1,"result":{}},{"method":"x"}]'])
async def test_a_batch_without_requests_is_not_answered(batch: bytes) -> None:
    async with ready_client(revision="2025-03-26") as (agent, _, _):
        await agent.send(batch)
        await agent.ask("next", "ping")
        assert (await agent.receive())["id"] == "next"


async def test_a_cancelled_request_is_missing_from_its_batch() -> None:
    async with ready_client("send", revision="2025-03-26") as (agent, link, _):
        calls = [{"id": id, "method": "tools/call", "params": {"name": "ant_send"}} for id in (1, 2)]
        await agent.send(json.dumps(calls).encode())
        first, second = await link.receive(), await link.receive()
        await agent.cancel(1)
        assert (await link.receive())["method"] == "notifications/cancelled"
        await link.answer(first, "late")
        await link.answer(second, "done")
        assert [answer["id"] for answer in await agent.receive()] in ([1], [2])


@pytest.mark.parametrize("batch", [b"[]", b"[%b]" % b",".join([b"1"] * (MAX_RUNNING + 1))])
async def test_a_batch_of_no_or_too_many_messages_is_refused(batch: bytes) -> None:
    async with ready_client(revision="2025-03-26") as (agent, _, _):
        await agent.send(batch)
        answer = await agent.receive()
        assert (answer["error"]["code"], answer["id"]) == (-32600, None)
