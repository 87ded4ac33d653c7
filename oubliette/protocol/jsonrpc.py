"""JSON-RPC 2.0 messages whose payloads stay as they were written.

`decode` answers in two ways: a message, or `MalformedError` with the code to answer with. Ids, params and results are
kept as source text, so that 1, 1.0 and "1" stay three different ids and 1.10 stays 1.10.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct

from oubliette.protocol import members
from oubliette.protocol.nesting import too_deep

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
NULL: Final = b"null"
_ABSENT: Final = Raw(b"")
_KEYS: Final = (b'"jsonrpc"', b'"id"', b'"method"', b'"params"', b'"result"', b'"error"')


class MalformedError(Exception):
    """Peer bytes that are no message: the code and the id (`null` where it is not known) to answer with."""

    def __init__(self, code: Literal[-32700, -32600], message: str, id: bytes = NULL) -> None:
        super().__init__(message)
        self.code = code
        self.id = id


class Message(Struct, frozen=True, kw_only=True):
    """One JSON-RPC message, of whichever kind `method` and `id` make it. An absent member is empty."""

    raw_id: Raw = msgspec.field(default=_ABSENT, name="id")
    method: str = ""
    params: Raw = _ABSENT
    result: Raw = _ABSENT
    error: Raw = _ABSENT

    @property
    def id(self) -> bytes:
        """The id's JSON text, `b""` where there is none. A string has one spelling here, whatever escapes it came with."""
        text = bytes(self.raw_id)
        return text if b"\\" not in text else msgspec.json.encode(msgspec.json.decode(text))


_decoder: Final = msgspec.json.Decoder(Message)
_batch_decoder: Final = msgspec.json.Decoder(list[Raw])


def compact(raw: Raw | bytes) -> bytes:
    """Returns JSON that has no raw line end, fit for a line or an SSE `data:`; spelling, order and Unicode are kept."""
    text = bytes(raw)
    return text if b"\n" not in text and b"\r" not in text else msgspec.json.format(text, indent=-1)


def check_text(data: bytes) -> None:
    """Raises `MalformedError` (parse error) where `data` is not UTF-8 or is nested deeper than 128."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise MalformedError(PARSE_ERROR, f"not UTF-8: {error.reason} at byte {error.start}") from None
    if too_deep(data):
        raise MalformedError(PARSE_ERROR, "nested deeper than 128 levels")


def decode(data: bytes) -> Message:
    """Returns the message in `data`, one whole line or body.

    Raises `MalformedError`: -32700 for what is not JSON, not UTF-8 or too deep; -32600 for what is no JSON-RPC message
    or holds a key of the envelope twice (WIRE section 1, "Framing").
    """
    check_text(data)
    try:
        message = _decoder.decode(data)
    except msgspec.ValidationError:
        raise MalformedError(INVALID_REQUEST, _why_no_message(data), _id_of(data)) from None
    except msgspec.DecodeError as error:
        raise MalformedError(PARSE_ERROR, f"not JSON: {error}") from None
    _check_envelope(message, data)
    return message


def split_batch(data: bytes) -> list[bytes]:
    """Returns the messages of a batch (MCP 2025-03-26). `data` has been through `check_text` and begins with `[`.

    Raises `MalformedError` for what is not JSON, and for an empty batch.
    """
    try:
        batch = _batch_decoder.decode(data)
    except msgspec.DecodeError as error:
        raise MalformedError(PARSE_ERROR, f"not JSON: {error}") from None
    if not batch:
        raise MalformedError(INVALID_REQUEST, "an empty batch")
    return [bytes(item) for item in batch]


def encode_request(id: bytes, method: str, params: bytes) -> bytes:
    """Returns a request that carries `params`, JSON text."""
    return b'{"jsonrpc":"2.0","id":%b,"method":"%b","params":%b}' % (id, method.encode(), params)


def encode_result(id: bytes, result: bytes) -> bytes:
    """Returns a response that carries `result`, JSON text."""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (id or NULL, result)


def encode_error(id: bytes, error: dict[str, Any]) -> bytes:
    """Returns an error response; `error` holds `code`, `message` and `data`."""
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (id or NULL, msgspec.json.encode(error))


def encode_notification(method: str, params: bytes) -> bytes:
    """Returns a notification that carries `params`, JSON text."""
    return b'{"jsonrpc":"2.0","method":"%b","params":%b}' % (method.encode(), params)


def _check_envelope(message: Message, data: bytes) -> None:
    # JSON-RPC 2.0, section 4: an id is a string, a number or null.
    if bytes(message.raw_id)[:1] in (b"[", b"{", b"t", b"f"):
        raise MalformedError(INVALID_REQUEST, "id must be a string or a number")
    if not message.method and not (message.result or message.error):
        raise MalformedError(INVALID_REQUEST, "no method", message.id or NULL)
    _refuse_duplicates(data, message.id or NULL)


def _why_no_message(data: bytes) -> str:
    return "method must be a string" if data.lstrip()[:1] == b"{" else "not an object"


class _OnlyId(Struct):
    id: Raw = Raw(NULL)


def _id_of(data: bytes) -> bytes:
    """The id of an object that is no message, so that its sender can tell which one was refused."""
    try:
        id = bytes(msgspec.json.decode(data, type=_OnlyId).id)
    except msgspec.DecodeError:
        return NULL
    return NULL if id[:1] in (b"[", b"{", b"t", b"f") else id


def _refuse_duplicates(data: bytes, id: bytes) -> None:
    """msgspec takes the last of two equal keys; another parser takes the first. Neither may win silently."""
    # A key that stands once as written cannot be doubled, unless an escape hides the second one.
    if b"\\" not in data and all(data.count(key) <= 1 for key in _KEYS):
        return
    try:
        members.members(data.decode())
    except members.DuplicateKeyError as error:
        key = str(error)
        raise MalformedError(INVALID_REQUEST, f"the key {key!r} stands twice", NULL if key == "id" else id) from None
