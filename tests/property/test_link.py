"""Whatever an agent sends, its link answers or ignores it and stays usable (HAZARDS G6, T29 to T31)."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from oubliette.link.methods import METHODS as DAEMON_METHODS
from oubliette.protocol.link import GREETING
from tests.helpers.link_bench import LinkBench, open_link_bench

VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=5,
)
# Each example makes folders and waits for the disk, where there is one.
IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # a folder of its own in it
# Nothing that would wait longer than the test does, and no deletion of the key itself.
TOOLS = st.sampled_from(
    ["session_list", "session_get", "session_message", "token_list", "caller_tool_response", "nope"]
)
ARGUMENTS = st.dictionaries(st.sampled_from(["message", "session_id", "limit", "context"]), VALUES, max_size=2)
PARAMS = st.one_of(
    VALUES,
    st.fixed_dictionaries({}, optional={"tool": st.one_of(st.just("send"), VALUES), "arguments": VALUES}),
    st.fixed_dictionaries({"requestId": st.one_of(st.integers(0, 3), VALUES)}),
    st.fixed_dictionaries(
        {"api_key": st.one_of(st.just("KEY"), VALUES)},
        optional={"tool": st.one_of(TOOLS, VALUES), "arguments": st.one_of(ARGUMENTS, VALUES)},
    ),
)
METHODS = st.sampled_from(
    ["caller_tool", *sorted(DAEMON_METHODS), "notifications/cancelled", "notifications/x", "nope", ""]
)
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.one_of(st.just("2.0"), VALUES),
        "id": st.one_of(st.integers(0, 3), VALUES),
        "method": st.one_of(METHODS, VALUES),
        "params": PARAMS,
        "result": VALUES,
        "error": VALUES,
    },
).map(lambda message: json.dumps(message).encode())
LINES = st.one_of(
    st.binary(max_size=40).map(lambda data: data.replace(b"\n", b" ")),
    MESSAGES,
    MESSAGES.flatmap(lambda line: st.integers(0, len(line)).map(lambda end: line[:end])),
    st.tuples(MESSAGES, st.integers(0, 200), st.integers(0, 255)).map(
        lambda parts: _with_byte(*parts).replace(b"\n", b" ")
    ),
)


def _with_byte(line: bytes, at: int, byte: int) -> bytes:
    """The line with one of its bytes replaced."""
    at %= max(1, len(line))
    return line[:at] + bytes([byte]) + line[at + 1 :]


def _has_no_greeting(lines: list[bytes]) -> bool:
    """A greeting that names another project closes the link, on purpose."""
    return not any(line.startswith(GREETING) for line in lines)


async def feed(lines: list[bytes], cut: int) -> None:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        async with open_link_bench(Path(folder)) as bench:
            link = await bench.connect()
            key, _ = await bench.domain.services.tokens.create("key", "admin")
            data = b"".join(line.replace(b'"KEY"', json.dumps(key).encode()) + b"\n" for line in lines)
            for start in range(0, len(data), cut):
                await link.stream.send_all(data[start : start + cut])
            await link.send({"id": "last", "method": "caller_tool", "params": {"tool": "send"}})
            answers = await answers_before_last(bench, link)
            assert not [line for line in answers if key.encode() in line]
            await check_answers(bench, [json.loads(line) for line in answers])


async def answers_before_last(bench: LinkBench, link: Any) -> list[bytes]:
    """Answers every call, and returns all lines up to the answer of the last one."""
    await wait_all_tasks_blocked()
    for entry in bench.session.relay.pending_entries():
        bench.session.relay.resolve(json.loads(entry.data)["request_id"], b'"done"')
    lines = []
    while (line := await link.receive_line()) != b'{"jsonrpc":"2.0","id":"last","result":"done"}':
        lines.append(line)
    return lines


async def check_answers(bench: LinkBench, answers: list[Any]) -> None:
    for answer in answers:
        assert answer.keys() == {"jsonrpc", "id", "result"} or answer.keys() == {"jsonrpc", "id", "error"}
        if "error" in answer:
            assert answer["error"]["code"] in (-32700, -32600, -32601, -32602, -32800, -32001)
            assert answer["error"]["data"]["kind"]
    assert bench.session.relay.pending_entries() == []
    assert bench.session.status == "running"


@settings(max_examples=150, deadline=None)
@given(lines=st.lists(LINES, max_size=8).filter(_has_no_greeting), cut=st.sampled_from([1, 7, 65536]))
@example(lines=[b'{"method":"notifications/cancelled","params":{"requestId":"\\ud800"}}'], cut=1)
@example(
    lines=[
        b'{"id":1,"method":"oubliette_tools","params":{"api_key":"KEY"}}',
        b'{"id":1,"method":"oubliette_call_tool","params":{"api_key":"KEY","tool":"session_list","arguments":{"limit":0}}}',
        b'{"id":1,"method":"oubliette_call_tool","params":{"api_key":"KEY","tool":"session_message","arguments":null}}',
        b'{"method":"notifications/cancelled","params":{"requestId":1}}',
    ],
    cut=1,
)
@example(lines=[b'{"id":"\\ud800","method":"caller_tool"}', b"[" * 4000, b'{"a":' * 1000], cut=65536)
def test_a_link_survives_whatever_it_is_sent(lines: list[bytes], cut: int) -> None:
    trio.run(feed, lines, cut, clock=MockClock(autojump_threshold=0))
