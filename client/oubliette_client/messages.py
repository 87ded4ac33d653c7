"""JSON-RPC as the agent speaks it: bytes to messages, answers to text. No trio, no I/O.

Ids stay source text, so that 1, 1.0 and "1" are three ids (HAZARDS F11).
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from oubliette.protocol.members import DuplicateKeyError, NotAnObjectError, NotJSONError, members
from oubliette.protocol.nesting import MAX_DEPTH, too_deep
from oubliette_client import source

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
LIMIT_EXCEEDED: Final = -32006
UNSUPPORTED_PROTOCOL_VERSION: Final = -32022
# WIRE section 7; the code of MCP 2026-07-28 is one more kind of invalid request.
KINDS: Final = {
    PARSE_ERROR: "parse_error",
    INVALID_REQUEST: "invalid_request",
    METHOD_NOT_FOUND: "method_not_found",
    INVALID_PARAMS: "invalid_params",
    INTERNAL_ERROR: "internal_error",
    LIMIT_EXCEEDED: "limit_exceeded",
    UNSUPPORTED_PROTOCOL_VERSION: "invalid_request",
}
NULL: Final = "null"
_VERSION: Final = '"2.0"'


class RequestError(Exception):
    """What is answered with a JSON-RPC error: its code, the id of the request where that is known already, and what
    else its `data` tells.
    """

    def __init__(self, code: int, message: str, id: str = NULL, **data: str | list[str]) -> None:
        super().__init__(message)
        self.code = code
        self.id = id
        self.data = data


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A request, or without `id` a notification. `id` and `params` are source text."""

    id: str | None
    method: str
    params: str

    def fields(self) -> dict[str, str]:
        """Returns the members of the params. Raises `RequestError` where they are no object or hold a key twice."""
        return object_untrusted(self.params if self.params != NULL else "{}", "params")


def text_untrusted(line: bytes) -> str:
    """Returns the text of a line. Raises `RequestError` (-32700) where it is not UTF-8 or nested deeper than 128."""
    if too_deep(line):
        raise RequestError(PARSE_ERROR, f"nested deeper than {MAX_DEPTH} levels")
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise RequestError(PARSE_ERROR, f"not UTF-8: {error.reason} at byte {error.start}") from None


def message_untrusted(text: str) -> Message | None:
    """Returns the message in `text`, None for a response: the client asks the agent nothing. Raises `RequestError`."""
    found = _envelope(text)
    id = _id(found)
    if found.get("jsonrpc", _VERSION) != _VERSION:
        raise RequestError(INVALID_REQUEST, "jsonrpc must be 2.0", id or NULL)
    method = source.string(found.get("method"))
    if method is not None:
        return Message(id=id, method=method, params=found.get("params", "{}"))
    if "method" not in found and ("result" in found or "error" in found):
        return None
    raise RequestError(INVALID_REQUEST, "method must be a string" if "method" in found else "no method", id or NULL)


def is_batch(text: str) -> bool:
    """Says whether `text` begins as a batch does (MCP 2025-03-26)."""
    return text.lstrip().startswith("[")


def batch_untrusted(text: str) -> list[str]:
    """Returns the messages of what `is_batch` says is one. Raises `RequestError` (-32700) where it is not JSON."""
    try:
        with suppress(NotAnObjectError):  # which is said of an array once the whole of it is found to be JSON
            members(text)
    except NotJSONError as error:
        raise RequestError(PARSE_ERROR, str(error)) from None
    return source.items(text)


def object_untrusted(value: str, name: str) -> dict[str, str]:
    """Returns the members of what `name` says is an object; `value` is known to be JSON.

    Raises `RequestError` (-32602) where it is none or holds a key twice.
    """
    try:
        return members(value)
    except NotAnObjectError:
        raise RequestError(INVALID_PARAMS, f"{name} must be an object") from None
    except DuplicateKeyError as error:
        problem = f"the key {source.excerpt(str(error))} stands twice in {name}"
        raise RequestError(INVALID_PARAMS, problem) from None


def same_id(id: str) -> str:
    """Returns one spelling of an id: a string is the same string whatever escapes it came with."""
    return json.dumps(json.loads(id)) if id.startswith('"') else id


def result(id: str, value: str) -> str:
    """Returns a response that carries `value`, JSON text."""
    return f'{{"jsonrpc":"2.0","id":{id},"result":{value}}}'


def error(failure: RequestError, id: str | None = None) -> str:
    """Returns an error response for `failure`, to the request `id` where the failure does not say which one."""
    body = {"code": failure.code, "message": str(failure), "data": {"kind": KINDS[failure.code], **failure.data}}
    return f'{{"jsonrpc":"2.0","id":{id or failure.id},"error":{json.dumps(body, ensure_ascii=False)}}}'


def notification(method: str, params: str) -> str:
    """Returns a notification that carries `params`, JSON text."""
    return f'{{"jsonrpc":"2.0","method":"{method}","params":{params}}}'


def request(id: str, method: str, params: str) -> str:
    """Returns a request that carries `params`, JSON text."""
    return f'{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}'


def _envelope(text: str) -> dict[str, str]:
    try:
        return members(text)
    except NotJSONError as error:
        raise RequestError(PARSE_ERROR, str(error)) from None
    except NotAnObjectError:
        raise RequestError(INVALID_REQUEST, "not an object") from None
    except DuplicateKeyError as error:
        raise RequestError(INVALID_REQUEST, f"the key {source.excerpt(str(error))} stands twice") from None


def _id(found: dict[str, str]) -> str | None:
    id = found.get("id")
    # MCP: "Requests MUST include a string or integer ID … the ID MUST NOT be null".
    if id is not None and id[0] not in '"-0123456789':
        raise RequestError(INVALID_REQUEST, "id must be a string or a number")
    return id
