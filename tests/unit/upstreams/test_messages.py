"""A server's messages, read within bounds, and the events of its streams."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse
from msgspec import Raw

from oubliette.upstreams.http_client import MAX_RETRY_SECONDS, MIN_RETRY_SECONDS, RETRY_SECONDS, Events
from oubliette.upstreams.messages import MAX_ASKED, Ledger, UnreadableError, read_untrusted, write

ANSWER = b'{"jsonrpc":"2.0","id":7,"result":{ "a": 1.10 }}'


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (ANSWER, JSONRPCResponse),
        (b'{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"no"}}', JSONRPCError),
        (b'{"jsonrpc":"2.0","id":7,"method":"ping"}', JSONRPCRequest),
        (b'{"jsonrpc":"2.0","method":"notifications/x"}', JSONRPCNotification),
        (b'{"jsonrpc":"2.0","id":7,"result":null}', JSONRPCError),
        (b'{"jsonrpc":"2.0","id":7}', JSONRPCError),
    ],
)
def test_a_message_is_read(text: bytes, kind: type) -> None:
    assert isinstance(read_untrusted(text, Ledger()), kind)


@pytest.mark.parametrize("text", [b"", b"listening", b"{}", b"[]", b'{"level":"info"}', b'{"jsonrpc":"2.0"}', b"\xff"])
def test_what_is_no_message_is_none(text: bytes) -> None:
    assert read_untrusted(text, Ledger()) is None


@pytest.mark.parametrize("broken", [b"\xff", rb"\ud800", rb"\udc00x"])
def test_half_a_character_costs_a_character(broken: bytes) -> None:
    message = read_untrusted(b'{"jsonrpc":"2.0","id":7,"result":{"a":"b%bc","n":1.5}}' % broken, Ledger())
    assert isinstance(message, JSONRPCResponse)
    assert message.result["a"].replace("\ufffd", "?").replace("x", "") == "b?c"


def test_what_is_nested_too_deep_is_unreadable() -> None:
    with pytest.raises(UnreadableError, match="nested deeper than 128 levels"):
        read_untrusted(b'{"jsonrpc":"2.0","id":7,"result":%b}' % (b'{"a":' * 5000 + b"1" + b"}" * 5000), Ledger())


@given(st.binary(max_size=200) | st.binary(max_size=100).map(lambda more: b'{"jsonrpc":"2.0","id":1,"result":' + more))
def test_no_bytes_raise_anything_else(text: bytes) -> None:
    with suppress(UnreadableError):
        assert read_untrusted(text, Ledger()) is None or text.startswith(b"{")


def test_the_text_of_an_answer_is_kept_where_it_is_wanted() -> None:
    ledger = Ledger()
    ledger.want(7)
    read_untrusted(ANSWER.replace(b"7", b"8"), ledger)
    read_untrusted(ANSWER, ledger)
    assert ledger.take(7) == ANSWER
    assert ledger.take(7) == b""
    read_untrusted(ANSWER, ledger)
    assert ledger.take(7) == b""


def test_an_answer_to_a_number_may_be_to_its_digits() -> None:
    ledger = Ledger()
    ledger.want(7)
    text = ANSWER.replace(b"7", b'"7"')
    read_untrusted(text, ledger)
    assert ledger.take(7) == text


def test_a_server_may_ask_as_long_as_it_is_answered() -> None:
    ledger = Ledger()
    ask = b'{"jsonrpc":"2.0","id":1,"method":"roots/list"}'
    for _ in range(10 * MAX_ASKED):
        read_untrusted(ask, ledger)
        ledger.leave(JSONRPCResponse(jsonrpc="2.0", id=1, result={}))
    for _ in range(MAX_ASKED):
        read_untrusted(ask, ledger)
    with pytest.raises(UnreadableError, match="more than 64 requests"):
        read_untrusted(ask, ledger)


def test_a_message_is_written_on_one_line_with_its_exact_parts() -> None:
    params = {"name": "a\nb", "arguments": Raw(b'{"a":1.10,"b":1e400}')}
    text = write(JSONRPCRequest(jsonrpc="2.0", id=1, method="tools/call", params=params))
    assert b"\n" not in text
    assert b'"arguments":{"a":1.10,"b":1e400}' in text
    assert json.loads(text)["params"]["name"] == "a\nb"
    assert "data" not in json.loads(write(_failure()))["error"]


def _failure() -> Any:
    return read_untrusted(b'{"jsonrpc":"2.0","id":7,"result":null}', Ledger())


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        (b"retry: 2500", 2.5),
        (b"retry:1000", 1.0),
        (b"retry: 0", MIN_RETRY_SECONDS),
        (b"retry: 99999999999999999999", MAX_RETRY_SECONDS),
        (b"retry: 1.5", RETRY_SECONDS),
        (b"retry: -5", RETRY_SECONDS),
        (b"retry:", RETRY_SECONDS),
    ],
)
def test_a_stream_says_when_to_come_back_within_bounds(line: bytes, seconds: float) -> None:
    events = Events()
    assert [event.data for event in events.feed(line + b"\nid: 5\ndata: x\n\n")] == ["x"]
    assert (events.retry, events.last_id) == (seconds, "5")


def test_an_event_without_data_moves_the_place_to_come_back_to() -> None:
    events = Events()
    assert [event.data for event in events.feed(b"id: 5\ndata:\n\n")] == [""]
    assert events.last_id == "5"
