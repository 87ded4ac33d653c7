"""`oubliette.protocol.link` (WIRE section 1: the messages of the link)."""

from __future__ import annotations

import json

import msgspec
import pytest
from msgspec import Raw

from oubliette.protocol.jsonrpc import decode
from oubliette.protocol.link import (
    EMPTY_OBJECT,
    GREETING,
    CallerToolParams,
    CancelledParams,
    caller_tools_config,
    pack_tools_config,
    progress,
)

DECLARATION = Raw(b'{\n  "name": "send",\r\n  "timeout_seconds": 1.10,\n  "x": "a\\n\xe2\x80\xa8"\n}')
COMPACT = b'{"name":"send","timeout_seconds":1.10,"x":"a\\n\xe2\x80\xa8"}'


def test_the_greeting_of_older_clients() -> None:
    assert GREETING == b"OUBLIETTE-DOWNSTREAM"


@pytest.mark.parametrize(
    ("params", "arguments"),
    [
        (b'{"tool":"send","arguments":{"a":1.10, "b":-0}}', b'{"a":1.10, "b":-0}'),
        (b'{"tool":"send","arguments":{}}', b"{}"),
        (b'{"tool":"send"}', b"{}"),
        (b'{"tool":"send","arguments":null}', b"{}"),
        (b'{"tool":"send","arguments": null ,"unknown":1}', b"{}"),
        # Which types a tool takes is for its schema to say.
        (b'{"tool":"send","arguments":[1]}', b"[1]"),
        (b'{"tool":"send","arguments":"null"}', b'"null"'),
    ],
)
def test_caller_tool(params: bytes, arguments: bytes) -> None:
    found = msgspec.json.decode(params, type=CallerToolParams)
    assert found.tool == "send"
    assert bytes(found.arguments) == arguments


@pytest.mark.parametrize("params", [b"{}", b"[]", b"null", b'{"tool":null}', b'{"tool":5}', b'{"Tool":"send"}'])
def test_what_is_no_caller_tool(params: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(params, type=CallerToolParams)


@pytest.mark.parametrize("id", [b"1", b"1.0", b'"1"', b'"a"', b'"\\u0061"', b'"a\\/b"', b'"\\""', b"1e400", b"-0"])
def test_a_cancellation_names_a_request_as_the_request_names_itself(id: bytes) -> None:
    request = decode(b'{"id":%b,"method":"caller_tool"}' % id)
    found = msgspec.json.decode(b'{"requestId":%b}' % id, type=CancelledParams)
    assert bytes(found.request_id) == request.id


def test_an_id_of_another_type_is_another_id() -> None:
    ids = [msgspec.json.decode(b'{"requestId":%b}' % id, type=CancelledParams) for id in (b"1", b"1.0", b'"1"')]
    assert len({bytes(found.request_id) for found in ids}) == 3


def test_a_cancellation_has_to_name_something() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"reason":"x"}', type=CancelledParams)


def test_the_callers_tools_on_one_line_as_declared() -> None:
    line = caller_tools_config("ant", [DECLARATION, EMPTY_OBJECT])
    assert line == (
        b'{"jsonrpc":"2.0","type":"caller_tools_config","params":{"caller_id":"ant","tools":[%b,{}]}}' % COMPACT
    )


def test_without_a_declaration() -> None:
    assert caller_tools_config(None, []) == (
        b'{"jsonrpc":"2.0","type":"caller_tools_config","params":{"caller_id":null,"tools":[]}}'
    )


def test_the_pack_tools_on_one_line() -> None:
    line = pack_tools_config([DECLARATION])
    assert line == b'{"jsonrpc":"2.0","type":"pack_tools_config","params":{"tools":[%b]}}' % COMPACT


@pytest.mark.parametrize("id", [b"7", b'"7"', b"7.0"])
def test_progress_names_the_request_as_its_link_does(id: bytes) -> None:
    line = progress(id, 0.5, None, "half\nway \u2028")
    assert b'"request":%b,' % id in line
    assert b"\n" not in line
    message = decode(line)
    assert (message.method, message.id) == ("notifications/progress", b"")
    assert msgspec.json.decode(message.params) == {
        "request": json.loads(id),
        "progress": 0.5,
        "total": None,
        "message": "half\nway \u2028",
    }
