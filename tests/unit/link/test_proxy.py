"""What a proxy's head asks for, and what of it goes on."""

from __future__ import annotations

import h11
import pytest

from oubliette.link.addresses import Address
from oubliette.link.proxy import passed_on, refusal, wanted_untrusted


def request(method: str, target: str, *headers: tuple[str, str]) -> h11.Request:
    given = headers or (("Host", "ignored"),)
    return h11.Request(method=method, target=target, headers=list(given))


def sent(head: h11.Request | None) -> bytes:
    """Returns a head as it is written."""
    assert head is not None
    return h11.Connection(h11.CLIENT).send(head) or b""


def test_a_tunnel_is_to_host_and_port() -> None:
    wanted = wanted_untrusted(request("CONNECT", "API.example.com:443"))
    assert (wanted.address, wanted.head) == (Address("api.example.com", 443), None)


@pytest.mark.parametrize(
    ("target", "host", "port", "line"),
    [
        ("http://a/b?c=d", "a", 80, b"POST /b?c=d HTTP/1.1"),
        ("HTTP://A:80/b", "a", 80, b"POST /b HTTP/1.1"),
        ("http://a:8000", "a", 8000, b"POST / HTTP/1.1"),
        ("http://a?b", "a", 80, b"POST /?b HTTP/1.1"),
        ("http://[::1]:8000//evil/", "::1", 8000, b"POST //evil/ HTTP/1.1"),
        ("http://a/http://evil/", "a", 80, b"POST /http://evil/ HTTP/1.1"),
        ("http://a/@evil:80/", "a", 80, b"POST /@evil:80/ HTTP/1.1"),
    ],
)
def test_a_request_in_absolute_form_goes_on_in_origin_form(target: str, host: str, port: int, line: bytes) -> None:
    wanted = wanted_untrusted(request("POST", target))
    assert wanted.address == Address(host, port)
    assert sent(wanted.head).startswith(line + b"\r\n")


@pytest.mark.parametrize(
    ("target", "host"),
    [("http://a/", b"a"), ("http://A:80/", b"a"), ("http://a:8000/", b"a:8000"), ("http://[::1]:1/", b"[::1]:1")],
)
def test_the_host_is_the_targets_whatever_the_header_says(target: str, host: bytes) -> None:
    """RFC 9112, section 3.2.2."""
    lines = sent(wanted_untrusted(request("GET", target, ("Host", "evil"))).head).split(b"\r\n")
    assert lines[1] == b"Host: " + host
    assert sum(line.lower().startswith(b"host:") for line in lines) == 1


NOT_CARRIED = """
GET /
GET *
OPTIONS *
GET a:80
GET https://a/
GET ftp://a/
GET http:/a
GET http:///
GET http://user@a/
GET http://user:b@a/
GET http://a:x/
GET http://a#b
GET http://a/#b
GET http://a\\@b/
CONNECT a
CONNECT http://a:80/
CONNECT a:80/
CONNECT b@a:80
CONNECT /
connect a:80
"""


@pytest.mark.parametrize(("method", "target"), [line.split() for line in NOT_CARRIED.split("\n") if line])
def test_anything_else_is_refused(method: str, target: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT|begins with http|no host name"):
        wanted_untrusted(request(method, target))


def test_what_is_for_the_next_hop_alone_stays_here() -> None:
    """RFC 9110, section 7.6.1; the keys of the provider are for the provider, those of a proxy are not."""
    hop = ["Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authorization", "Proxy-Authenticate", "TE", "Upgrade"]
    headers = [(name, "X-Mine, keep-alive" if name == "Connection" else "x") for name in [*hop, "Trailer", "x-mine"]]
    kept = [("Authorization", "Bearer key"), ("x-api-key", "key"), ("Accept", "*/*"), ("Content-Length", "3")]
    found = sent(wanted_untrusted(request("POST", "http://a/", ("Host", "a"), *headers, *kept)).head)
    expected = "".join(f"{name}: {value}\r\n" for name, value in [("Host", "a"), *kept, ("Connection", "close")])
    assert found == b"POST / HTTP/1.1\r\n" + expected.encode() + b"\r\n"


def test_a_connection_header_cannot_take_the_framing_away() -> None:
    named = ("Connection", "Content-Length, Host, Transfer-Encoding, close")
    found = sent(wanted_untrusted(request("POST", "http://a/", ("Host", "a"), named, ("Content-Length", "3"))).head)
    assert b"Content-Length: 3\r\n" in found
    assert b"Host: a\r\n" in found


def test_of_two_framings_the_chunks_count() -> None:
    """RFC 9112, section 6.1: whoever takes the other for it would see a request in the body."""
    both = (("Content-Length", "3"), ("Transfer-Encoding", "chunked"))
    found = sent(wanted_untrusted(request("POST", "http://a/", ("Host", "a"), *both)).head)
    assert b"chunked" in found
    assert b"ontent-" not in found


def test_a_response_is_the_last_of_its_connection() -> None:
    headers = [("Connection", "keep-alive, x-hop"), ("X-Hop", "1"), ("Keep-Alive", "timeout=5"), ("X-Id", "2")]
    found = passed_on(h11.Response(status_code=201, headers=headers, reason=b"Made"))
    assert found.headers.raw_items() == [(b"X-Id", b"2"), (b"Connection", b"close")]
    assert (found.status_code, found.reason) == (201, b"Made")


def test_a_refusal_is_a_whole_response() -> None:
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="GET", target="http://a/", headers=[("Host", "a")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(refusal(403, "no – not that one"))
    response, data = connection.next_event(), connection.next_event()
    assert isinstance(response, h11.Response)
    assert (response.status_code, response.reason) == (403, b"Forbidden")
    assert isinstance(data, h11.Data)
    assert data.data.decode() == "no – not that one\n"
    assert connection.their_state is h11.MUST_CLOSE or isinstance(connection.next_event(), h11.EndOfMessage)
