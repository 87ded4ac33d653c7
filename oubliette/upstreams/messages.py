"""Messages of the SDK, read within bounds and written exactly.

WIRE section 1: payloads pass through "with their number spelling, key order and Unicode kept". The SDK reads them and
writes them anew; so the arguments of a call are written as their source text, and the text that answers it is kept.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec
from mcp.shared.dispatcher import coerce_request_id
from mcp_types import (
    INTERNAL_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
    jsonrpc_message_adapter,
)
from msgspec import Struct

from oubliette.protocol.nesting import MAX_DEPTH, too_deep

# A page of a list, or a result: twice what a result may have, so that a result that is too long is refused by itself.
# Over HTTP a hostile server can send as many at once as there may be calls: 512 MiB.
MAX_MESSAGE_BYTES: Final = 8 * 1024 * 1024
# The code of an answer that was cut off, between a transport and its session: it is on no wire, and no server's own.
CUT_OFF: Final = -32099
# A server's own requests are declined at once; so many unanswered ones are a server that does not read the answers.
MAX_ASKED: Final = 64
_encode: Final = msgspec.json.Encoder().encode


class UnreadableError(Exception):
    """What a server sent that is not read: continues "it sent "."""


class _Envelope(Struct):
    id: int | str | None = None
    method: str = ""


_envelope: Final = msgspec.json.Decoder(_Envelope)


class Ledger:
    """What is open between a session and its server.

    The answers whose source text is wanted, by the id of their request, as many as there are calls under way; and how
    many of the server's own requests wait for an answer.
    """

    def __init__(self) -> None:
        self._texts: dict[RequestId, bytes] = {}
        self._asked = 0

    def want(self, id: RequestId) -> None:
        """Says that the answer to a request is to be kept; whoever says so owes a `take`."""
        self._texts[id] = b""

    def take(self, id: RequestId) -> bytes:
        """Returns the answer as it came, nothing where none did."""
        return self._texts.pop(id, b"")

    def enter(self, message: JSONRPCMessage, text: bytes) -> None:
        """Notes a message that came. Raises UnreadableError where the server asks faster than it is answered."""
        if isinstance(message, JSONRPCRequest):
            self._asked += 1
            if self._asked > MAX_ASKED:
                raise UnreadableError(f"more than {MAX_ASKED} requests that wait for an answer")
        elif isinstance(message, JSONRPCResponse) and coerce_request_id(message.id) in self._texts:
            self._texts[coerce_request_id(message.id)] = text

    def leave(self, message: JSONRPCMessage) -> None:
        """Notes a message that was sent."""
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            self._asked -= 1


def read_untrusted(text: bytes, ledger: Ledger) -> JSONRPCMessage | None:
    """Returns the message that a server wrote; None where it is none, such as output that went astray.

    Raises UnreadableError for what is nested too deep to be read, and for a request too many.
    """
    message = _read(text)
    if message is None and b'"jsonrpc"' in text:
        text = _mended(text)
        message = _read(text) or _failed_answer(text)
    if message is not None:
        ledger.enter(message, text)
    return message


def write(message: JSONRPCMessage) -> bytes:
    """Returns a message of the session on one line, without its line end."""
    members: dict[str, Any] = message.model_dump(by_alias=True, mode="python", exclude_unset=True)
    return _encode(members)


def _failed_answer(text: bytes) -> JSONRPCError | None:
    """An answer that is none, such as `"result": null`, as a failure: else its request would wait for its deadline."""
    try:
        envelope = _envelope.decode(text)
    except msgspec.DecodeError:
        return None
    if envelope.method or envelope.id is None:
        return None
    error = ErrorData(code=INTERNAL_ERROR, message="its answer is not what MCP says")
    return JSONRPCError(jsonrpc="2.0", id=envelope.id, error=error)


def _mended(text: bytes) -> bytes:
    """The text with a mark for each byte that is not UTF-8, and for each half of a surrogate pair.

    One such character in the description of one tool would cost the whole list.
    """
    if too_deep(text):
        raise UnreadableError(f"a message that is nested deeper than {MAX_DEPTH} levels")
    try:
        value = json.loads(text.decode(errors="replace"))
    except ValueError:
        return b""
    return json.dumps(value, ensure_ascii=False).encode(errors="replace")


def _read(text: bytes) -> JSONRPCMessage | None:
    try:
        return jsonrpc_message_adapter.validate_json(text, by_name=False)
    except ValueError:
        return None
