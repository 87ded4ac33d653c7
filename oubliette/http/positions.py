"""SSE ids of streams over several sessions: opaque to clients, valid across restarts (WIRE section 4.1)."""

from __future__ import annotations

from oubliette.events import Entry, Journal


class Positions:
    """Writes and reads ids; `instance` names these records among all others, so that a foreign id is told apart."""

    def __init__(self, instance: str, journal: Journal) -> None:
        self._prefix = f"{instance}-"
        self._journal = journal

    def id_of(self, entry: Entry) -> str:
        """Returns the id under which an event is sent."""
        return f"{self._prefix}{entry.seq:x}"

    def seq_of(self, id: str) -> int | None:
        """Returns how far a reader has come that names `id` last; None where it is not one of ours."""
        digits = id.removeprefix(self._prefix)
        if digits == id or not digits or len(digits) > 16 or digits.strip("0123456789abcdef"):
            return None
        seq = int(digits, 16)
        return seq if seq <= self._journal.last_seq else None
