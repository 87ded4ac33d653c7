"""What a stream covers beyond the sessions that there are: those that start while it is open."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from oubliette.session import Session
from oubliette.sessions import Sessions
from oubliette.streams import Stream


class Following:
    """Makes a stream of `owner` cover descendants, or every session of the owner, as they start. Leaving it stops."""

    def __init__(self, stream: Stream, sessions: Sessions, owner: str) -> None:
        self._stream = stream
        self._sessions = sessions
        self._owner = owner
        self._family: set[str] = set()
        self._covers_all = False

    def __enter__(self) -> Self:
        self._sessions.watchers.add(self._started)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._sessions.watchers.discard(self._started)

    def descendants(self, root: Session) -> None:
        """Covers every descendant of `root`: of those there are what happens from now on, of those to come all."""
        self._family.add(root.id)
        # A parent starts before its child, so one pass in the order of starting finds all.
        for session in list(self._sessions.live):
            self._started(session, None)

    def everything(self) -> None:
        """Covers every session of the owner."""
        self._covers_all = True
        for session in self._sessions.owned(self._owner):
            self._stream.cover(session)

    async def resume_everything(self, seq: int) -> None:
        """Covers every session of the owner, with what came after `seq`."""
        owned = await self._sessions.owned_since(self._owner, seq)
        # Nothing may be awaited in between: what starts meanwhile is in one of the two, never in both.
        self._covers_all = True
        await self._stream.resume(seq, [(session, 0) for session in owned], self._sessions.journal.last_seq)

    def _started(self, session: Session, after: int | None = 0) -> None:
        if session.parent_id in self._family:
            self._family.add(session.id)
        elif not (self._covers_all and session.owner == self._owner):
            return
        self._stream.cover(session, after)
