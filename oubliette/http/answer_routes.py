"""The two routes that a caller uses for every request that it is given (WIRE section 4.2).

Plain ASGI: they are the hot path of a caller that speaks no MCP, and Quart would cost half as much again.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from oubliette import errors
from oubliette.errors import MethodNotAllowed
from oubliette.http.bodies import members_of
from oubliette.http.request import Request
from oubliette.toolbox import box
from oubliette.toolbox.call import Call, Services

_PATH: Final = re.compile(r"/sessions/([^/]+)/requests/([^/]+)(/progress)?\Z")
_ANSWER: Final = frozenset({"result", "error"})
_PROGRESS: Final = frozenset({"progress", "total", "message"})


class AnswerRoutes:
    """Serves `POST /sessions/{id}/requests/{request_id}`, and `…/progress`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def serves(self, request: Request) -> bool:
        """Whether a request is for one of these routes."""
        return _PATH.match(request.path) is not None

    async def __call__(self, request: Request) -> None:
        """Passes an answer or a report on, and answers 204. Raises what the tool raises."""
        match = _PATH.match(request.path)
        assert match is not None
        session_id, request_id, is_progress = match.groups()
        if request.method != "POST":
            refusal = MethodNotAllowed(f"{request.method} is not allowed on {request.path!r}")
            return await request.respond(405, errors.as_http(refusal), [(b"allow", b"POST")])
        given: dict[str, Any] = members_of(request, _PROGRESS if is_progress else _ANSWER)
        arguments = msgspec.json.encode({**given, "session_id": session_id, "request_id": request_id})
        call = Call(principal=request.known_principal, services=self._services, door="http")
        tool = box.TOOLS["caller_tool_progress" if is_progress else "caller_tool_response"]
        await box.run(call, tool, arguments)
        await request.respond(204)
