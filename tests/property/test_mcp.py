"""What holds for every MCP message of both eras, however it is spelled and however its bytes are cut.

WIRE section 4.1; MCP 2026-07-28, "Value Encoding" and "Server Validation".
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from oubliette.errors import InvalidParams, OublietteError
from oubliette.mcp.envelope import Envelope, is_stateless, meta_of, open_envelope, params_of, says_its_revision
from oubliette.protocol import mcp
from oubliette.protocol.jsonrpc import Message, decode
from oubliette.protocol.mcp_headers import decode_untrusted, encode
from oubliette.protocol.sse import EventDecoder
from tests.helpers.peer import Peer
from tests.property.odd_json import OBJECTS, VALUES, parsed
from tests.unit.http.harness import connected, make_door
from tests.unit.mcp.harness import LOGGED, META, Endpoint, headers_of, open_endpoint, text_of

few: Final = settings(deadline=None, database=None, max_examples=60)

# --- Headers ---------------------------------------------------------------------------------------------------------

NAMES: Final = st.text() | st.sampled_from(["=?base64?", "?=", "=?base64?YQ==?=", " ", "\t"])


@few
@given(st.lists(NAMES, max_size=3).map("".join))
def test_every_name_survives_its_header(name: str) -> None:
    header = encode(name)
    assert decode_untrusted(header) == name
    assert header.isascii()
    assert header == header.strip()
    assert not {b"\r"[0], b"\n"[0], 0} & set(header)


PIECES: Final = st.sampled_from([b"=?base64?", b"?=", b"YQ==", b"=", b"?", b"/w", b"\xff", b"\0", b"a", b" "])


@few
@given(st.lists(PIECES, max_size=6).map(b"".join) | st.binary(max_size=30))
def test_any_header_says_one_thing_or_nothing(header: bytes) -> None:
    """STYLE, "What to absorb", 4: peer bytes raise nothing here. What a header says has two forms at the most."""
    value = decode_untrusted(header)
    if value is not None:
        assert decode_untrusted(encode(value)) == value
        assert header in (value.encode(), b"=?base64?%b?=" % base64.b64encode(value.encode()))


# --- Params ----------------------------------------------------------------------------------------------------------

TEXT: Final = st.text(max_size=8)
RAW: Final = VALUES.map(lambda text: Raw(text.encode()))
TOKEN: Final = st.just(UNSET) | st.sampled_from(['"t"', "7", "-1", "1.0", '"\\u00e9"']).map(lambda t: Raw(t.encode()))
LEVEL: Final = st.sampled_from(mcp.LEVELS)
JSON_TEXT: Final = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT
RequestMetas: Final = st.builds(
    mcp.RequestMeta,
    protocol_version=st.just(UNSET) | JSON_TEXT,
    client_capabilities=st.just(UNSET) | st.dictionaries(TEXT, JSON_TEXT, max_size=2),
    log_level=st.none() | LEVEL,
    progress_token=TOKEN,
)
REFERENCES: Final = st.builds(mcp.PromptReference, name=TEXT) | st.builds(mcp.TemplateReference, uri=TEXT)
FILTERS: Final = st.builds(
    mcp.SubscriptionFilter,
    tools_list_changed=st.booleans(),
    prompts_list_changed=st.booleans(),
    resources_list_changed=st.booleans(),
    resource_subscriptions=st.lists(TEXT, max_size=2),
)
PARAMS: Final = st.one_of(
    RequestMetas,
    st.builds(mcp.AnyParams, meta=st.just(UNSET) | RequestMetas, name=st.just(UNSET) | TEXT, uri=st.just(UNSET) | TEXT),
    st.builds(mcp.InitializeParams, protocol_version=TEXT),
    st.builds(mcp.CallToolParams, name=TEXT, arguments=RAW),
    st.builds(mcp.SetLevelParams, level=LEVEL),
    st.builds(mcp.CancelledParams, request_id=RAW),
    st.builds(mcp.PageParams, cursor=st.none() | TEXT),
    st.builds(mcp.GetPromptParams, name=TEXT, arguments=st.dictionaries(TEXT, TEXT, max_size=2)),
    st.builds(mcp.ResourceParams, uri=TEXT),
    st.builds(mcp.CompleteParams, ref=REFERENCES, argument=st.builds(mcp.CompletedArgument, name=TEXT, value=TEXT)),
    st.builds(mcp.ListenParams, notifications=FILTERS),
)


@few
@given(PARAMS)
def test_every_message_survives_encoding_and_decoding(params: msgspec.Struct) -> None:
    text = msgspec.json.encode(params)
    message = decode(b'{"jsonrpc":"2.0","id":1,"method":"m","params":%b}' % text)
    assert msgspec.json.encode(params_of(type(params), message)) == text


def test_no_kind_of_params_is_left_out() -> None:
    """A new Struct of `protocol/mcp.py` belongs into `PARAMS`."""
    kinds = {value for value in vars(mcp).values() if isinstance(value, type) and issubclass(value, msgspec.Struct)}
    drawn = {"PromptReference", "TemplateReference", "CompletedArgument", "SubscriptionFilter"}
    tested = {"RequestMeta", "AnyParams", "InitializeParams", "CallToolParams", "SetLevelParams", "CancelledParams"}
    tested |= {"PageParams", "GetPromptParams", "ResourceParams", "CompleteParams", "ListenParams"}
    assert {kind.__name__ for kind in kinds - {msgspec.Struct}} == drawn | tested


# --- Envelopes -------------------------------------------------------------------------------------------------------

META_KEYS: Final = [mcp.PROTOCOL_VERSION, mcp.CLIENT_CAPABILITIES, mcp.LOG_LEVEL, "progressToken", "other"]
META_VALUES: Final = st.sampled_from(['"2026-07-28"', '"2025-11-25"', "{}", '"info"', "7", "null", "[]"]) | VALUES
# Of the beginning of a key, and of its slash.
SPELLINGS: Final = st.sampled_from(["io.", r"\u0069o."]), st.sampled_from(["/", r"\/", r"\u002f"])


@st.composite
def odd_metas(draw: st.DrawFn) -> str:
    """The JSON of a `_meta`, its keys spelled in several ways."""
    pairs = []
    for key in draw(st.lists(st.sampled_from(META_KEYS), unique=True)):
        beginning, slash = map(draw, SPELLINGS)
        spelled = key.replace("io.", beginning).replace("/", slash)
        pairs.append(f'"{spelled}": {draw(META_VALUES)}')
    return f"{{{', '.join(pairs)}}}"


ODD_PARAMS: Final = st.one_of(
    VALUES, OBJECTS, odd_metas(), (odd_metas() | VALUES).map(lambda meta: f'{{"_meta": {meta}, "name": "x"}}')
)
ODD_HEADERS: Final = st.dictionaries(
    st.sampled_from([b"mcp-protocol-version", b"mcp-method", b"mcp-name"]),
    st.sampled_from([b"2026-07-28", b"2025-11-25", b"tools/call", b"x", b"=?base64?eA==?=", b"\xff", b""]),
)


def opened(message: Message, headers: Mapping[bytes, bytes] | None) -> Envelope | OublietteError:
    """What comes of a peer's params and headers is an envelope or an error of ours, so no other is caught here."""
    try:
        return open_envelope(message, headers)
    except OublietteError as error:
        return error


@settings(few, max_examples=150)
@given(ODD_PARAMS, ODD_HEADERS)
def test_any_request_says_its_era_and_is_taken_or_refused(params: str, headers: dict[bytes, bytes]) -> None:
    message = decode(b'{"id":1,"method":"tools/call","params":%b}' % params.encode())
    value = parsed(params)
    meta = value.get("_meta") if isinstance(value, dict) else None
    assert says_its_revision(message) is (isinstance(meta, dict) and mcp.PROTOCOL_VERSION in meta)
    assert is_stateless(message, headers) is (
        says_its_revision(message) or headers.get(b"mcp-protocol-version") == b"2026-07-28"
    )
    assert isinstance(meta_of(message), mcp.RequestMeta)
    with_headers, without = opened(message, headers), opened(message, None)
    assert isinstance(without, Envelope | OublietteError)
    # Headers only ever add a reason to refuse.
    assert not isinstance(with_headers, Envelope) or isinstance(without, Envelope)
    assert not isinstance(without, InvalidParams) or isinstance(with_headers, InvalidParams)


# --- The wire --------------------------------------------------------------------------------------------------------

Case = Callable[[Endpoint, str], bytes]


def http(headers: Mapping[str, str], body: bytes) -> bytes:
    lines = {"Host": "localhost", "Authorization": "Bearer good", "Content-Type": "application/json", **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST /mcp HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def stateless(method: str, **params: Any) -> bytes:
    text = text_of(method, **{"_meta": META, **params})
    return http(headers_of(decode(text)), text)


def within_session(endpoint: Endpoint, text: bytes, revision: str = "2025-11-25") -> bytes:
    session = endpoint.open_session(revision)
    return http({"Accept": "application/json, text/event-stream", "Mcp-Session-Id": session.id}, text)


FOLLOW: Final[dict[str, Any]] = {"name": "session_events", "_meta": LOGGED}
PING: Final = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
# Requests by their era; each takes the id of a session that has ended.
CASES: Final[dict[str, Case]] = {
    "new: one object": lambda endpoint, id: stateless("prompts/list"),
    "new: a stream": lambda endpoint, id: stateless(
        "tools/call", **FOLLOW, arguments={"session_id": id, "follow": True}
    ),
    "new: an error": lambda endpoint, id: stateless("nope"),
    "new: a mismatch": lambda endpoint, id: stateless("ping").replace(b"Mcp-Method: ping", b"Mcp-Method: pong"),
    "new: a notification": lambda endpoint, id: http(
        {"MCP-Protocol-Version": "2026-07-28"}, b'{"jsonrpc":"2.0","method":"notifications/x"}'
    ),
    "old: one object": lambda endpoint, id: within_session(endpoint, PING),
    "old: a tool": lambda endpoint, id: within_session(
        endpoint, text_of("tools/call", name="session_events", arguments={"session_id": id})
    ),
    "old: a batch": lambda endpoint, id: within_session(endpoint, b"[%b, %b]" % (PING, PING), "2025-03-26"),
    "old: a notification": lambda endpoint, id: within_session(endpoint, b'{"method":"notifications/initialized"}'),
    "old: not JSON": lambda endpoint, id: within_session(endpoint, b"{"),
    "old: no session": lambda endpoint, id: http({}, PING),
}


@asynccontextmanager
async def wired() -> AsyncIterator[tuple[Endpoint, str]]:
    """`/mcp` in memory, and the id of a session that has ended."""
    with TemporaryDirectory() as folder:
        async with open_endpoint(Path(folder)) as endpoint:
            session = await endpoint.domain.start()
            await endpoint.domain.sessions.end(session)
            yield endpoint, session.id


async def answer(endpoint: Endpoint, pieces: list[bytes], trailing: bytes = b"") -> list[Any]:
    """Sends a request in pieces, and another one right behind it; returns what is answered to each."""
    found = []
    async with connected(make_door(endpoint.serve, max_body=10_000)) as peer:
        for piece in [*pieces[:-1], pieces[-1] + trailing]:
            await peer.send(piece)
        for _ in range(2 if trailing else 1):
            found.append(await answered(peer))
    return found


async def answered(peer: Peer) -> Any:
    status, headers, body = await peer.response("POST")
    if not headers.get(b"content-type", b"").startswith(b"text/event-stream"):
        return status, body
    whole = EventDecoder().feed(body)
    decoder = EventDecoder()
    assert [event for place in range(len(body)) for event in decoder.feed(body[place : place + 1])] == whole
    assert EventDecoder().feed(body + b": trailing\n\ndata: open") == whole
    return status, [json.loads(event.data) for event in whole]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_a_request_is_answered_alike_whole_byte_by_byte_and_with_trailing_data(case: Case) -> None:
    async with wired() as (endpoint, id):
        request = case(endpoint, id)
        (expected,) = await answer(endpoint, [request])
        assert expected[0] in (200, 202, 400, 404)
        assert await answer(endpoint, [request[at : at + 1] for at in range(len(request))]) == [expected]
        assert await answer(endpoint, [request], trailing=request) == [expected, expected]


@settings(few, max_examples=25)
@given(st.sampled_from(list(CASES)), st.lists(st.floats(0, 1), max_size=6))
def test_a_request_is_answered_alike_however_it_is_cut(name: str, cuts: list[float]) -> None:
    async def run() -> None:
        async with wired() as (endpoint, id):
            request = CASES[name](endpoint, id)
            places = sorted(round(cut * len(request)) for cut in cuts)
            pieces = [request[a:b] for a, b in zip([0, *places], [*places, len(request)], strict=True) if a < b]
            whole = await answer(endpoint, [request], trailing=request)
            assert await answer(endpoint, pieces, trailing=request) == whole

    trio.run(run)
