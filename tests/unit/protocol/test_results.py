"""`oubliette.protocol.results` (WIRE section 1: what an agent gets for a caller's `result`)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from oubliette.protocol.results import call_tool_result, error_result, is_call_tool_result

TEXT = '{"type":"text","text":"x"}'

# Results that pass as they are.
PASSED: dict[str, str] = {
    "text": f'{{"content":[{TEXT}]}}',
    "empty text": '{"content":[{"type":"text","text":""}]}',
    "image": '{"content":[{"type":"image","data":"aGk=","mimeType":"image/png"}]}',
    "audio": '{"content":[{"type":"audio","data":"aGk=","mimeType":"audio/wav"}]}',
    "resource of text": '{"content":[{"type":"resource","resource":{"uri":"file:///a","text":""}}]}',
    "resource of bytes": '{"content":[{"type":"resource","resource":{"uri":"file:///a","blob":"aGk="}}]}',
    "resource link": '{"content":[{"type":"resource_link","uri":"file:///a","name":"a"}]}',
    "several blocks": f'{{"content":[{TEXT},{{"type":"audio","data":"","mimeType":""}},{TEXT}]}}',
    "an error": f'{{"content":[{TEXT}],"isError":true}}',
    "structured": f'{{"content":[{TEXT}],"structuredContent":{{"a":1.10}}}}',
    "empty with isError": '{"content":[],"isError":true}',
    "empty with isError false": '{"content":[],"isError":false}',
    "empty with structuredContent": '{"content":[],"structuredContent":{}}',
    "keys that nobody knows": f'{{"_meta":{{"a":null}},"x":1,"content":[{{"annotations":{{}},"y":[],{TEXT[1:]}]}}',
    "as the Python SDK dumps it": (
        '{"_meta":null,"content":[{"type":"text","text":"x","annotations":null,"_meta":null}],'
        '"structuredContent":null,"isError":false}'
    ),
    "an absent isError as null": f'{{"content":[{TEXT}],"isError":null}}',
    "odd spelling": '{ "content" :\n[ {"type":"\\u0074ext", "text":"\\/\u2028"} ], "n": 1.10, "m": 1e400, "k": -0 }',
    "more digits than Python reads": f'{{"content":[{TEXT}],"n":{"9" * 5000}}}',
}


@pytest.mark.parametrize("source", PASSED.values(), ids=PASSED)
@pytest.mark.parametrize("structured", [True, False])
def test_a_call_tool_result_passes_as_it_is(source: str, structured: bool) -> None:
    assert call_tool_result(source, structured=structured) == source


# Objects that only look like one.
WRAPPED: dict[str, str] = {
    "empty object": "{}",
    "any object": '{"b":1.10,"a":[1e400,-0]}',
    "empty content": '{"content":[]}',
    "empty content, all else null": '{"content":[],"isError":null,"structuredContent":null}',
    "content null": '{"content":null,"isError":true}',
    "content no list": f'{{"content":{TEXT}}}',
    "content a string": '{"content":"text"}',
    "a block that is a string": '{"content":["x"]}',
    "a block that is null": '{"content":[null]}',
    "a block without type": '{"content":[{"text":"x"}]}',
    "an unknown type": '{"content":[{"type":"video","data":"","mimeType":""}]}',
    "a type in capitals": '{"content":[{"type":"TEXT","text":"x"}]}',
    "a type that is a number": '{"content":[{"type":5,"text":"x"}]}',
    "a type that is a list": '{"content":[{"type":["text"],"text":"x"}]}',
    "a type that is null": '{"content":[{"type":null,"text":"x"}]}',
    "text missing": '{"content":[{"type":"text"}]}',
    "text null": '{"content":[{"type":"text","text":null}]}',
    "text a number": '{"content":[{"type":"text","text":5}]}',
    "text a fraction": '{"content":[{"type":"text","text":5.5}]}',
    "text an object": '{"content":[{"type":"text","text":{}}]}',
    "image without mimeType": '{"content":[{"type":"image","data":"aGk="}]}',
    "audio without data": '{"content":[{"type":"audio","mimeType":"audio/wav"}]}',
    "resource missing": '{"content":[{"type":"resource"}]}',
    "resource a string": '{"content":[{"type":"resource","resource":"file:///a"}]}',
    "resource without contents": '{"content":[{"type":"resource","resource":{"uri":"file:///a"}}]}',
    "resource without uri": '{"content":[{"type":"resource","resource":{"text":"x"}}]}',
    "resource link without name": '{"content":[{"type":"resource_link","uri":"file:///a"}]}',
    "one bad block among good ones": f'{{"content":[{TEXT},{{"type":"text"}},{TEXT}]}}',
    "isError no boolean": f'{{"content":[{TEXT}],"isError":"yes"}}',
    "isError a number": f'{{"content":[{TEXT}],"isError":0}}',
    "structuredContent no object": f'{{"content":[{TEXT}],"structuredContent":[]}}',
}
OTHERS = ["null", "true", "0", "-0", "1.10", "1e400", '""', '"a\\n\\u00e9\u2028"', "[]", f"[{TEXT}]", "[ 1 ,\n2 ]"]


def wrapped(source: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": source}]}


@pytest.mark.parametrize("source", WRAPPED.values(), ids=WRAPPED)
def test_another_object_becomes_text_and_structured_content(source: str) -> None:
    written = call_tool_result(source, structured=True)
    assert json.loads(written) == wrapped(source) | {"structuredContent": json.loads(source)}
    assert written.endswith(f',"structuredContent":{source}}}')
    assert is_call_tool_result(json.loads(written))


@pytest.mark.parametrize("source", WRAPPED.values(), ids=WRAPPED)
def test_revisions_without_structured_content_get_text_alone(source: str) -> None:
    assert json.loads(call_tool_result(source, structured=False)) == wrapped(source)


@pytest.mark.parametrize("source", OTHERS)
@pytest.mark.parametrize("structured", [True, False])
def test_a_value_that_is_no_object_becomes_text_alone(source: str, structured: bool) -> None:
    assert json.loads(call_tool_result(source, structured=structured)) == wrapped(source)


@pytest.mark.parametrize("message", ["", "no such tool", 'quoted "x"\\', "a\nb\r\0\u2028\x85", "é😀"])
def test_an_error_is_a_result_on_one_line(message: str) -> None:
    written = error_result(message)
    assert json.loads(written) == wrapped(message) | {"isError": True}
    assert not {"\n", "\r"} & set(written)
    assert is_call_tool_result(json.loads(written))
