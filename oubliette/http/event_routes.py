"""The two event streams for callers that speak no MCP: of one session, and of all of a principal (WIRE section 4.2).

Plain ASGI, as `/mcp` is: a stream counts as the owner's presence from before its first byte until its connection's
end, and nothing may come between.
"""

from __future__ import annotations

import re
from typing import Final

from oubliette.errors import InvalidParams, MethodNotAllowed, NotAcceptable
from oubliette.events import Entry
from oubliette.following import Following
from oubliette.http.positions import Positions
from oubliette.http.request import Request
from oubliette.http.stream import Frame, write_events
from oubliette.session import Session
from oubliette.streams import Stream
from oubliette.toolbox.call import Call, Services

_OF_SESSION: Final = re.compile(r"/sessions/([^/]+)/events\Z")
_OF_ALL: Final = "/events"


class EventRoutes:
    """Serves the streams."""

    def __init__(self, services: Services, positions: Positions) -> None:
        self._services = services
        self._positions = positions

    def serves(self, request: Request) -> bool:
        """Whether a request asks for a stream: a page of a session's events is JSON."""
        if request.path == _OF_ALL:
            return True
        if request.method != "GET":
            return False
        accept = request.header(b"accept").lower()
        wants_page = "application/json" in accept and "text/event-stream" not in accept
        return _OF_SESSION.match(request.path) is not None and not wants_page

    async def __call__(self, request: Request) -> None:
        """Answers with a stream. Raises before its first byte where it cannot be opened."""
        if request.method != "GET":
            raise MethodNotAllowed(f"{request.method} is not allowed on {request.path}")
        if not request.accepts("text/event-stream"):
            raise NotAcceptable("Accept must allow text/event-stream")
        match = _OF_SESSION.match(request.path)
        if match is None:
            await self._stream_all(request)
        else:
            await self._stream_session(request, match[1])

    async def _stream_session(self, request: Request, session_id: str) -> None:
        call = self._call(request)
        session = await call.session(session_id)
        resume_at = _resume_index(request)
        with self._stream(call) as stream, self._following(call, stream) as following:
            stream.cover(session, resume_at)
            if request.query().get("children") == "true":
                following.descendants(session)
            await write_events(request, stream, _frame_of(session))

    async def _stream_all(self, request: Request) -> None:
        call = self._call(request)
        resume_at = self._positions.seq_of(request.header(b"last-event-id"))
        with self._stream(call).stay_open() as stream, self._following(call, stream) as following:
            self._services.standing.add(stream)
            try:
                if resume_at is None:
                    following.everything()
                else:
                    await following.resume_everything(resume_at)
                await write_events(request, stream, self._frame)
            finally:
                self._services.standing.discard(stream)

    def _following(self, call: Call, stream: Stream) -> Following:
        return Following(stream, self._services.sessions, call.principal.token_id)

    def _frame(self, entry: Entry) -> bytes:
        return _framed(entry, self._positions.id_of(entry).encode() if entry.index else b"")

    def _stream(self, call: Call) -> Stream:
        return Stream(call.principal.token_id, self._services.events)

    def _call(self, request: Request) -> Call:
        return Call(principal=request.known_principal, services=self._services, door="http")


def _resume_index(request: Request) -> int | None:
    """ "`Last-Event-ID` or `?since_index=` resumes (a malformed one is 400)"."""
    last = request.header(b"last-event-id") or request.query().get("since_index")
    if last is None:
        return None
    if not last.isascii() or not last.isdigit() or len(last) > 18:
        raise InvalidParams(f"cannot resume at {last!r}: an event's index is a whole number", field="since_index")
    return int(last)


def _frame_of(session: Session) -> Frame:
    """Frames of one session's stream: the `id:` is the index, and a descendant's event has none."""

    def frame(entry: Entry) -> bytes:
        return _framed(entry, b"%d" % entry.index if entry.index and entry.session_id == session.id else b"")

    return frame


def _framed(entry: Entry, id: bytes) -> bytes:
    # Types and ids are ours and hold no line end; the data is compact JSON, which holds none.
    head = b"id: %b\n" % id if id else b""
    return b"%bevent: %b\ndata: %b\n\n" % (head, entry.type.encode(), entry.data)
