"""The plain routes for callers that speak no MCP (WIRE section 4.2), on Quart-Trio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from quart import request
from quart_trio import QuartTrio
from quart_trio.wrappers import TrioResponse as Response
from werkzeug.exceptions import HTTPException
from werkzeug.exceptions import MethodNotAllowed as OtherMethods

from oubliette import errors
from oubliette.errors import (
    InternalError,
    InvalidParams,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    OublietteError,
)
from oubliette.http.bodies import members_of
from oubliette.http.request import Request
from oubliette.log import get as get_logger
from oubliette.toolbox import box
from oubliette.toolbox.call import Call, Services

_REQUEST: Final = "oubliette.request"
_NEW_SESSION: Final = frozenset({"message", "project_id", "workspace_id", "agent", "context"})
_NEW_MESSAGE: Final = frozenset({"message", "context", "interrupt"})
_PAGE: Final = {"since_index": int, "limit": int, "wait_seconds": float}

View = Callable[..., Awaitable[Response]]

log = get_logger(__name__)


class PlainRoutes:
    """Serves what is neither a stream nor an answer to a request."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._app = QuartTrio("oubliette")
        self._app.register_error_handler(HTTPException, _not_routed)
        # A slash too many is another path, not a redirect in HTML.
        self._app.url_map.merge_slashes = False
        self._add_routes()

    async def __call__(self, incoming: Request) -> None:
        """Answers one request through Quart."""
        scope = {**incoming.scope, _REQUEST: incoming}
        await self._app(scope, _replay(incoming), _forward(incoming))  # type: ignore[arg-type]  # plain ASGI dicts

    def _add_routes(self) -> None:
        routes: list[tuple[str, str, View]] = [
            ("POST", "/sessions", self._start),
            ("GET", "/sessions/<session_id>", self._get),
            ("DELETE", "/sessions/<session_id>", self._end),
            ("POST", "/sessions/<session_id>/messages", self._message),
            ("GET", "/sessions/<session_id>/events", self._page),
        ]
        for method, path, view in routes:
            self._app.add_url_rule(path, f"{method} {path}", _guarded(view), methods=[method])

    async def _start(self) -> Response:
        return _json(201, await self._run("session_message", members_of(_incoming(), _NEW_SESSION)))

    async def _get(self, session_id: str) -> Response:
        return _json(200, await self._run("session_get", {"session_id": session_id}))

    async def _end(self, session_id: str) -> Response:
        return _json(200, await self._run("session_end", {"session_id": session_id}))

    async def _message(self, session_id: str) -> Response:
        arguments = {**members_of(_incoming(), _NEW_MESSAGE), "session_id": session_id}
        return _json(202, await self._run("session_message", arguments))

    async def _page(self, session_id: str) -> Response:
        """One page of events; the stream of them is in `event_routes`."""
        arguments = {"session_id": session_id, **_page_arguments()}
        return _json(200, await self._run("session_events", arguments))

    def _call(self) -> Call:
        return Call(principal=_incoming().known_principal, services=self._services, door="http")

    async def _run(self, tool: str, arguments: dict[str, Any]) -> bytes:
        return await box.run(self._call(), box.TOOLS[tool], msgspec.json.encode(arguments))


def _json(status: int, body: bytes) -> Response:
    return Response(body, status, content_type="application/json")


def _error(error: OublietteError) -> Response:
    return _json(error.http_status, errors.as_http(error))


def _guarded(view: View) -> View:
    """Turns a view's errors into answers before Quart sees them: quart-trio drops a part of what it groups."""

    async def guarded(**parameters: str) -> Response:
        try:
            return await view(**parameters)
        except OublietteError as error:
            return _error(error)
        except Exception:
            log.exception("a request failed", path=request.path)
            return _error(InternalError("internal error; the daemon's log has the details"))

    return guarded


async def _not_routed(error: HTTPException) -> Response:
    if isinstance(error, OtherMethods):
        response = _error(MethodNotAllowed(f"{request.method} is not allowed on {request.path!r}"))
        response.allow.update(error.valid_methods or ())
        return response
    if error.code == 404:
        return _error(NotFound(f"no route {request.path!r}"))
    return _error(InvalidRequest(f"the request was refused: {error.name}"))


def _replay(incoming: Request) -> Callable[[], Awaitable[dict[str, Any]]]:
    """What Quart receives: the body, which the door has read, and then what the peer does."""
    first = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, Any]:
        return first.pop() if first else await incoming.receive()

    return receive


def _forward(incoming: Request) -> Callable[[dict[str, Any]], Awaitable[None]]:
    """What Quart sends, noted so that the door knows whether the head is out."""

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            await incoming.start(message["status"], message["headers"])
        elif message["type"] == "http.response.body":
            await incoming.write(message["body"], more=message.get("more_body", False))

    return send


def _incoming() -> Request:
    incoming = request.scope[_REQUEST]  # type: ignore[typeddict-item]  # a key of ours
    assert isinstance(incoming, Request)
    return incoming


def _page_arguments() -> dict[str, Any]:
    return {name: _number(name, kind) for name, kind in _PAGE.items() if name in request.args}


def _number(name: str, kind: type[int] | type[float]) -> int | float:
    try:
        return msgspec.json.decode(request.args[name], type=kind)
    except (msgspec.MsgspecError, UnicodeError):
        raise InvalidParams(f"{name} must be a number, not {request.args[name]!r}", field=name) from None
