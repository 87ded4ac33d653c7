"""One session's relay over records in memory, and calls of its tools whose ends are noted."""

from __future__ import annotations

from typing import Any

import msgspec
import trio

from oubliette.declarations import Declaration, DeclarationLimits, parse_declaration
from oubliette.errors import OublietteError
from oubliette.events import EventLog, Journal, RingLimits
from oubliette.relay import Pending, Progress, Relay, RelayLimits
from tests.helpers.records import MemoryRecords

LIMITS = DeclarationLimits(default_timeout=60, max_timeout=3600, reserved=frozenset())


def declared_tools(*tools: Any) -> Declaration:
    """The declaration of a caller `myapp` that offers `tools`: names, or whole declarations."""
    declared = [{"name": tool} if isinstance(tool, str) else tool for tool in tools]
    context = msgspec.json.encode({"caller_id": "myapp", "caller_tools": declared})
    declaration = parse_declaration(context, LIMITS)
    assert declaration is not None
    return declaration


class Asked:
    """One call of a tool: what it came to, and when. `scope` is the agent's link."""

    def __init__(self) -> None:
        self.pending: Pending
        self.outcome: bytes | OublietteError | None = None
        self.ended_at: float | None = None
        self.reports: list[Progress] = []
        self.scope = trio.CancelScope()

    @property
    def has_ended(self) -> bool:
        return self.ended_at is not None

    @property
    def error(self) -> OublietteError:
        assert isinstance(self.outcome, OublietteError), self.outcome
        return self.outcome

    @property
    def id(self) -> str:
        return self.pending.request_id

    @property
    def index(self) -> int:
        return self.pending.entry.index


class RelayBench:
    """A relay whose caller `myapp` offers `tools`: names, or whole declarations. `tasks` runs the calls."""

    def __init__(self, tasks: trio.Nursery, *tools: Any, ring: RingLimits | None = None, **limits: Any) -> None:
        self.tasks = tasks
        self.records = MemoryRecords()
        self.log = EventLog("ses_1", Journal(self.records, ring or RingLimits()))
        self.relay = Relay(self.log, RelayLimits(**limits))
        self.declare(*tools)

    def declare(self, *tools: Any) -> None:
        self.relay.declare(declared_tools(*tools))

    def ask(self, tool: str, arguments: bytes = b"{}") -> Asked:
        """Calls a tool in a task of its own; raises what is refused at once."""
        asked = Asked()
        asked.pending = self.relay.begin(tool, arguments, asked.reports.append)
        self.tasks.start_soon(self._wait, asked)
        return asked

    async def _wait(self, asked: Asked) -> None:
        with asked.scope:
            try:
                asked.outcome = await self.relay.outcome(asked.pending)
            except OublietteError as error:
                asked.outcome = error
        asked.ended_at = trio.current_time()

    @property
    def events(self) -> list[Any]:
        """Every event so far."""
        return [msgspec.json.decode(event.data) for event in self.records.stored]

    def closings(self, asked: Asked) -> list[Any]:
        """The events that ended a request: one, or none so far."""
        kinds = ("caller_tool_resolved", "caller_tool_cancelled")
        found = [event for event in self.records.stored if event.type in kinds and asked.id.encode() in event.data]
        return [msgspec.json.decode(event.data) for event in found]
