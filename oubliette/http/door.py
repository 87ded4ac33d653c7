"""The one way in: what is decided of every request, before any route sees it (WIRE section 4).

In this order: is the target a path, are Host and Origin ours, is the daemon stopping, whose token is it, is the body
within bounds and JSON. Errors of the routes end here too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

import trio

from oubliette import errors
from oubliette.audit import Door as DoorName
from oubliette.errors import (
    BodyTooLong,
    BodyTooSlow,
    Forbidden,
    InternalError,
    InvalidRequest,
    OublietteError,
    ShuttingDown,
    Unauthorized,
    UnsupportedMediaType,
)
from oubliette.gate import LAST_WORDS, Gate, TooManyFailures
from oubliette.http.hosts import Hosts
from oubliette.http.request import JSON, Header, Receive, Request, Send
from oubliette.log import get as get_logger
from oubliette.log import span
from oubliette.protocol.jsonrpc import encode_error

# How long a body may take to arrive: so many seconds, and the time that its declared length takes at this rate.
BODY_TIMEOUT: Final = 30.0
BODY_RATE: Final = 64 * 1024
# "what still comes is read and dropped, within 64 MiB and 2 s, so that clients see the answer"
DRAIN_BYTES: Final = 64 * 1024 * 1024
DRAIN_SECONDS: Final = 2.0
MCP_PATH: Final = "/mcp"
# What `Allow` says where a method is refused (RFC 9110, section 15.5.6); Quart says it for its routes.
_ALLOW_MCP: Final = (b"allow", b"GET, POST, DELETE")
_ALLOW: Final = (b"allow", b"GET")
# RFC 6455, section 4.4: the version that is spoken; RFC 9110, section 15.5.22: 426 names the protocol.
_WEBSOCKET: Final = ((b"upgrade", b"websocket"), (b"connection", b"upgrade"), (b"sec-websocket-version", b"13"))
_BEARER: Final = "bearer "

Route = Callable[[Request], Awaitable[None]]


class Routes(Protocol):
    """A part that serves some requests."""

    def serves(self, request: Request) -> bool: ...
    async def __call__(self, request: Request) -> None: ...


log = get_logger(__name__)


class Door:
    """The ASGI application.

    `open_routes` need no token, `mcp` serves `/mcp`, `direct` what each of them serves, `plain` the rest. `max_body` is
    in bytes. `is_stopping` is set for the time of the graceful stop.
    """

    def __init__(
        self,
        *,
        hosts: Hosts,
        gate: Gate,
        max_body: int,
        open_routes: dict[str, Route],
        mcp: Route,
        direct: Sequence[Routes],
        plain: Route,
    ) -> None:
        self._hosts = hosts
        self._gate = gate
        self._max_body = max_body
        self._open_routes = open_routes
        self._mcp = mcp
        self._direct = direct
        self._plain = plain
        self.is_stopping = False

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Serves one request. Raises nothing but what cancels it."""
        request = Request(scope, receive, send)
        with span("http", method=request.method, path=request.path) as served:
            await self._serve_contained(request)
            served.add(status=request.status)

    async def _serve_contained(self, request: Request) -> None:
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
        request.principal = self._gate.admit(_bearer(request), door=_door(request), source=_address(request))
        with self._gate.lease(request.principal):
            request.body = await self._read_body(request)
            await self._route(request)(request)

    def _route(self, request: Request) -> Route:
        if request.path == MCP_PATH:
            return self._mcp
        return next((routes for routes in self._direct if routes.serves(request)), self._plain)

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
        if request.method == "POST" or _announces_body(request):
            _check_type(request)
        seconds = BODY_TIMEOUT + _declared_length(request) / BODY_RATE
        with trio.move_on_after(seconds):
            return await self._receive_body(request)
        raise BodyTooSlow(f"the body did not arrive within {seconds:.0f} s")

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
            if chunk:
                chunks.append(chunk)
            if request.is_received:
                return b"".join(chunks)

    def _too_long(self) -> BodyTooLong:
        return BodyTooLong(f"the body is longer than relay.max_message_bytes ({self._max_body}) allows")

    async def _fail(self, request: Request) -> None:
        """An error of ours: the log has it, the peer is told no more than that."""
        log.exception("a request failed", path=request.path)
        await self._refuse(request, InternalError("internal error; the daemon's log has the details"))

    async def _refuse(self, request: Request, error: OublietteError) -> None:
        if request.status:
            # The head is out: Hypercorn ends the connection, which tells the peer.
            return await _end_stream(request) if isinstance(error, Unauthorized) else None
        is_mcp = request.path == MCP_PATH
        body = encode_error(b"null", errors.as_jsonrpc(error)) if is_mcp else errors.as_http(error)
        headers: list[Header] = [JSON, (b"content-length", b"%d" % len(body))]
        headers += [(b"www-authenticate", b"Bearer")] if error.http_status == 401 else []
        headers += [_ALLOW_MCP if is_mcp else _ALLOW] if error.http_status == 405 else []
        headers += _WEBSOCKET if error.http_status == 426 else ()
        headers += [(b"retry-after", b"%d" % error.retry_after)] if isinstance(error, TooManyFailures) else []
        await request.start(error.http_status, headers)
        await request.write(body)
        await _drain(request)
        await request.write(b"", more=False)


async def _end_stream(request: Request) -> None:
    """Ends the response of a principal who may have no more of it, in good order where its peer reads."""
    if request.status == 200 and not request.is_answered:
        with trio.move_on_after(LAST_WORDS):
            await request.write(b"", more=False)


async def _drain(request: Request) -> None:
    """Reads and drops what a refused peer still sends: a connection closed on unread bytes would lose the answer."""
    dropped = 0
    with trio.move_on_after(DRAIN_SECONDS):
        while dropped < DRAIN_BYTES and not request.is_received:
            dropped += len((await request.receive()).get("body", b""))


def _announces_body(request: Request) -> bool:
    return _declared_length(request) > 0 or b"transfer-encoding" in request.headers


def _declared_length(request: Request) -> int:
    value = request.headers.get(b"content-length", b"0")
    return int(value) if value.isdigit() else 0


def _check_type(request: Request) -> None:
    """Only JSON: a browser sends other types across sites without asking first (CVE-class of GHSA-89xv-2j6f-qhc8)."""
    kind = request.header(b"content-type").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise UnsupportedMediaType(f"Content-Type must be application/json, not {kind or 'missing'!r}")


def _door(request: Request) -> DoorName:
    if request.path != MCP_PATH:
        return "http"
    return "websocket" if request.wants_websocket else "mcp"


def _address(request: Request) -> str:
    """The peer's address, without its port: whoever guesses has as many ports as it likes."""
    return str((request.scope.get("client") or ("unknown",))[0])


def _bearer(request: Request) -> str:
    value = request.header(b"authorization")
    return value[len(_BEARER) :].strip() if value.lower().startswith(_BEARER) else ""
