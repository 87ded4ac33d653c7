"""What holds for every input of the protocol layer (WIRE sections 1 and 4.3; HAZARDS T28, T29, T30, F22, F23).

The references here are written the slow and obvious way: the standard `json` parser, a tokenizer, `bytes.split`.
"""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oubliette.protocol.jsonrpc import (
    INVALID_REQUEST,
    NULL,
    PARSE_ERROR,
    MalformedError,
    Message,
    canonical_id,
    compact,
    decode,
    encode_notification,
    encode_result,
    split_batch,
)
from oubliette.protocol.lines import CLOSED, NEED_DATA, OVERSIZED, LineReader, Signal
from oubliette.protocol.members import DuplicateKeyError, NotAnObjectError, NotJSONError, members
from oubliette.protocol.nesting import MAX_DEPTH, too_deep
from oubliette.protocol.results import call_tool_result, is_call_tool_result
from oubliette.protocol.sse import KEEP_ALIVE, EventDecoder, ServerSentEvent, encode
from tests.property.odd_json import ENVELOPES, IDS, MESSAGES, OBJECTS, RESULTS, VALUES, is_json, mutated, parsed, tokens

# Examples are not kept between runs, and a busy machine is no failure.
few: Final = settings(deadline=None, database=None, max_examples=100)
many: Final = settings(few, max_examples=250)

DATA: Final = st.one_of(st.binary(max_size=60), mutated(MESSAGES), (ENVELOPES | VALUES).map(str.encode))


def same(one: Any, other: Any) -> bool:
    """Equal, and of one order: `==` of dicts does not look at it."""
    return json.dumps(one) == json.dumps(other)


# --- JSON-RPC --------------------------------------------------------------------------------------------------------


def outcome(data: bytes) -> Message | MalformedError:
    """STYLE, "What to absorb", 4: what touches peer bytes raises one exception type, so no other is caught here."""
    try:
        return decode(data)
    except MalformedError as error:
        return error


@many
@given(DATA)
@example(b'{"id":"\\ud800","method":"m"}')
@example(b'{"method":5,"id":"\\ud800"}')
@example(b'{"method":"m","id":1,"i\\u0064":1')
def test_decode_raises_malformed_error_alone_and_agrees_with_json(data: bytes) -> None:
    found = outcome(data)
    if isinstance(found, MalformedError):
        assert found.code == (INVALID_REQUEST if is_json(data) else PARSE_ERROR)
        assert is_json(found.id)
        return
    envelope = parsed(data.decode())
    assert found.method == envelope.get("method", "")
    for name, source in {"id": found.id, "params": bytes(found.params), "result": bytes(found.result)}.items():
        assert (source == b"") is (name not in envelope)
        assert name not in envelope or same(parsed(source.decode()), envelope[name])


@many
@given(ENVELOPES)
def test_a_key_of_the_envelope_never_counts_twice(text: str) -> None:
    names = [name for name, _ in json.loads(text, object_pairs_hook=list, parse_int=float)]
    found = outcome(text.encode())
    if len(set(names)) < len(names):
        assert isinstance(found, MalformedError)
        assert found.code == INVALID_REQUEST
        assert found.id == NULL or names.count("id") == 1
    elif isinstance(found, MalformedError):
        assert "twice" not in str(found)


@few
@given(st.lists(st.sampled_from("[{"), max_size=400), VALUES)
def test_depth_is_a_parse_error_from_129_on(brackets: list[str], leaf: str) -> None:
    opened = "".join('{"]":' if bracket == "{" else "[" for bracket in brackets)
    closed = "".join("}" if bracket == "{" else "]" for bracket in reversed(brackets))
    found = outcome(f'{{"method":"m","params":{opened}{leaf}{closed}}}'.encode())
    is_refused = 1 + len(brackets) + depth(parsed(leaf)) > MAX_DEPTH
    assert isinstance(found, MalformedError) is is_refused
    assert not isinstance(found, MalformedError) or found.code == PARSE_ERROR


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


@few
@given(VALUES, st.integers(0, 6))
def test_depth_is_that_of_the_parsed_value(text: str, limit: int) -> None:
    assert too_deep(text.encode(), limit) is (depth(parsed(text)) > limit)


@few
@given(VALUES)
@example('{"a":1.10,\n"b":[1e400 , -0],"":"\\u00e9\\/\u2028"}')
def test_payloads_keep_their_spelling(text: str) -> None:
    source = text.encode()
    line = compact(decode(b'{"method":"m","params":%b}' % source).params)
    assert not {b"\n"[0], b"\r"[0]} & set(line)
    assert tokens(line.decode()) == tokens(text)
    for encoded in (encode_notification("m", source), encode_result(b"1", source)):
        message = decode(encoded)
        assert b"\n" not in encoded
        assert tokens(bytes(message.params or message.result).decode()) == tokens(text)


@few
@given(st.lists(VALUES, min_size=1, max_size=3), st.sampled_from(["", " ", "\n"]))
def test_a_batch_keeps_the_spelling_of_its_items(items: list[str], space: str) -> None:
    found = split_batch(f"[{space}{f'{space},'.join(items)}]".encode())
    assert [item.decode() for item in found] == items


@few
@given(IDS)
def test_an_id_has_one_spelling_and_stays_the_same_id(text: str) -> None:
    found = decode(b'{"method":"m","id":%b}' % text.encode()).id
    assert found == canonical_id(found)
    assert found.decode() == text if "\\" not in text else json.loads(found) == json.loads(text)
    if text.startswith('"'):
        assert found == canonical_id(json.dumps(json.loads(text)).encode())


# --- Members ---------------------------------------------------------------------------------------------------------


@few
@given(OBJECTS)
def test_members_are_those_that_json_finds(text: str) -> None:
    found, value = members(text), parsed(text)
    assert list(found) == list(value)
    assert all(source in text and same(parsed(source), value[key]) for key, source in found.items())
    rebuilt = ",".join(f"{json.dumps(key)}:{source}" for key, source in found.items())
    assert same(parsed(f"{{{rebuilt}}}"), value)


def members_outcome(text: str) -> list[str] | type[ValueError]:
    try:
        return list(members(text))
    except (NotJSONError, NotAnObjectError, DuplicateKeyError) as error:
        return type(error)


@many
@given(DATA.map(lambda data: data.decode("utf-8", "replace")))
def test_members_agrees_with_json_about_any_text(text: str) -> None:
    found = members_outcome(text)
    if not is_json(text.encode()):
        assert found is NotJSONError or (found is DuplicateKeyError and text.count(":") > 1)
    elif not isinstance(parsed(text), dict):
        assert found is NotAnObjectError
    else:
        names = [name for name, _ in json.loads(text, object_pairs_hook=list, parse_int=float)]
        assert found == (DuplicateKeyError if len(set(names)) < len(names) else names)


# --- Lines -----------------------------------------------------------------------------------------------------------


@st.composite
def cut(draw: st.DrawFn, data: bytes) -> list[bytes]:
    places = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
    pieces = [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]
    return [piece for piece in pieces if piece]


def plain_split(data: bytes, max_bytes: int) -> list[bytes | Signal]:
    found = [OVERSIZED if len(line) > max_bytes else line for line in data.split(b"\n")]
    return [line for line in found if isinstance(line, Signal) or line.strip()]


PIECES: Final = st.lists(st.sampled_from([b"a", b"\n", b" ", b"\r", b"\xff", b"bcd"]), max_size=60)


@few
@given(st.data(), PIECES.map(b"".join), st.integers(1, 9))
def test_lines_are_those_of_a_plain_split(data: st.DataObject, stream: bytes, max_bytes: int) -> None:
    reader, events = LineReader(max_bytes), list[bytes | Signal]()
    for chunk in [*data.draw(cut(stream)), b""]:
        reader.receive_data(chunk)
        assert not chunk or len(reader._buffer) <= max_bytes + len(chunk)
        while (event := reader.next_event()) not in (NEED_DATA, CLOSED):
            events.append(event)
    assert events == plain_split(stream, max_bytes)
    assert reader.next_event() is CLOSED


# --- Server-sent events ----------------------------------------------------------------------------------------------

TEXTS: Final = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from("\n\r\u2028\x85\0: \ufeff"), max_size=12
)
FIELDS: Final = st.none() | TEXTS.map(lambda text: text.translate({ord(c): None for c in "\r\n\0"}))


@few
@given(st.data(), st.lists(st.tuples(TEXTS, FIELDS, FIELDS), max_size=3), st.sampled_from([b"", b"\xef\xbb\xbf"]))
def test_one_event_in_is_one_event_out(
    data: st.DataObject, events: list[tuple[str, str | None, str | None]], mark: bytes
) -> None:
    stream, expected, last_id = mark + KEEP_ALIVE, [], ""
    for text, type, id in events:
        stream += encode(text, type=type, id=id) + KEEP_ALIVE
        last_id = last_id if id is None else id
        lines = text.replace("\r\n", "\n").replace("\r", "\n")
        expected.append(ServerSentEvent(data=lines, type=type or "message", id=last_id))
    decoder = EventDecoder()
    assert [event for chunk in data.draw(cut(stream)) for event in decoder.feed(chunk)] == expected
    assert decoder.last_id == last_id


FRAGMENTS: Final = st.lists(
    st.sampled_from(
        [b"data", b"id", b"event", b":", b" ", b"\r", b"\n", b"\0", b"\xe2\x80\xa8", b"\xff", b"\xef\xbb\xbf"]
    )
)


@many
@given(st.data(), FRAGMENTS.map(b"".join), st.sampled_from([5, 20, 1000]))
def test_events_never_depend_on_the_cutting(data: st.DataObject, stream: bytes, max_bytes: int) -> None:
    whole, is_whole = read_events(data.draw(cut(stream)), max_bytes)
    one_by_one, is_bounded = read_events([stream[place : place + 1] for place in range(len(stream))], max_bytes)
    assert is_whole is is_bounded
    # A chunk that goes beyond the bound takes the events with it that it had completed.
    assert whole == (one_by_one if is_whole else one_by_one[: len(whole)])


def read_events(chunks: list[bytes], max_bytes: int) -> tuple[list[ServerSentEvent], bool]:
    """Returns the events, and whether they all stayed within the bound."""
    decoder, events = EventDecoder(max_bytes=max_bytes), list[ServerSentEvent]()
    try:
        for chunk in chunks:
            events += decoder.feed(chunk)
            assert len(decoder._line) + len(decoder._data) <= max_bytes
    except ValueError:
        return events, False
    return events, True


# --- Results ---------------------------------------------------------------------------------------------------------


@many
@given(RESULTS | VALUES, st.booleans())
def test_every_result_reaches_the_agent_as_written(source: str, structured: bool) -> None:
    found = call_tool_result(source, structured=structured)
    assert is_call_tool_result(parsed(found))
    if is_call_tool_result(parsed(source)):
        assert found == source
        return
    has_structure = structured and isinstance(parsed(source), dict)
    assert parsed(found)["content"] == [{"type": "text", "text": source}]
    assert found.endswith(f',"structuredContent":{source}}}') is has_structure
    assert ("structuredContent" in parsed(found)) is has_structure


@pytest.mark.parametrize("text", [b"NaN", b'"\\ud800"', b"[1,]", b"01", b"\xff", b""])
def test_the_reference_parser_is_strict(text: bytes) -> None:
    assert not is_json(text)
    assert is_json(b'[1e400,"\\ud83d\\ude00"]')
