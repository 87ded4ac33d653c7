"""What a request to an HTTP proxy asks for, and what of it goes on (RFC 9110, sections 7.6 and 9.3.6; RFC 9112, 3.2).

Heads go through h11 on both sides, so nothing is passed on that it has not understood, and no byte of a body can become
a request of its own.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Final

import h11
from msgspec import Struct

from oubliette.link.addresses import Address, parse

_ABSOLUTE: Final = re.compile(r"http://([^/?#]*)([/?][^#]*)?\Z", re.IGNORECASE)
_HTTP_PORT: Final = 80
# RFC 9110, section 7.6.1, and what proxies were told before it. Of these a peer speaks to its neighbour alone.
_HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"upgrade",
    }
)
# What says where a message ends. A `Connection` header that names one of these must not take it away.
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding", b"host"})
_CLOSE: Final = (b"Connection", b"close")


class Wanted(Struct, frozen=True):
    """Where a request is to go; `head` is what goes there, None for a tunnel."""

    address: Address
    head: h11.Request | None


def wanted_untrusted(request: h11.Request) -> Wanted:
    """Returns what a proxy is asked for: a tunnel (CONNECT HOST:PORT), or an http request in absolute-form.

    Raises `ValueError` for anything else.
    """
    target = request.target.decode("ascii")
    if request.method == b"CONNECT":
        return Wanted(parse(target), None)
    match = _ABSOLUTE.match(target)
    if match is None:
        raise ValueError(f"{request.method.decode('ascii')} needs a URL that begins with http://")
    address = parse(match[1], _HTTP_PORT)
    path = match[2] or "/"
    return Wanted(address, _in_origin_form(request, address, path if path.startswith("/") else f"/{path}"))


def _in_origin_form(request: h11.Request, address: Address, path: str) -> h11.Request:
    # RFC 9112, section 3.2.2: a proxy "MUST ignore the received Host header field (if any) and instead replace it with
    # the host information of the request-target".
    host = str(address).removesuffix(f":{_HTTP_PORT}").encode("ascii")
    headers = [(name, value) for name, value in _end_to_end(request) if name.lower() != b"host"]
    return h11.Request(method=request.method, target=path, headers=[(b"Host", host), *headers, _CLOSE])


def passed_on(response: h11.Response) -> h11.Response:
    """Returns an upstream's response for the agent. It is the connection's last: the next one may go elsewhere."""
    headers = [*_end_to_end(response), _CLOSE]
    return h11.Response(status_code=response.status_code, headers=headers, reason=response.reason)


def _end_to_end(message: h11.Request | h11.Response) -> list[tuple[bytes, bytes]]:
    """The headers that are not of one connection alone. Where chunks say how long a body is, no length does."""
    headers = message.headers
    named = {token.strip().lower() for name, value in headers if name == b"connection" for token in value.split(b",")}
    dropped = _HOP_BY_HOP | (named - _FRAMING)
    if any(name == b"transfer-encoding" for name, _ in headers):
        dropped |= {b"content-length"}
    return [(name, value) for name, value in headers.raw_items() if name.lower() not in dropped]


def refusal(status: int, sentence: str) -> bytes:
    """Returns a whole response that says why a request is not carried."""
    body = f"{sentence}\n".encode()
    reason = HTTPStatus(status).phrase
    head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode("ascii") + body
