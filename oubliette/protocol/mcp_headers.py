"""The headers that a 2026-07-28 request repeats its body in, and the Base64 form of what no header can hold."""

from __future__ import annotations

import base64
import binascii
from typing import Final

VERSION: Final = b"mcp-protocol-version"
METHOD: Final = b"mcp-method"
NAME: Final = b"mcp-name"
# "Required For `tools/call`, `resources/read`, `prompts/get` requests": the member of the params that it repeats.
NAMED_BY: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_HEAD, _TAIL = b"=?base64?", b"?="


def decode_untrusted(value: bytes) -> str | None:
    """Returns what a header's value says (MCP 2026-07-28, "Value Encoding"); None for what no client may send.

    "The prefix `=?base64?` and suffix `?=` … are case-sensitive"; all else is visible ASCII with spaces in between.
    """
    if not value.startswith(_HEAD) or not value.endswith(_TAIL) or len(value) < len(_HEAD) + len(_TAIL):
        return value.decode() if value.isascii() and value.decode().isprintable() else None
    encoded = value[len(_HEAD) : -len(_TAIL)]
    try:
        decoded = base64.b64decode(encoded, validate=True)
        # One value has one form: what a gateway compares must be what is compared here.
        return decoded.decode() if base64.b64encode(decoded) == encoded else None
    except (binascii.Error, UnicodeDecodeError):
        return None


def encode(value: str) -> bytes:
    """Returns a header's value that says `value`."""
    plain = value.isascii() and value.isprintable() and value == value.strip()
    if plain and not (value.startswith(_HEAD.decode()) and value.endswith(_TAIL.decode())):
        return value.encode()
    return _HEAD + base64.b64encode(value.encode()) + _TAIL
