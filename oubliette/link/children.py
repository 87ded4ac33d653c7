"""The child sessions of the session that an agent is in: it starts them, speaks to them and watches them.

WIRE section 1: "a child session of this one, in its project and workspace", and the events "for this session's own
children only". No key is asked for, so any other session does not exist here (HAZARDS T9).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import msgspec
import trio
from msgspec import Raw

from oubliette.errors import NotFound
from oubliette.events import Entry, FellBehindError, within_bounds
from oubliette.log import span
from oubliette.protocol import link
from oubliette.relay import QUOTED
from oubliette.session import Session
from oubliette.streams import Stream
from oubliette.toolbox.call import Services

# The events of one answer; a client asks again for more.
MAX_PAGE: Final = 100
# JSON spells a character with six at the most, such as `\u0001`.
_ESCAPED: Final = 6

_decoder: Final = msgspec.json.Decoder(dict[str, Raw])


class Children:
    """What the agents of one session may do with its children. The events of one answer have at most `max_bytes`."""

    def __init__(self, session: Session, services: Services, max_bytes: int) -> None:
        self._session = session
        self._services = services
        self._max_bytes = max_bytes

    async def message(self, params: link.SessionMessageParams) -> bytes:
        """Starts a child, or gives one its next message. Returns the result of `session_message`.

        Raises `NotFound` for what is no child of this session, `Conflict` for one that has ended, and `LimitExceeded`.
        """
        with span("session_message", session=self._session.id):
            if params.session_id is None:
                child, _ = await self._services.sessions.spawn(self._session, params.message)
            else:
                child = await self._child(params.session_id)
                await self._services.sessions.message(child, params.message)
        return link.session_message_result(child.id, spawned=params.session_id is None)

    async def events(self, params: link.SessionEventsParams) -> bytes:
        """Returns the result of `session_events`. Raises `NotFound` for what is no child of this session."""
        child = await self._child(params.session_id)
        events = await self._page(child, params)
        page = link.SessionEvents(
            session_id=child.id,
            status=child.status,
            last_index=child.log.last_index,
            events=events,
            completed=child.completed,
            failed=child.failed,
        )
        return link.session_events_result(page)

    async def _child(self, session_id: str) -> Session:
        missing = NotFound(f"this session has no child session {session_id[:QUOTED]!r}", field="session_id")
        try:
            session = await self._services.sessions.find(session_id)
        except NotFound:
            raise missing from None
        if session.parent_id != self._session.id:
            # One sentence, whether it is nowhere or somebody else's (HAZARDS G2).
            raise missing
        return session

    async def _page(self, child: Session, params: link.SessionEventsParams) -> list[Raw]:
        # The agent is no principal: to watch is not to be connected, and nothing that it is shown is given to a caller.
        with Stream(self._session.id, self._services.events, counts=False) as stream:
            stream.cover(child, params.since_index)
            entries = await stream.ready(MAX_PAGE)
            if not entries and params.wait_seconds:
                # Whoever falls behind here is told nothing, asks again, and gets it all from the records.
                with trio.move_on_after(params.wait_seconds), suppress(FellBehindError):
                    entries = await stream.batch(MAX_PAGE)
        return [Raw(self._bounded(entry)) for entry in within_bounds(entries, MAX_PAGE, self._max_bytes)]

    def _bounded(self, entry: Entry) -> bytes:
        """A client gives a link up whose lines are longer than it takes: of one long event the end of its text is told,
        and of a tool's arguments nothing.
        """
        if len(entry.data) <= self._max_bytes:
            return entry.data
        event = _decoder.decode(entry.data)
        if "arguments" in event:
            event["arguments"] = link.EMPTY_OBJECT
        for name in event.keys() & {"text", "message"}:
            text = msgspec.json.decode(event[name], type=str)
            event[name] = Raw(msgspec.json.encode(text[-(self._max_bytes // _ESCAPED) :]))
        return msgspec.json.encode(event)
