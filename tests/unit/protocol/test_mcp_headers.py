"""The headers that repeat the body (MCP 2026-07-28, "Value Encoding" and "Server Validation")."""

from __future__ import annotations

import pytest

from oubliette.protocol.mcp_headers import decode_untrusted, encode

# The examples of the specification, and the edges of its rules.
VALUES = {
    "us-west1": b"us-west1",
    "Hello, 世界": b"=?base64?SGVsbG8sIOS4lueVjA==?=",
    " padded ": b"=?base64?IHBhZGRlZCA=?=",
    "line1\nline2": b"=?base64?bGluZTEKbGluZTI=?=",
    "=?base64?literal?=": b"=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?=",
    "=?base64??=": b"=?base64?PT9iYXNlNjQ/Pz0=?=",
    "=?base64?=": b"=?base64?PT9iYXNlNjQ/PQ==?=",
    "": b"",
    "a b": b"a b",
    "=?base64?open": b"=?base64?open",
    "=?BASE64?YQ==?=": b"=?BASE64?YQ==?=",
    "\t": b"=?base64?CQ==?=",
    "a\tb": b"=?base64?YQli?=",
    "\x7f": b"=?base64?fw==?=",
    "\0": b"=?base64?AA==?=",
    "\r": b"=?base64?DQ==?=",
    "\xa0": b"=?base64?wqA=?=",
    "file:///projects/myapp/config.json": b"file:///projects/myapp/config.json",
}


@pytest.mark.parametrize(("value", "header"), VALUES.items())
def test_both_ways(value: str, header: bytes) -> None:
    assert encode(value) == header
    assert decode_untrusted(header) == value


@pytest.mark.parametrize(
    "header",
    [
        b"=?base64?SGVsbG8?=",  # no padding
        b"=?base64?SGVs bG8=?=",
        b"=?base64?SGVsbG8=\n?=",
        b"=?base64?SGV-bG8_?=",  # base64url
        b"=?base64?SGVsbG9=?=",  # bits beyond the last byte: a second spelling of "Hello"
        b"=?base64?SGVsbG8==?=",
        b"=?base64?=?=",
        b"=?base64?/w==?=",  # not UTF-8
        b"=?base64?7aCA?=",  # half a surrogate pair
        b"=?base64?\xff?=",
        b"\xff",
        "Grüße".encode(),
        b"a\tb",
        b"a\0",
        b"\x7f",
        b"a\nb",
    ],
)
def test_what_no_client_may_send(header: bytes) -> None:
    assert decode_untrusted(header) is None


@pytest.mark.parametrize(
    ("header", "value"),
    [
        (b"=?base64??=", ""),
        (b"=?base64?YQ==?=", "a"),
        (b"=?base64?YQ==", "=?base64?YQ=="),
        (b"=?base64?=", "=?base64?="),
        (b"x=?base64?YQ==?=", "x=?base64?YQ==?="),
        (b"=?Base64?YQ==?=", "=?Base64?YQ==?="),
    ],
)
def test_the_markers_must_stand_exactly_as_shown(header: bytes, value: str) -> None:
    assert decode_untrusted(header) == value
