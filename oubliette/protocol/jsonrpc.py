"""JSON-RPC 2.0 messages whose payloads stay as they were written.

`decode` answers in two ways: a message, or `MalformedError` with the code to answer with. Ids, params and results are
kept as source text, so that 1, 1.0 and "1" stay three different ids and 1.10 stays 1.10.
"""

from __future__ import annotations

import operator
from collections import Counter
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct

from oubliette.protocol.nesting import MAX_DEPTH, too_deep

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
NULL: Final = b"null"
_ABSENT: Final = Raw(b"")
# How much of a peer's text may come back in the message of an error: enough to recognise it, never all 4 MiB.
_QUOTED: Final = 64


class MalformedError(Exception):
    """Peer bytes that are no message: the code and the id (`null` where it is not known) to answer with."""

    def __init__(self, code: Literal[-32700, -32600], message: str, id: bytes = NULL) -> None:
        super().__init__(message)
        self.code = code
        self.id = id


class Message(Struct, frozen=True, kw_only=True):
    """One JSON-RPC message, of whichever kind `method` and `id` make it. An absent member is empty."""

    # WIRE section 1: "`jsonrpc` may be missing".
    jsonrpc: Literal["2.0"] = "2.0"
    raw_id: Raw = msgspec.field(default=_ABSENT, name="id")
    method: str = ""
    params: Raw = _ABSENT
    result: Raw = _ABSENT
    error: Raw = _ABSENT

    @property
    def id(self) -> bytes:
        """The id in its one spelling (`canonical_id`), `b""` where there is none."""
        return canonical_id(self.raw_id)

    @property
    def is_response(self) -> bool:
        """Whether it answers a request: `decode` lets nothing through that has neither a method nor an outcome."""
        return not self.method


class _Key:
    """A member's key that equals no other key, so that msgspec keeps both of two members of one name."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


_decoder: Final = msgspec.json.Decoder(Message)
_members_decoder: Final = msgspec.json.Decoder(dict[_Key, Raw], dec_hook=operator.call)
_dict_decoder: Final = msgspec.json.Decoder(dict[str, Raw])
_encode: Final = msgspec.json.Encoder().encode
_raw_decoder: Final = msgspec.json.Decoder(Raw)
_batch_decoder: Final = msgspec.json.Decoder(list[Raw])


def canonical_id(raw: Raw | bytes) -> bytes:
    r"""Returns an id's JSON text. A string has one spelling here, whatever escapes it came with: `"\u0061"` as `"a"`.

    `raw` comes out of a decoded message, or is empty.
    """
    text = bytes(raw)
    return text if b"\\" not in text else _encode(msgspec.json.decode(text))


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
        raise MalformedError(PARSE_ERROR, f"nested deeper than {MAX_DEPTH} levels")


def decode(data: bytes) -> Message:
    """Returns the message in `data`, one whole line or body.

    Raises `MalformedError`: -32700 for what is not JSON, not UTF-8 or too deep, and for half a surrogate pair;
    -32600 for what is no JSON-RPC message or holds a key of the envelope twice (WIRE section 1, "Framing").
    """
    check_text(data)
    try:
        message = _decoder.decode(data)
    except msgspec.ValidationError as error:
        raise _refusal(data, str(error)) from None
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


def encode_result(id: bytes, result: bytes) -> bytes:
    """Returns a response on one line that carries `result`, JSON text."""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (id or NULL, compact(result))


def encode_error(id: bytes, error: dict[str, Any]) -> bytes:
    """Returns an error response on one line; `error` holds `code`, `message` and `data`."""
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (id or NULL, compact(_encode(error)))


def encode_notification(method: str, params: bytes) -> bytes:
    """Returns a notification on one line that carries `params`, JSON text."""
    return b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (_encode(method), compact(params))


def _check_envelope(message: Message, data: bytes) -> None:
    _refuse_duplicates(data)
    if not _is_id(message.raw_id):
        raise MalformedError(INVALID_REQUEST, "id must be a string or a number")
    if not (message.method or message.result or message.error):
        raise MalformedError(INVALID_REQUEST, "no method", _id_of(data))


def _refuse_duplicates(data: bytes) -> None:
    """msgspec takes the last of two equal keys; another parser takes the first. Neither may win silently."""
    # What comes out of a dict as it went in holds no key twice. Other spellings are looked at key by key.
    if _encode(_dict_decoder.decode(data)) == data:
        return
    keys = _members_decoder.decode(data)
    if len({key.name for key in keys}) < len(keys):
        [(name, _)] = Counter(key.name for key in keys).most_common(1)
        raise MalformedError(INVALID_REQUEST, f"the key {name[:_QUOTED]!r} stands twice", _id_of(data))


def _refusal(data: bytes, problem: str) -> MalformedError:
    """What to say of text that is no message."""
    try:
        # msgspec stopped at the first value of a wrong type: what follows it may not even be JSON.
        _raw_decoder.decode(data)
    except msgspec.DecodeError as error:
        return MalformedError(PARSE_ERROR, f"not JSON: {error}")
    return MalformedError(INVALID_REQUEST, f"not a JSON-RPC message: {problem[:_QUOTED]}", _id_of(data))


def _id_of(data: bytes) -> bytes:
    """The id to refuse a JSON text with, so that its sender can tell which one it was; `null` unless it has one id."""
    try:
        ids = [raw for key, raw in _members_decoder.decode(data).items() if key.name == "id"]
    except msgspec.ValidationError:  # not an object
        return NULL
    return canonical_id(ids[0]) if len(ids) == 1 and _is_id(ids[0]) else NULL


def _is_id(raw: Raw) -> bool:
    # JSON-RPC 2.0, section 4: "a String, Number, or NULL value if included". An absent one is empty.
    return bytes(raw)[:1] not in (b"[", b"{", b"t", b"f")
