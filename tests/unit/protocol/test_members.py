"""`oubliette.protocol.members` (WIRE section 1, payloads; HAZARDS T29, T30, F23)."""

from __future__ import annotations

import pytest

from oubliette.protocol.members import DuplicateKeyError, NotAnObjectError, NotJSONError, members

OBJECTS: dict[str, tuple[str, dict[str, str]]] = {
    "empty": ("{}", {}),
    "empty, with space": (" \t\r\n{ \n} ", {}),
    "scalars": ('{"a":1,"b":"x","c":true,"d":null}', {"a": "1", "b": '"x"', "c": "true", "d": "null"}),
    "numbers": (
        '{"a":1.10,"b":1e400,"c":-0,"d":-0.0,"e":1E+2}',
        {"a": "1.10", "b": "1e400", "c": "-0", "d": "-0.0", "e": "1E+2"},
    ),
    "many digits": ('{"a":' + "9" * 5000 + "}", {"a": "9" * 5000}),
    "escapes": (r'{"a":"\u00e9\/\n\ud83d\ude00"}', {"a": r'"\u00e9\/\n\ud83d\ude00"'}),
    "an escaped backslash is no surrogate": (r'{"a":"\\ud800"}', {"a": r'"\\ud800"'}),
    "an escaped key": (r'{"\u0061":1}', {"a": "1"}),
    "keys by case and NUL": (r'{"a":1,"A":2,"a\u0000":3}', {"a": "1", "A": "2", "a\0": "3"}),
    "order": ('{"b":1,"a":2}', {"b": "1", "a": "2"}),
    "inner space stays, outer goes": ('{ "a" :\t[ 1 ,2 ]\r\n, "b":{ }}', {"a": "[ 1 ,2 ]", "b": "{ }"}),
    "separators of other scripts": ('{"a":"\u2028\u2029\x85"}', {"a": '"\u2028\u2029\x85"'}),
    "braces in strings": ('{"a":"}","b":"{\\"x\\":1}"}', {"a": '"}"', "b": '"{\\"x\\":1}"'}),
    "duplicates further down are a payload's own": ('{"a":{"b":1,"b":2}}', {"a": '{"b":1,"b":2}'}),
}


@pytest.mark.parametrize(("text", "expected"), OBJECTS.values(), ids=OBJECTS)
def test_values_are_the_text_they_were_written_in(text: str, expected: dict[str, str]) -> None:
    found = members(text)
    assert found == expected
    assert list(found) == list(expected)


@pytest.mark.parametrize("text", ["[]", ' [{"a":1}] ', "1", '"{}"', "null", "true", "-1.5e3"])
def test_other_json_is_not_an_object(text: str) -> None:
    with pytest.raises(NotAnObjectError):
        members(text)


@pytest.mark.parametrize(
    "text",
    ['{"a":1,"a":2}', r'{"a":1,"\u0061":2}', '{"a":1,"b":2,"a":1}', r'{"\/":1,"/":2}', '{"":1,"":1}'],
)
def test_a_key_that_stands_twice(text: str) -> None:
    with pytest.raises(DuplicateKeyError):
        members(text)


NOT_JSON = [
    *[
        "",
        " ",
        "{",
        "}",
        "{]",
        '{"a"',
        '{"a":',
        '{"a":1',
        '{"a":1,',
        '{"a":1,}',
        '{,"a":1}',
        '{"a" 1}',
        '{"a":1 "b":2}',
    ],
    *["{a:1}", "{'a':1}", "{1:2}", "{null:1}", '{"a":1}}', '{"a":1} x', "{} {}", "[1,2", "[1]]", "5x", '"abc', "nul"],
    *[
        '{"a":NaN}',
        '{"a":Infinity}',
        '{"a":-Infinity}',
        "NaN",
        '{"a":01}',
        '{"a":1.}',
        '{"a":.5}',
        '{"a":+1}',
        '{"a":-}',
    ],
    *['{"a":1e}', '{"a":0x1}', '{"a":1_0}', '{"a":\u0661}', '{"a":tru}', '{"a":[1,]}', '{"a":[1 2]}', '{"a":{"b"}}'],
    *['{"a":"\x01"}', '{"a":"\n"}', '{"\t":1}', r'{"a":"\x41"}', r'{"a":"\u12"}', r'{"a":"\u+123"}', '{"a":"\\'],
    *["\ufeff{}", "{\xa0}", '{"a":\u20281}', "{}\0", '{"a":1}\x0b', "{/**/}"],
    *[r'{"a":"\ud800"}', r'{"a":"\uDC00"}', r'{"\ud800":1}', r'{"a":"\ude00\ud83d"}', r'{"a":"\\\ud83dx"}'],
    *[r'["\ud800"]', r'"\udfff"', r'{"a":["\ud83d\ud83d\ude00"]}'],
]


@pytest.mark.parametrize("text", NOT_JSON)
def test_what_is_not_json(text: str) -> None:
    with pytest.raises(NotJSONError):
        members(text)


def test_depth_within_the_bound_is_read_and_beyond_it_is_an_error_of_ours() -> None:
    deep = '{"a":' + "[" * 127 + "]" * 127 + "}"
    assert members(deep) == {"a": "[" * 127 + "]" * 127}
    with pytest.raises(NotJSONError):
        members('{"a":' + "[" * 1_000_000)
