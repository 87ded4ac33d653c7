"""What an agent gets for a caller's `result` (WIRE section 1, last paragraphs).

Everything here works on JSON source text, so that the caller's spelling of its values survives.
"""

from __future__ import annotations

import json
from typing import Any, Final

# The fields that a content block of each type must have, and their JSON types.
_BLOCK_FIELDS: Final[dict[str, dict[str, type]]] = {
    "text": {"text": str},
    "image": {"data": str, "mimeType": str},
    "audio": {"data": str, "mimeType": str},
    "resource": {"resource": dict},
    "resource_link": {"uri": str, "name": str},
}


def is_call_tool_result(value: Any) -> bool:
    """Says whether a caller's result, as parsed JSON, is an MCP `CallToolResult` that passes as it is.

    WIRE section 1: "an object whose `content` is a list, every item of it an object of type `text`, `image`, `audio`,
    `resource` or `resource_link` with that type's fields, and which is not empty unless `structuredContent` or
    `isError` is there".
    """
    if not isinstance(value, dict) or not isinstance(value.get("content"), list):
        return False
    if not isinstance(value.get("isError", False), bool) or not isinstance(value.get("structuredContent", {}), dict):
        return False
    if not value["content"]:
        return "structuredContent" in value or "isError" in value
    return all(_is_block(block) for block in value["content"])


def _is_block(block: Any) -> bool:
    fields = _BLOCK_FIELDS.get(block.get("type", "")) if _has_type(block) else None
    return fields is not None and all(isinstance(block.get(name), kind) for name, kind in fields.items())


def _has_type(block: Any) -> bool:
    return isinstance(block, dict) and isinstance(block.get("type"), str)


def call_tool_result(source: str, *, structured: bool) -> str:
    """Returns the JSON of the `CallToolResult` for a caller's result.

    `source` is the result's JSON text, not nested deeper than `nesting.MAX_DEPTH`; `structured` says whether the
    agent's revision knows `structuredContent`.
    """
    value = json.loads(source, parse_int=str, parse_float=str)
    if is_call_tool_result(value):
        return source
    extra = f',"structuredContent":{source}' if structured and isinstance(value, dict) else ""
    return f'{{"content":[{{"type":"text","text":{json.dumps(source, ensure_ascii=False)}}}]{extra}}}'


def error_result(message: str) -> str:
    """Returns the JSON of the `CallToolResult` that tells an agent of an error (`isError: true`)."""
    return f'{{"content":[{{"type":"text","text":{json.dumps(message, ensure_ascii=False)}}}],"isError":true}}'
