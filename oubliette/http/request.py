"""One HTTP request as the routes see it, and the ways to answer it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final
from urllib.parse import parse_qsl

import trio

from oubliette.tokens import Principal

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]
Upgrade = Callable[[Iterable[Header]], Awaitable[tuple[trio.abc.Stream, bytes]]]

# The ASGI extension by which a request takes its connection over: an `Upgrade`, good for one use.
UPGRADE: Final = "oubliette.upgrade"
JSON: Final = (b"content-type", b"application/json")


class Request:
    """A request that the door has let in: `principal` is who it is made as, `body` is whole and within bounds.

    `is_received` is true when nothing of its body is still to come, `status` is the answer's once its head is out, and
    `is_answered` is true when nothing of the answer is still to come.
    """

    def __init__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers = _joined(scope["headers"])
        self.body = b""
        self.principal: Principal | None = None
        self.is_received = False
        self.is_answered = False
        self.status = 0
        self._receive = receive
        self._send = send

    @property
    def known_principal(self) -> Principal:
        """The principal, on a route behind the door's token check."""
        assert self.principal is not None
        return self.principal

    def header(self, name: bytes) -> str:
        """Returns a header's value, empty where there is none."""
        return self.headers.get(name, b"").decode("latin-1").strip()

    @property
    def wants_websocket(self) -> bool:
        """Whether the peer proposes to go on in WebSocket frames (RFC 6455, section 4.2.1)."""
        if self.method != "GET" or "websocket" not in self._tokens(b"upgrade"):
            return False
        # RFC 9110, section 7.8: of HTTP/1.0 "a server MUST ignore an Upgrade header field".
        return "upgrade" in self._tokens(b"connection") and self.scope["http_version"] != "1.0"

    def query(self) -> dict[str, str]:
        """Returns the parameters of the query; of a repeated one the last."""
        return dict(parse_qsl(self.scope["query_string"].decode("latin-1"), keep_blank_values=True))

    def accepts(self, kind: str) -> bool:
        """Whether the answer may be of media type `kind`; without an `Accept` header anything may."""
        accept = self.header(b"accept").lower()
        family = kind.partition("/")[0]
        return not accept or any(wanted in accept for wanted in (kind, f"{family}/*", "*/*"))

    async def receive(self) -> dict[str, Any]:
        """Returns what comes from the peer next: a piece of the body, or that it has gone."""
        message = await self._receive()
        self.is_received = self.is_received or not message.get("more_body")
        return message

    async def start(self, status: int, headers: Iterable[Header]) -> None:
        """Sends the head of a response whose body follows by `write`."""
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def write(self, chunk: bytes, *, more: bool = True) -> None:
        """Sends a part of the body; the last one with `more=False`."""
        self.is_answered = not more
        await self._send({"type": "http.response.body", "body": chunk, "more_body": more})

    async def respond(self, status: int, body: bytes = b"", headers: Iterable[Header] = ()) -> None:
        """Sends a whole response, JSON where it has a body."""
        length = (b"content-length", b"%d" % len(body))
        await self.start(status, [*headers, *([JSON] if body else []), *([length] if status != 204 else [])])
        await self.write(body, more=False)

    async def upgrade(self, headers: Iterable[Header]) -> tuple[trio.abc.Stream, bytes]:
        """Answers 101 with `headers`, and returns the connection and the bytes that came behind the request.

        They are the route's from then on: nobody else reads or writes, and the connection ends when the route returns.
        Raises `RuntimeError` where the peer proposed no upgrade, or the request is answered or upgraded already.
        """
        if self.status:
            raise RuntimeError("the request has its answer")
        upgrade: Upgrade = self.scope["extensions"][UPGRADE]
        stream, received = await upgrade(headers)
        self.status = 101
        return stream, received

    async def disconnected(self) -> None:
        """Returns when the peer has gone. The body must have been read."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    def _tokens(self, name: bytes) -> list[str]:
        return [token.strip() for token in self.header(name).lower().split(",")]


def _joined(headers: Iterable[Header]) -> dict[bytes, bytes]:
    """Header lines of one name count as one, with commas in between (RFC 9110, section 5.3).

    So of two contradicting lines neither wins: together they are no token, no origin and no type that is allowed.
    """
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        found[name] = found[name] + b", " + value if name in found else value
    return found
