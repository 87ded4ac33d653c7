"""For operators (WIRE section 4.4): is it alive, can it work."""

from __future__ import annotations

from collections.abc import Callable

from oubliette.errors import MethodNotAllowed
from oubliette.http.door import Route
from oubliette.http.request import Request


async def health(request: Request) -> None:
    """Answers 200: the event loop turns."""
    _check_method(request)
    await request.respond(200, b'{"status":"ok"}')


def readiness(is_ready: Callable[[], bool]) -> Route:
    """Returns the route that answers 200 while new work can be taken on, else 503."""

    async def ready(request: Request) -> None:
        _check_method(request)
        if is_ready():
            await request.respond(200, b'{"status":"ready"}')
        else:
            await request.respond(503, b'{"status":"not ready"}')

    return ready


def _check_method(request: Request) -> None:
    if request.method not in ("GET", "HEAD"):
        raise MethodNotAllowed(f"{request.method} is not allowed on {request.path}")
