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
    # SDKs dump what is not set as null, and read a field of another type as an error.
    structured, is_error = value.get("structuredContent"), value.get("isError")
    if not isinstance(structured, dict | None) or not isinstance(is_error, bool | None):
        return False
    if not value["content"]:
        return structured is not None or is_error is not None
    return all(_is_block(block) for block in value["content"])


def _is_block(block: Any) -> bool:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        return False
    fields = _BLOCK_FIELDS.get(block["type"])
    if fields is None or not _has(block, fields):
        return False
    return block["type"] != "resource" or _is_contents(block["resource"])


def _is_contents(resource: dict[str, Any]) -> bool:
    # MCP: an embedded resource is TextResourceContents or BlobResourceContents.
    return _has(resource, {"uri": str, "text": str}) or _has(resource, {"uri": str, "blob": str})


def _has(value: dict[str, Any], fields: dict[str, type]) -> bool:
    return all(isinstance(value.get(name), kind) for name, kind in fields.items())


def call_tool_result(source: str, *, structured: bool) -> str:
    """Returns the JSON of the `CallToolResult` for a caller's result.

    `source` is the result's JSON text, not nested deeper than `nesting.MAX_DEPTH`; `structured` says whether the
    agent's revision knows `structuredContent`.
    """
    value = json.loads(source, parse_int=float)  # which takes any number of digits, and is no string
    if is_call_tool_result(value):
        return source
    extra = f',"structuredContent":{source}' if structured and isinstance(value, dict) else ""
    return f'{{"content":[{{"type":"text","text":{json.dumps(source, ensure_ascii=False)}}}]{extra}}}'


def error_result(message: str) -> str:
    """Returns the JSON of the `CallToolResult` that tells an agent of an error (`isError: true`)."""
    return f'{{"content":[{{"type":"text","text":{json.dumps(message, ensure_ascii=False)}}}],"isError":true}}'
