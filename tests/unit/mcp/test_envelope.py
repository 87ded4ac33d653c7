"""What a 2026-07-28 request says of itself, and how its headers must repeat it (WIRE section 4.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from oubliette.errors import HeaderMismatch, InvalidParams, OublietteError, UnsupportedProtocolVersion
from oubliette.mcp.envelope import is_stateless, meta_of, open_envelope, says_its_revision
from oubliette.protocol.jsonrpc import Message, decode
from oubliette.protocol.mcp import CLIENT_CAPABILITIES, LOG_LEVEL, PROTOCOL_VERSION
from tests.unit.mcp.harness import META, STATELESS, headers_of, message_of


def lines(headers: Mapping[str, str]) -> dict[bytes, bytes]:
    return {name.encode(): value.encode() for name, value in headers.items()}


def listing(**meta: Any) -> Message:
    return message_of("tools/list", _meta={**META, **meta})


def refusal(message: Message, headers: Mapping[str, str] | None = None) -> OublietteError:
    with pytest.raises(OublietteError) as caught:
        open_envelope(message, lines(headers_of(message) if headers is None else headers))
    return caught.value


# Which era


@pytest.mark.parametrize(
    ("params", "version", "stateless"),
    [
        ("{}", "", False),
        ("{}", "2025-11-25", False),
        ("{}", "2026-07-28", True),
        ("{}", "2027-01-01", False),
        ('{"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}}', "", True),
        ('{"_meta": {"io.modelcontextprotocol/protocolVersion": "2025-11-25"}}', "2025-11-25", True),
        ('{"_meta": {"io.modelcontextprotocol/protocolVersion": null}}', "", True),
        # As encoders write it that escape every slash.
        (r'{"_meta": {"io.modelcontextprotocol\/protocolVersion": "2026-07-28"}}', "", True),
        (r'{"_meta": {"io.modelcontextprotocol/\u0070rotocolVersion": "2026-07-28"}}', "", True),
        # Whatever is wrong with the rest is for the refusal to say.
        ('{"_meta": {"io.modelcontextprotocol/protocolVersion": 1, "progressToken": []}}', "", True),
        ('{"io.modelcontextprotocol/protocolVersion": "2026-07-28"}', "", False),
        ('{"_meta": {"protocolVersion": "2026-07-28"}}', "", False),
        ('{"_meta": "io.modelcontextprotocol/protocolVersion"}', "", False),
        ('{"_meta": null, "protocolVersion": 1}', "", False),
        ('["protocolVersion"]', "", False),
        ('"protocolVersion"', "", False),
    ],
)
def test_a_request_says_of_which_era_it_is(params: str, version: str, stateless: bool) -> None:
    message = decode(b'{"id":1,"method":"tools/list","params":%b}' % params.encode())
    headers = {b"mcp-protocol-version": version.encode()} if version else {}
    assert is_stateless(message, headers) is stateless
    assert says_its_revision(message) is (stateless and params != "{}")


def test_a_request_without_params_is_of_the_earlier_era() -> None:
    assert not is_stateless(decode(b'{"id":1,"method":"ping"}'), {})


@pytest.mark.parametrize("meta", ["null", "5", '{"progressToken": null}', '{"io.modelcontextprotocol/logLevel": 7}'])
def test_the_earlier_revisions_demand_nothing_of_meta(meta: str) -> None:
    message = decode(b'{"id":1,"method":"tools/call","params":{"_meta":%b}}' % meta.encode())
    assert bytes(meta_of(message).progress_token or b"") == b""


# The members


def test_what_a_request_says_of_itself() -> None:
    message = listing(**{LOG_LEVEL: "debug", CLIENT_CAPABILITIES: {"sampling": {}}, "progressToken": 1.0})
    envelope = open_envelope(message, lines(headers_of(message)))
    assert envelope.revision is STATELESS
    assert (envelope.level, envelope.capabilities) == ("debug", frozenset({"sampling"}))
    assert bytes(envelope.progress_token or b"") == b"1.0"
    plain = open_envelope(listing(), lines(headers_of(listing())))
    assert (plain.level, bool(plain.progress_token)) == (None, False)


@pytest.mark.parametrize("key", [PROTOCOL_VERSION, CLIENT_CAPABILITIES])
@pytest.mark.parametrize("wrong", [None, 5, []])
def test_the_required_members_must_be_there_and_of_their_type(key: str, wrong: Any) -> None:
    missing = message_of("tools/list", _meta={name: value for name, value in META.items() if name != key})
    for message in (missing, listing(**{key: wrong})):
        error = refusal(message)
        assert isinstance(error, InvalidParams)
        assert error.field == f"params._meta.{key}"
        assert key in error.message


@pytest.mark.parametrize(
    "wrong", [{LOG_LEVEL: "loud"}, {LOG_LEVEL: 5}, {"progressToken": None}, {"progressToken": {}}, None, 5, []]
)
def test_malformed_meta_is_invalid_params(wrong: Any) -> None:
    message = message_of("tools/list", _meta={**META, **wrong} if isinstance(wrong, dict) else wrong)
    assert isinstance(refusal(message), InvalidParams)


@pytest.mark.parametrize("params", [b"null", b"[]", b"5", b'""'])
def test_params_that_are_no_object_are_invalid_params(params: bytes) -> None:
    message = decode(b'{"id":1,"method":"tools/list","params":%b}' % params)
    with pytest.raises(InvalidParams):
        open_envelope(message, None)


# The headers


@pytest.mark.parametrize("name", ["mcp-protocol-version", "mcp-method", "mcp-name"])
@pytest.mark.parametrize("value", [None, "", "something-else", "Session_List", "session_list, session_list"])
def test_each_header_must_say_what_the_body_says(name: str, value: str | None) -> None:
    message = message_of("tools/call", name="session_list", _meta=META)
    headers = headers_of(message)
    del headers[name]
    error = refusal(message, headers if value is None else {**headers, name: value})
    assert isinstance(error, HeaderMismatch)
    assert error.code == -32020
    assert name in error.message.lower()


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {"name": "session_list"}),
        ("prompts/get", {"name": "Grüße"}),
        ("resources/read", {"uri": "oubliette://sessions/ses_1/events"}),
    ],
)
def test_the_name_is_asked_of_the_methods_that_have_one(method: str, params: Any) -> None:
    message = message_of(method, **params, _meta=META)
    headers = headers_of(message)
    assert open_envelope(message, lines(headers)).revision is STATELESS
    del headers["mcp-name"]
    assert isinstance(refusal(message, headers), HeaderMismatch)


@pytest.mark.parametrize("encoded", ["session_list", "=?base64?c2Vzc2lvbl9saXN0?="])
def test_a_name_may_come_in_base64(encoded: str) -> None:
    message = message_of("tools/call", name="session_list", _meta=META)
    assert open_envelope(message, lines({**headers_of(message), "mcp-name": encoded})).revision is STATELESS


@pytest.mark.parametrize("malformed", ["=?base64?c2Vz c2lvbg==?=", "=?base64?c2Vzc2lvbl9saXN0", "=?BASE64?YQ==?="])
def test_malformed_base64_is_a_mismatch(malformed: str) -> None:
    message = message_of("tools/call", name="session_list", _meta=META)
    assert isinstance(refusal(message, {**headers_of(message), "mcp-name": malformed}), HeaderMismatch)


def test_a_name_that_the_body_lacks_or_mistypes_is_for_the_method_to_refuse() -> None:
    bare = message_of("tools/call", _meta=META)
    headers = {"mcp-protocol-version": STATELESS.name, "mcp-method": "tools/call"}
    assert open_envelope(bare, lines(headers)).revision is STATELESS
    mistyped = message_of("tools/call", name=5, _meta=META)
    assert isinstance(refusal(mistyped, {**headers, "mcp-name": "5"}), HeaderMismatch)


def test_other_methods_need_no_name_and_other_transports_no_header() -> None:
    message = message_of("completion/complete", name="x", _meta=META)
    assert open_envelope(message, lines(headers_of(message))).revision is STATELESS
    assert open_envelope(message_of("tools/call", name="x", _meta=META), None).revision is STATELESS


# The revision


@pytest.mark.parametrize("requested", ["2025-11-25", "2024-11-05", "2027-01-01", ""])
def test_another_revision_is_refused_with_those_that_are_spoken(requested: str) -> None:
    message = listing(**{PROTOCOL_VERSION: requested})
    error = refusal(message, {**headers_of(message), "mcp-protocol-version": requested})
    assert isinstance(error, UnsupportedProtocolVersion)
    assert error.extra == {
        "supported": ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26"],
        "requested": requested,
    }


def test_what_is_wrong_first_is_said_first() -> None:
    """ "missing required field" before the headers, these before the revision, as the official SDKs have it."""
    bare = message_of("tools/list", _meta={PROTOCOL_VERSION: "1999-01-01"})
    assert isinstance(refusal(bare, {}), InvalidParams)
    old = listing(**{PROTOCOL_VERSION: "1999-01-01"})
    assert isinstance(refusal(old, {}), HeaderMismatch)
    assert isinstance(refusal(old, {"mcp-protocol-version": "1999-01-01"}), HeaderMismatch)
