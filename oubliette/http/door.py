"""The one way in: what is decided of every request, before any route sees it (WIRE section 4).

In this order: is the target a path, are Host and Origin ours, is the daemon stopping, whose token is it, is the body
JSON and within bounds. Errors of the routes end here too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

from oubliette import errors
from oubliette.errors import (
    BodyTooLong,
    BodyTooSlow,
    Forbidden,
    InternalError,
    InvalidRequest,
    OublietteError,
    ShuttingDown,
    UnsupportedMediaType,
)
from oubliette.http.event_routes import EventRoutes
from oubliette.http.hosts import Hosts
from oubliette.http.request import JSON, Header, Receive, Request, Send
from oubliette.log import get as get_logger
from oubliette.log import span
from oubliette.protocol.jsonrpc import encode_error
from oubliette.tokens import Tokens

# How long a body may take to arrive, in seconds.
BODY_TIMEOUT: Final = 30.0
# "what still comes is read and dropped, within 64 MiB and 2 s, so that clients see the answer"
DRAIN_BYTES: Final = 64 * 1024 * 1024
DRAIN_SECONDS: Final = 2.0
MCP_PATH: Final = "/mcp"
_BEARER: Final = "bearer "

Route = Callable[[Request], Awaitable[None]]

log = get_logger(__name__)


class Door:
    """The ASGI application. `open_routes` need no token, `mcp` serves `/mcp`, `streams` the event streams, `plain` the rest.

    `is_stopping` is set for the time of the graceful stop.
    """

    def __init__(
        self,
        *,
        hosts: Hosts,
        tokens: Tokens,
        max_body: int,
        open_routes: dict[str, Route],
        mcp: Route,
        streams: EventRoutes,
        plain: Route,
    ) -> None:
        self._hosts = hosts
        self._tokens = tokens
        self._max_body = max_body
        self._open_routes = open_routes
        self._mcp = mcp
        self._streams = streams
        self._plain = plain
        self.is_stopping = False

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Serves one request. Raises nothing but what cancels it."""
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        request = Request(scope, receive, send)
        with span("http", method=request.method, path=request.path):
            try:
                await self._serve(request)
            except OublietteError as error:
                await self._refuse(request, error)
            except Exception:
                await self._fail(request)
            except BaseExceptionGroup as group:
                cancelled, others = group.split(trio.Cancelled)
                if others is not None:
                    await self._fail(request)
                if cancelled is not None:
                    raise cancelled from None

    async def _serve(self, request: Request) -> None:
        self._check_target(request)
        if (route := self._open_routes.get(request.path)) is not None:
            return await route(request)
        if self.is_stopping:
            raise ShuttingDown("the daemon is stopping")
        request.principal = self._tokens.authenticate(_bearer(request))
        if request.method not in ("GET", "HEAD"):
            request.body = await self._read_body(request)
        await self._route(request)(request)

    def _route(self, request: Request) -> Route:
        if request.path == MCP_PATH:
            return self._mcp
        return self._streams if self._streams.serves(request) else self._plain

    def _check_target(self, request: Request) -> None:
        if not request.path.startswith("/"):
            raise InvalidRequest("the request's target must be a path")
        if not self._hosts.allows_host(request.header(b"host")):
            raise Forbidden(f"Host {request.header(b'host')!r} is not allowed; see server.allowed_hosts")
        if b"origin" in request.headers and not self._hosts.allows_origin(request.header(b"origin")):
            raise Forbidden(f"Origin {request.header(b'origin')!r} is not allowed; see server.allowed_origins")

    async def _read_body(self, request: Request) -> bytes:
        """Returns the whole body. Raises where it is too long, too slow, encoded, or not JSON."""
        if request.header(b"content-encoding").lower() not in ("", "identity"):
            raise UnsupportedMediaType("a body must not be compressed")
        if _declared_length(request) > self._max_body:
            raise self._too_long()
        with trio.move_on_after(BODY_TIMEOUT):
            body = await self._receive_body(request)
            if body or request.method == "POST":
                _check_type(request)
            return body
        raise BodyTooSlow(f"the body did not arrive within {BODY_TIMEOUT:g} s")

    async def _receive_body(self, request: Request) -> bytes:
        chunks, length = [], 0
        while True:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise InvalidRequest("the peer has gone")
            chunk: bytes = message.get("body", b"")
            length += len(chunk)
            if length > self._max_body:
                raise self._too_long()
            chunks.append(chunk)
            if not message.get("more_body"):
                request.headers[b"content-length"] = b"0"  # nothing is left to drain
                return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _too_long(self) -> BodyTooLong:
        return BodyTooLong(f"the body is longer than relay.max_message_bytes ({self._max_body}) allows")

    async def _fail(self, request: Request) -> None:
        """An error of ours: the log has it, the peer is told no more than that."""
        log.exception("a request failed", path=request.path)
        await self._refuse(request, InternalError("internal error; the daemon's log has the details"))

    async def _refuse(self, request: Request, error: OublietteError) -> None:
        if request.has_started:
            return  # the head is out: Hypercorn ends the connection, which tells the peer
        is_mcp = request.path == MCP_PATH
        body = encode_error(b"null", errors.as_jsonrpc(error)) if is_mcp else errors.as_http(error)
        headers: list[Header] = [JSON, (b"content-length", b"%d" % len(body))]
        headers += [(b"www-authenticate", b"Bearer")] if error.http_status == 401 else []
        await request.start(error.http_status, headers)
        await request.write(body)
        await _drain(request)
        await request.write(b"", more=False)


async def _drain(request: Request) -> None:
    """Reads and drops what a refused peer still sends: a connection closed on unread bytes would lose the answer."""
    if not _has_body(request):
        return
    dropped = 0
    with trio.move_on_after(DRAIN_SECONDS):
        while dropped < DRAIN_BYTES:
            message = await request.receive()
            dropped += len(message.get("body", b""))
            if message["type"] == "http.disconnect" or not message.get("more_body"):
                return


def _has_body(request: Request) -> bool:
    return _declared_length(request) > 0 or b"transfer-encoding" in request.headers


def _declared_length(request: Request) -> int:
    value = request.headers.get(b"content-length", b"0")
    return int(value) if value.isdigit() else 0


def _check_type(request: Request) -> None:
    """Only JSON: a browser sends other types across sites without asking first (CVE-class of GHSA-89xv-2j6f-qhc8)."""
    kind = request.header(b"content-type").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise UnsupportedMediaType(f"Content-Type must be application/json, not {kind or 'missing'!r}")


def _bearer(request: Request) -> str:
    value = request.header(b"authorization")
    return value[len(_BEARER) :].strip() if value.lower().startswith(_BEARER) else ""
