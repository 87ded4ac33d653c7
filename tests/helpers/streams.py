"""Sessions as streams see them, over records in memory, and readers of streams."""

from __future__ import annotations

from typing import Any

import msgspec

from oubliette.events import Entry, EventLog, Journal, RingLimits
from oubliette.protocol.events import Message, SessionEnded
from oubliette.relay import Pending, Relay, RelayLimits
from oubliette.streams import Stream
from tests.helpers.records import MemoryRecords
from tests.helpers.relay import declared_tools

OWNER, OTHER = "owner", "other"


class Followable:
    """A session of OWNER's: what a stream needs of it, and ways to make things happen in it."""

    def __init__(self, id: str, journal: Journal, last_index: int = 0) -> None:
        self.id = id
        self.owner = OWNER
        self.log = EventLog(id, journal, last_index)
        self.relay = Relay(self.log, RelayLimits())
        self.relay.declare(declared_tools("send"))

    def say(self, count: int = 1, text: str = "x") -> list[Entry]:
        return [self.log.append(Message, role="assistant", text=text) for _ in range(count)]

    def request(self) -> Pending:
        return self.relay.begin("send", b"{}")

    def end(self) -> None:
        self.relay.close()
        self.log.append(SessionEnded, reason="ended", exit_code=None)
        self.log.close()


class StreamBench:
    """A journal whose rings hold `ring` events each, and the sessions of it."""

    def __init__(self, ring: int = 4000) -> None:
        self.records = MemoryRecords()
        self.journal = Journal(self.records, RingLimits(events=ring))
        self.sessions: list[Followable] = []

    def session(self, id: str | None = None, *, last_index: int = 0) -> Followable:
        """Adds a session, one of earlier days where `last_index` says so."""
        session = Followable(id or f"ses_{len(self.sessions)}", self.journal, last_index)
        self.sessions.append(session)
        return session

    def stream(self, principal: str = OWNER, *, counts: bool = True) -> Stream:
        return Stream(principal, self.records, counts=counts)


def decoded(entries: list[Entry]) -> list[Any]:
    return [msgspec.json.decode(entry.data) for entry in entries]


def indexes(entries: list[Entry]) -> list[int]:
    """The numbers under which events were sent; 0 for those without."""
    return [entry.index for entry in entries]


async def read_ready(stream: Stream) -> list[Entry]:
    """Returns everything that a stream has ready."""
    return await stream.ready(10**9)
