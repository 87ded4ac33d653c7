"""Messages of the SDK, read within bounds and written exactly.

WIRE section 1: payloads pass through "with their number spelling, key order and Unicode kept". The SDK reads them and
writes them anew, so `Exact` goes around it: the arguments of a call are written as their source text, and the line that
answers it is kept.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCMessage, JSONRPCResponse, RequestId, jsonrpc_message_adapter

from oubliette.protocol.nesting import MAX_DEPTH, too_deep

# A page of a list, or a result: four times what a result may have, so that a result that is too long is refused by
# itself. Read by the SDK a message costs up to ten times its size.
MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
_encode: Final = msgspec.json.Encoder().encode


class UnreadableError(Exception):
    """A message of which not even the id can be told: what waits for it would wait until its deadline."""


class Exact:
    """The answers whose source text is wanted, by the id of their request. As many as there are calls under way."""

    def __init__(self) -> None:
        self._texts: dict[RequestId, bytes] = {}

    def want(self, id: RequestId) -> None:
        """Says that the answer to a request is to be kept; whoever says so owes a `take`."""
        self._texts[id] = b""

    def take(self, id: RequestId) -> bytes:
        """Returns the answer as it came, nothing where none did."""
        return self._texts.pop(id, b"")

    def keep(self, message: JSONRPCMessage, text: bytes) -> None:
        """Keeps the text of a message if it is an answer that is wanted."""
        if isinstance(message, JSONRPCResponse) and message.id in self._texts:
            self._texts[message.id] = text


def read_untrusted(text: bytes, exact: Exact) -> JSONRPCMessage | None:
    """Returns the message that a server wrote; None where it is none, such as output that went astray.

    Raises UnreadableError for what is nested too deep to be read.
    """
    message = _read(text)
    if message is None and b'"jsonrpc"' in text:
        text = _mended(text)
        message = _read(text)
    if message is not None:
        exact.keep(message, text)
    return message


def write(message: SessionMessage) -> bytes:
    """Returns a message of the session on one line, without its line end."""
    members: dict[str, Any] = message.message.model_dump(by_alias=True, mode="python", exclude_unset=True)
    return _encode(members)


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
