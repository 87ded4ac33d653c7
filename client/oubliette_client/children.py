"""The tool `session_message`: an agent has a child session work on a message, and waits for the end of its turn.

The daemon answers the message at once (WIRE section 1); from then on the child's events are asked for until its turn is
over. So a call that is cancelled, or whose agent has lost patience, ends the asking and not the child: a later call
with its `session_id` finds it. What children and agents say stays source text on its way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import trio

from oubliette.protocol.members import members
from oubliette.protocol.results import error_result
from oubliette_client import source
from oubliette_client.link import Link, Report
from oubliette_client.streams import Outbox

METHOD: Final = "session_message"
EVENTS: Final = "session_events"
INPUT_SCHEMA: Final = (
    '{"type":"object","properties":{"message":{"type":"string","description":"What the child is to do"},'
    '"session_id":{"type":"string","description":"The child to go on with; without it a new one starts"}},'
    '"additionalProperties":false}'
)
OUTPUT_SCHEMA: Final = (
    '{"type":"object","properties":{"session_id":{"type":"string"},"status":{"type":"string"},'
    '"text":{"type":"string","description":"What the child said in its turn"}},'
    '"required":["session_id","status","text"]}'
)
# Of the 30 that the daemon allows: one that is busy answers in time all the same.
WAIT_SECONDS: Final = 20.0
# A daemon that answers "nothing new" at once, whatever it was asked, is not asked faster than this.
PAUSE_SECONDS: Final = 0.1
# Beyond every index: a page without events tells where a child stands.
_NOWHERE: Final = 2**53 - 1
# Where a child is at rest, the end of its last turn is among so many events; those before tell nothing.
_LATEST: Final = 50
# How much of what a child says goes into one line of progress, in characters.
_SHORT: Final = 200
_EMPTY: Final = '""'


class _RefusedError(Exception):
    """Why the agent gets no answer, in words for it."""


@dataclass(frozen=True, slots=True)
class _Page:
    """What the daemon says of a child: where it stands, and the members of its events, source text."""

    status: str
    last_index: int
    events: list[dict[str, str]]
    is_over: bool
    """no turn is under way: the last one has ended, or the session has"""


@dataclass(slots=True)
class _Watched:
    """A child whose turn is waited for. `session_id`, `text` and `error` are source text."""

    session_id: str
    since: int
    is_next: bool = False
    """whether the turn waited for is the next one to end"""
    status: str = "running"
    text: str | None = None
    """what the turn said that ended last, None where none has"""
    error: str = '"the session has ended before its turn was over"'
    reported: int = 0

    @property
    def name(self) -> str:
        return source.string(self.session_id) or ""

    @property
    def has_failed(self) -> bool:
        """Whether the turn waited for has not ended well; a session that failed may have had others that did."""
        return self.status in ("failed", "interrupted") or (self.text is None and self.status != "idle")

    def take(self, event: dict[str, str]) -> None:
        """Notes what an event tells of the turn."""
        kind = source.string(event.get("type"))
        # One without an index says that those before it are gone.
        index = source.number(event.get("index")) or (source.number(event.get("first_index")) or 1) - 1
        self.since = max(self.since, int(index))
        if kind == "turn_completed":
            self.text = event.get("text", _EMPTY)
        elif kind == "error":
            self.error = event.get("message", self.error)


class Children:
    """The agent's way to its child sessions. `outbox` is the one towards the agent, whose room progress waits for."""

    def __init__(self, link: Link, outbox: Outbox) -> None:
        self._link = link
        self._outbox = outbox

    async def call(self, arguments: str, report: Report, *, structured: bool) -> str:
        """Returns the `CallToolResult` of a call with `arguments`, source text; `report` gets what the child does.

        `structured` says whether the agent's revision knows `structuredContent`.
        """
        try:
            message, session_id = _read_untrusted(arguments)
            child = await self._begin(message, session_id)
            await self._say(child, report, f"child session {child.name} is at work")
            await self._wait(child, report)
        except _RefusedError as refused:
            return error_result(str(refused))
        return _result(child, structured=structured)

    async def _begin(self, message: str | None, session_id: str | None) -> _Watched:
        if session_id is None:
            return _Watched(await self._send({"message": message or _EMPTY}), 0, is_next=True)
        before = await self._events(session_id, _NOWHERE, 0)
        if message is not None:
            await self._send({"message": message, "session_id": session_id})
            return _Watched(session_id, before.last_index, is_next=before.is_over)
        return _Watched(session_id, max(0, before.last_index - _LATEST) if before.is_over else before.last_index)

    async def _wait(self, child: _Watched, report: Report) -> None:
        while True:
            since = child.since
            page = await self._events(child.session_id, since, WAIT_SECONDS)
            child.status = page.status
            for event in page.events:
                child.take(event)
                await self._say(child, report, _in_short(event))
                if child.is_next and child.text is not None:
                    return
            if page.is_over and child.since in (since, page.last_index):
                return
            if child.since == since:
                await trio.sleep(PAUSE_SECONDS)

    async def _say(self, child: _Watched, report: Report, text: str) -> None:
        if text:
            await self._outbox.room()
            child.reported += 1
            report({"progress": str(child.reported), "message": source.quote(text)})

    async def _send(self, params: dict[str, str]) -> str:
        """Sends a message. Returns the id of the child that got it, source text."""
        answer = await self._link.request(METHOD, source.join(params), _unheard)
        if answer.result is None:
            raise _RefusedError(answer.error)
        return source.fields(answer.result).get("session_id", _EMPTY)

    async def _events(self, session_id: str, since: int, seconds: float) -> _Page:
        params = {"session_id": session_id, "since_index": str(since), "wait_seconds": str(seconds)}
        answer = await self._link.request(EVENTS, source.join(params), _unheard)
        if answer.is_lost:
            raise _RefusedError(_lost(session_id))
        if answer.result is None:
            raise _RefusedError(answer.error)
        return _page(source.fields(answer.result))


def _unheard(report: dict[str, str]) -> None:
    """The daemon reports no progress on these requests."""


def _read_untrusted(arguments: str) -> tuple[str | None, str | None]:
    """Returns `message` and `session_id`, source text, one of them at least. Raises `_RefusedError` alone."""
    try:
        found = source.present(members(arguments))
    except ValueError:
        raise _RefusedError("session_message: the arguments must be an object, no key of it twice") from None
    for name, value in found.items():
        if name not in ("message", "session_id"):
            raise _RefusedError(f"session_message has no argument {source.excerpt(name)}: message, session_id")
        if not value.startswith('"'):
            raise _RefusedError(f"session_message: {name} must be a string")
    if not found:
        raise _RefusedError(
            "session_message needs message, to start a child session, or session_id, to wait for one that was started"
        )
    return found.get("message"), found.get("session_id")


def _page(found: dict[str, str]) -> _Page:
    return _Page(
        status=source.string(found.get("status")) or "running",
        last_index=int(source.number(found.get("last_index")) or 0),
        events=[source.fields(event) for event in source.items(found.get("events", "[]"))],
        is_over="true" in (found.get("completed"), found.get("failed")),
    )


def _in_short(event: dict[str, str]) -> str:
    """What an agent is shown of its child's work, one line of it; nothing of what does not concern it."""
    kind = source.string(event.get("type"))
    if kind == "message" and source.string(event.get("role")) == "assistant":
        return _line(event.get("text"))
    if kind in ("tool_call", "caller_tool_request"):
        return f"calls {_line(event.get('tool'))}"
    return _line(event.get("message")) if kind == "error" else ""


def _line(text: str | None) -> str:
    # The beginning first: a text may have a megabyte, and a line of progress need not be exact.
    return " ".join((source.string(text) or "")[: 4 * _SHORT].split())[:_SHORT]


def _lost(session_id: str) -> str:
    return (
        f"The connection to Oubliette was lost. The child session {source.string(session_id)} may still be at work: in "
        "a few seconds, call session_message with this session_id and without message."
    )


def _result(child: _Watched, *, structured: bool) -> str:
    text = child.error if child.has_failed else child.text or _EMPTY
    # Not every agent shows its model `structuredContent`, and some models' services refuse an empty block.
    told = source.quote(f"[child session {child.name}: {child.status}]")
    blocks = [told] if text == _EMPTY else [text, told]
    content = ",".join(source.join({"type": '"text"', "text": block}) for block in blocks)
    result = {"content": f"[{content}]"}
    if structured:
        body = {"session_id": child.session_id, "status": source.quote(child.status), "text": text}
        result["structuredContent"] = source.join(body)
    return source.join(result | ({"isError": "true"} if child.has_failed else {}))
