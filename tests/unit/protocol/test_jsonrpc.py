"""`oubliette.protocol.jsonrpc` (WIRE section 1, "Framing"; HAZARDS T28, T29, T30, F11, F23)."""

from __future__ import annotations

import msgspec
import pytest

from oubliette.protocol.jsonrpc import (
    INVALID_REQUEST,
    NULL,
    PARSE_ERROR,
    MalformedError,
    canonical_id,
    check_text,
    compact,
    decode,
    encode_error,
    encode_notification,
    encode_result,
    split_batch,
)
from oubliette.protocol.lines import NEED_DATA, LineReader
from tests.unit.protocol.cuttings import cuttings


def refused(data: bytes) -> MalformedError:
    with pytest.raises(MalformedError) as caught:
        decode(data)
    return caught.value


# Text, and the id, method, params, result and error that it says.
MESSAGES: dict[str, tuple[bytes, tuple[bytes, str, bytes, bytes, bytes]]] = {
    "request": (
        b'{"jsonrpc":"2.0","id":1,"method":"caller_tool","params":{"tool":"x"}}',
        (b"1", "caller_tool", b'{"tool":"x"}', b"", b""),
    ),
    "without jsonrpc": (b'{"id":1,"method":"m"}', (b"1", "m", b"", b"", b"")),
    "without id": (b'{"jsonrpc":"2.0","method":"m"}', (b"", "m", b"", b"", b"")),
    "id null": (b'{"id":null,"method":"m"}', (b"null", "m", b"", b"", b"")),
    "notification": (b'{"method":"notifications/x","params":{}}', (b"", "notifications/x", b"{}", b"", b"")),
    "params null": (b'{"id":1,"method":"m","params":null}', (b"1", "m", b"null", b"", b"")),
    "params list": (b'{"id":1,"method":"m","params":[1.10]}', (b"1", "m", b"[1.10]", b"", b"")),
    "response": (b'{"id":1,"result":{"a":-0}}', (b"1", "", b"", b'{"a":-0}', b"")),
    "response null": (b'{"id":1,"result":null}', (b"1", "", b"", b"null", b"")),
    "error": (b'{"id":1,"error":{"code":1}}', (b"1", "", b"", b"", b'{"code":1}')),
    "error without id": (b'{"error":{"code":1}}', (b"", "", b"", b"", b'{"code":1}')),
    "unknown keys": (b'{"type":"x","id":1,"method":"m","zz":[{}]}', (b"1", "m", b"", b"", b"")),
    "space": (b' {\t"id" : 1 ,\r "method" :\n"m" } ', (b"1", "m", b"", b"", b"")),
    "an escaped method": (b'{"method":"\\u006d\\/\xc3\xa9"}', (b"", "m/é", b"", b"", b"")),
    "escaped keys": (b'{"\\u0069d":1,"m\\u0065thod":"m"}', (b"1", "m", b"", b"", b"")),
    "keys by case are other keys": (b'{"id":1,"ID":2,"method":"m","Method":"n"}', (b"1", "m", b"", b"", b"")),
    "keys with NUL are other keys": (b'{"id":1,"id\\u0000":2,"method":"m"}', (b"1", "m", b"", b"", b"")),
    "keys of the payload are its own": (
        b'{"id":1,"method":"m","params":{"id":2,"method":"\\n","id":3}}',
        (b"1", "m", b'{"id":2,"method":"\\n","id":3}', b"", b""),
    ),
    "keys within strings are text": (b'{"method":"\\"id\\":","id":1}', (b"1", '"id":', b"", b"", b"")),
}


@pytest.mark.parametrize(("data", "expected"), MESSAGES.values(), ids=MESSAGES)
def test_messages(data: bytes, expected: tuple[bytes, str, bytes, bytes, bytes]) -> None:
    message = decode(data)
    found = (message.id, message.method, bytes(message.params), bytes(message.result), bytes(message.error))
    assert found == expected
    assert message.is_response is (message.method == "")


@pytest.mark.parametrize("data", [case[0] for case in MESSAGES.values() if b"\n" not in case[0]])
def test_messages_on_a_stream(data: bytes) -> None:
    for chunks in cuttings(data + b'\n{"method":"next"}\n{'):
        reader, methods = LineReader(len(data) + 20), []
        for chunk in chunks:
            reader.receive_data(chunk)
            while isinstance(line := reader.next_event(), bytes):
                methods.append(decode(line).method)
            assert line is NEED_DATA
        assert methods == [decode(data).method, "next"]


@pytest.mark.parametrize(
    "id", [b"1", b"1.0", b"-0", b"1e400", b"1E2", b"9" * 5000, b'"1"', b'""', b'"\xc3\xa9 \xe2\x80\xa8"']
)
def test_an_id_keeps_its_spelling(id: bytes) -> None:
    assert decode(b'{"id":%b,"method":"m"}' % id).id == id
    assert encode_result(id, b"1") == b'{"jsonrpc":"2.0","id":%b,"result":1}' % id


def test_ids_of_different_types_are_different_ids() -> None:
    # HAZARDS F11: 'ids 1, "1", null, 1.0 … types kept distinct'.
    texts = [b"1", b'"1"', b"null", b"1.0"]
    assert len({decode(b'{"id":%b,"method":"m"}' % text).id for text in texts}) == 4


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        (rb'"\u0061"', b'"a"'),
        (rb'"a\/b"', b'"a/b"'),
        (rb'"\u00e9"', '"é"'.encode()),
        (rb'"\ud83d\ude00"', '"😀"'.encode()),
        (rb'"\u0022\u005c"', rb'"\"\\"'),
        (rb'"\u000a"', rb'"\n"'),
        (b"", b""),
        (b"1.0", b"1.0"),
    ],
)
def test_a_string_is_one_id_whatever_its_escapes(text: bytes, canonical: bytes) -> None:
    assert canonical_id(text) == canonical
    assert canonical_id(canonical) == canonical


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


# What is refused, with which code, for which id.
MALFORMED: dict[str, tuple[bytes, int, bytes]] = {
    # Not JSON.
    "empty": (b"", PARSE_ERROR, NULL),
    "blank": (b"  ", PARSE_ERROR, NULL),
    "words": (b"not json", PARSE_ERROR, NULL),
    "cut off": (b'{"id":1,"method":"m"', PARSE_ERROR, NULL),
    "something after it": (b'{"id":1,"method":"m"}{}', PARSE_ERROR, NULL),
    "a comma too many": (b'{"id":1,"method":"m",}', PARSE_ERROR, NULL),
    "single quotes": (b"{'id':1,'method':'m'}", PARSE_ERROR, NULL),
    "a comment": (b'{"id":1,"method":"m"}//', PARSE_ERROR, NULL),
    "a byte order mark": (b'\xef\xbb\xbf{"id":1,"method":"m"}', PARSE_ERROR, NULL),
    "UTF-16": ('{"id":1,"method":"m"}'.encode("utf-16"), PARSE_ERROR, NULL),
    "NaN": (b'{"id":1,"method":"m","params":NaN}', PARSE_ERROR, NULL),
    "Infinity": (b'{"id":1,"method":"m","params":[-Infinity]}', PARSE_ERROR, NULL),
    "a leading zero": (b'{"id":01,"method":"m"}', PARSE_ERROR, NULL),
    "a NUL": (b'{"id":1,"method":"m"}\0', PARSE_ERROR, NULL),
    "a control character in a string": (b'{"id":1,"method":"m","params":"\x01"}', PARSE_ERROR, NULL),
    "a raw line end in a skipped string": (b'{"id":1,"method":"m","zz":"\n"}', PARSE_ERROR, NULL),
    "an unknown escape": (b'{"id":1,"method":"m","params":"\\x41"}', PARSE_ERROR, NULL),
    "not JSON after a wrong type": (b'{"id":1,"method":5,', PARSE_ERROR, NULL),
    "an array cut off": (b"[1,2", PARSE_ERROR, NULL),
    "a number and more": (b"5x", PARSE_ERROR, NULL),
    "a string cut off": (b'"abc', PARSE_ERROR, NULL),
    # HAZARDS T30: "0xFF in key, value, skipped field, Raw …; lone surrogates".
    "0xFF alone": (b"\xff", PARSE_ERROR, NULL),
    "0xFF in a key": (b'{"id":1,"method":"m","\xff":1}', PARSE_ERROR, NULL),
    "0xFF in the method": (b'{"id":1,"method":"\xff"}', PARSE_ERROR, NULL),
    "0xFF in a skipped field": (b'{"id":1,"method":"m","zz":"\xff"}', PARSE_ERROR, NULL),
    "0xFF in the params": (b'{"id":1,"method":"m","params":{"a":"\xff"}}', PARSE_ERROR, NULL),
    "0xFF in the id": (b'{"id":"\xff","method":"m"}', PARSE_ERROR, NULL),
    "an overlong encoding": (b'{"id":1,"method":"\xc0\xaf"}', PARSE_ERROR, NULL),
    "a surrogate as UTF-8": (b'{"id":1,"method":"m","params":"\xed\xa0\x80"}', PARSE_ERROR, NULL),
    "a character cut off": (b'{"id":1,"method":"m"}\xe2\x80', PARSE_ERROR, NULL),
    "half a pair in the method": (b'{"id":1,"method":"\\ud800"}', PARSE_ERROR, NULL),
    "half a pair in the params": (b'{"id":1,"method":"m","params":["\\ud800"]}', PARSE_ERROR, NULL),
    "half a pair in the id": (b'{"id":"\\udc00","method":"m"}', PARSE_ERROR, NULL),
    "half a pair in a skipped field": (b'{"id":1,"method":"m","zz":"\\ud800x"}', PARSE_ERROR, NULL),
    "half a pair in a key": (b'{"id":1,"method":"m","\\ud800":1}', PARSE_ERROR, NULL),
    "a pair the wrong way round": (b'{"id":1,"method":"m","params":"\\ude00\\ud83d"}', PARSE_ERROR, NULL),
    # JSON, but no message.
    "an array": (b"[]", INVALID_REQUEST, NULL),
    "a batch": (b'[{"id":1,"method":"m"}]', INVALID_REQUEST, NULL),
    "a string": (b'"x"', INVALID_REQUEST, NULL),
    "a number": (b"5", INVALID_REQUEST, NULL),
    "null": (b"null", INVALID_REQUEST, NULL),
    "empty object": (b"{}", INVALID_REQUEST, NULL),
    "an id alone": (b'{"id":1}', INVALID_REQUEST, b"1"),
    "an empty method": (b'{"id":"\\u0061","method":""}', INVALID_REQUEST, b'"a"'),
    "a method by another case": (b'{"id":1,"Method":"m"}', INVALID_REQUEST, b"1"),
    "a method with NUL": (b'{"id":1,"method\\u0000":"m"}', INVALID_REQUEST, b"1"),
    "the method a number": (b'{"id":1.0,"method":5}', INVALID_REQUEST, b"1.0"),
    "the method null": (b'{"method":null,"id":"x"}', INVALID_REQUEST, b'"x"'),
    "the method an object": (b'{"id":null,"method":{}}', INVALID_REQUEST, NULL),
    "another version": (b'{"jsonrpc":"1.0","id":1,"method":"m"}', INVALID_REQUEST, b"1"),
    "the version a number": (b'{"jsonrpc":2.0,"id":1,"method":"m"}', INVALID_REQUEST, b"1"),
    "the id an object": (b'{"id":{},"method":"m"}', INVALID_REQUEST, NULL),
    "the id an array": (b'{"id":[1],"method":"m"}', INVALID_REQUEST, NULL),
    "the id true": (b'{"id":true,"method":"m"}', INVALID_REQUEST, NULL),
    "the id false": (b'{"id":false,"method":"m"}', INVALID_REQUEST, NULL),
    "the id an object, the method a number": (b'{"id":{},"method":5}', INVALID_REQUEST, NULL),
    # HAZARDS T29: a duplicate key of the envelope.
    "two ids": (b'{"id":1,"id":2,"method":"m"}', INVALID_REQUEST, NULL),
    "two equal ids": (b'{"id":1,"id":1,"method":"m"}', INVALID_REQUEST, NULL),
    "two methods": (b'{"id":1,"method":"m","method":"n"}', INVALID_REQUEST, b"1"),
    "two params": (b'{"id":1,"method":"m","params":{},"params":{}}', INVALID_REQUEST, b"1"),
    "two versions": (b'{"jsonrpc":"2.0","jsonrpc":"2.0","id":1,"method":"m"}', INVALID_REQUEST, b"1"),
    "two results": (b'{"id":1,"result":1,"result":2}', INVALID_REQUEST, b"1"),
    "two errors": (b'{"id":1,"error":1,"error":2}', INVALID_REQUEST, b"1"),
    "two of an unknown key": (b'{"id":1,"method":"m","zz":1,"zz":2}', INVALID_REQUEST, b"1"),
    "a second id by escapes": (b'{"id":1,"\\u0069d":2,"method":"m"}', INVALID_REQUEST, NULL),
    "a second method by escapes": (b'{"id":1,"\\u006dethod":"n","method":"m"}', INVALID_REQUEST, b"1"),
    "a second method after space": (b'{"id":1,"method" :"n", "method":"m"}', INVALID_REQUEST, b"1"),
    "a second method after a payload": (
        b'{"id":1,"method":"m","params":{"method":"\\"}"},"method":"n"}',
        INVALID_REQUEST,
        b"1",
    ),
    "two ids, the method a number": (b'{"id":1,"id":2,"method":5}', INVALID_REQUEST, NULL),
    # HAZARDS F23.
    "too deep": (nested(129), PARSE_ERROR, NULL),
    "too deep in the params": (b'{"id":1,"method":"m","params":%b}' % nested(128), PARSE_ERROR, NULL),
    "too deep in a skipped field": (b'{"id":1,"method":"m","zz":%b}' % nested(1000), PARSE_ERROR, NULL),
    "too deep in the id": (b'{"id":%b,"method":"m"}' % nested(1_000_000), PARSE_ERROR, NULL),
    "too deep, and no end": (b'{"a":' * 1_000_000, PARSE_ERROR, NULL),
}


@pytest.mark.parametrize(("data", "code", "id"), MALFORMED.values(), ids=MALFORMED)
def test_malformed(data: bytes, code: int, id: bytes) -> None:
    error = refused(data)
    assert (error.code, error.id) == (code, id)


@pytest.mark.parametrize("levels", [1, 64, 127])
def test_depth_within_the_bound(levels: int) -> None:
    # The envelope is a level of its own.
    message = decode(b'{"method":"m","params":%b,"zz":%b}' % (nested(levels), nested(levels)))
    assert bytes(message.params) == nested(levels)


@pytest.mark.parametrize(
    "data",
    [
        b'{"id":1,"method":"m","%b":1,"%b":2}' % (b"k" * 100_000, b"k" * 100_000),
        b'{"jsonrpc":"%b","method":"m"}' % (b"v" * 100_000),
        b'{"jsonrpc":"2.0","method":{"%b":1}}' % (b"v" * 100_000),
        b"[%b" % (b"9" * 100_000),
        b"\xff" * 100_000,
    ],
)
def test_an_error_says_little_of_what_it_refuses(data: bytes) -> None:
    assert len(str(refused(data))) < 200


def test_many_keys_cost_no_more_than_their_number() -> None:
    keys = b",".join(b'"%d":0' % number for number in range(100_000))
    assert decode(b'{"method":"m",%b}' % keys).method == "m"
    assert refused(b'{"method":"m",%b,"99999":0}' % keys).code == INVALID_REQUEST


def test_check_text_is_of_any_text() -> None:
    check_text(b"")
    check_text(b"no JSON")
    check_text(nested(128))
    for text in (b"\xc3", nested(129)):
        with pytest.raises(MalformedError):
            check_text(text)


def test_a_batch_is_its_messages_as_written() -> None:
    assert split_batch(b'[ {"id":1.0, "a":[1e400]},\n 2 ,"x"]') == [b'{"id":1.0, "a":[1e400]}', b"2", b'"x"']


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"[]", INVALID_REQUEST),
        (b"[ ]", INVALID_REQUEST),
        (b"[", PARSE_ERROR),
        (b"[1", PARSE_ERROR),
        (b"[1]2", PARSE_ERROR),
    ],
)
def test_what_is_no_batch(data: bytes, code: int) -> None:
    with pytest.raises(MalformedError) as caught:
        split_batch(data)
    assert (caught.value.code, caught.value.id) == (code, NULL)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b'{ "b" : 1.10 , "a" : -0 }', b'{ "b" : 1.10 , "a" : -0 }'),
        (b'{\n "b" : 1.10 ,\r\n"a" : [1e400, -0 ] }\n', b'{"b":1.10,"a":[1e400,-0]}'),
        (b'["a \\u00e9\\n\\/ \xe2\x80\xa8\xc2\x85\x7f",\n1E+2]', b'["a \\u00e9\\n\\/ \xe2\x80\xa8\xc2\x85\x7f",1E+2]'),
        (b"\r1.0\r", b"1.0"),
        (b"{\n}", b"{}"),
        (b"[\r]", b"[]"),
        (b'{"a":1,\n"a":2}', b'{"a":1,"a":2}'),
    ],
)
def test_compact_takes_white_space_and_nothing_else(text: bytes, line: bytes) -> None:
    assert compact(text) == line
    assert compact(msgspec.Raw(text)) == line


PRETTY = b'{\n  "b": 1.10,\r\n  "a": "\\n"\n}'
ONE_LINE = b'{"b":1.10,"a":"\\n"}'


def test_what_is_encoded_is_one_line() -> None:
    # HAZARDS T28: "\n, \r, \r\n in ids, names, args, errors, Raw".
    assert encode_notification("m", PRETTY) == b'{"jsonrpc":"2.0","method":"m","params":%b}' % ONE_LINE
    assert encode_result(b"1.0", PRETTY) == b'{"jsonrpc":"2.0","id":1.0,"result":%b}' % ONE_LINE
    assert (
        encode_error(b"1", {"code": -1, "message": "a\nb\r", "data": msgspec.Raw(PRETTY)})
        == b'{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"a\\nb\\r","data":%b}}' % ONE_LINE
    )


def test_an_answer_without_id_is_for_null() -> None:
    assert encode_result(b"", b"1") == b'{"jsonrpc":"2.0","id":null,"result":1}'
    assert encode_error(b"", {"code": 1}) == b'{"jsonrpc":"2.0","id":null,"error":{"code":1}}'


@pytest.mark.parametrize("method", ["m", 'a","id":2,"b":"', "a\nb", "a\\", "é\u2028"])
def test_a_method_cannot_leave_its_string(method: str) -> None:
    assert decode(encode_notification(method, b"{}")).method == method
    assert decode(encode_notification(method, b"{}")).method == method
    assert b"\n" not in encode_notification(method, b"{}")
