"""Records in memory, for tests of the domain: what `Store` keeps, without a disk or a thread."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import trio

from oubliette.records import FINISHED, ProjectRecord, SessionRecord, StoredEvent, TokenRecord, WorkspaceRecord
from oubliette.session import Session


class MemoryRecords:
    """Implements what the domain asks of its records. `has_room` is the test's to set."""

    def __init__(self) -> None:
        self.has_room = True
        self.stored: list[StoredEvent] = []
        self.saved: dict[str, SessionRecord] = {}
        self.token_records: dict[str, TokenRecord] = {}
        self.project_records: dict[str, ProjectRecord] = {}
        self.workspace_records: dict[str, WorkspaceRecord] = {}

    def append_event(self, event: StoredEvent) -> None:
        self.stored.append(event)

    async def wait_for_room(self) -> None:
        await trio.lowlevel.checkpoint()

    async def save_session(self, record: SessionRecord) -> None:
        await trio.lowlevel.checkpoint()
        self.saved[record.session_id] = record

    def post_session(self, record: SessionRecord) -> None:
        self.saved[record.session_id] = record

    async def session(self, session_id: str) -> SessionRecord | None:
        await trio.lowlevel.checkpoint()
        return self.saved.get(session_id)

    async def sessions(
        self,
        *,
        projects: Collection[str] | None,
        owner: str | None,
        status: str | None,
        limit: int,
        before: tuple[str, str] | None,
    ) -> list[SessionRecord]:
        await trio.lowlevel.checkpoint()
        newest_first = sorted(self.saved.values(), key=_age, reverse=True)
        return [
            record
            for record in newest_first
            if (projects is None or record.project_id in projects)
            and owner in (None, record.owner)
            and status in (None, record.status)
            and (before is None or _age(record) < before)
        ][:limit]

    async def sessions_since(self, owner: str, seq: int) -> list[SessionRecord]:
        await trio.lowlevel.checkpoint()
        touched = {event.session_id for event in self.stored if event.seq > seq}
        return [record for id, record in self.saved.items() if id in touched and record.owner == owner]

    async def events_of(self, session_id: str, after_index: int, limit: int) -> list[StoredEvent]:
        await trio.lowlevel.checkpoint()
        return [e for e in self.stored if e.session_id == session_id and e.index > after_index][:limit]

    async def events_after(self, seq: int, sessions: Collection[str], limit: int) -> list[StoredEvent]:
        await trio.lowlevel.checkpoint()
        return [e for e in self.stored if e.seq > seq and e.session_id in sessions][:limit]

    async def last_indexes(self, seq: int, sessions: Collection[str]) -> dict[str, int]:
        await trio.lowlevel.checkpoint()
        return {e.session_id: e.index for e in self.stored if e.seq <= seq and e.session_id in sessions}

    def tokens(self) -> list[TokenRecord]:
        return list(self.token_records.values())

    async def save_token(self, record: TokenRecord) -> None:
        await trio.lowlevel.checkpoint()
        self.token_records[record.token_id] = record

    async def delete_token(self, token_id: str) -> None:
        await trio.lowlevel.checkpoint()
        self.token_records.pop(token_id, None)

    def post_token_use(self, token_id: str, when: str) -> None:
        pass

    def projects(self) -> list[ProjectRecord]:
        return list(self.project_records.values())

    def workspaces(self) -> list[WorkspaceRecord]:
        return list(self.workspace_records.values())

    async def create_project(self, record: ProjectRecord, workspace: WorkspaceRecord) -> None:
        await trio.lowlevel.checkpoint()
        self.project_records[record.project_id] = record
        self.workspace_records[workspace.workspace_id] = workspace

    async def save_workspace(self, record: WorkspaceRecord) -> None:
        await trio.lowlevel.checkpoint()
        self.workspace_records[record.workspace_id] = record

    async def delete_project(self, project_id: str, token_ids: Collection[str]) -> None:
        await trio.lowlevel.checkpoint()
        del self.project_records[project_id]
        for workspace in [one for one in self.workspaces() if one.project_id == project_id]:
            del self.workspace_records[workspace.workspace_id]
        for token_id in token_ids:
            del self.token_records[token_id]
        await self.delete_sessions([id for id, record in self.saved.items() if record.project_id == project_id])

    async def delete_workspace(self, workspace_id: str) -> None:
        await trio.lowlevel.checkpoint()
        del self.workspace_records[workspace_id]

    async def ended_sessions(self, projects: Collection[str] | None, until: str) -> list[str]:
        await trio.lowlevel.checkpoint()
        return [
            session_id
            for session_id, record in self.saved.items()
            if record.status in FINISHED
            and (record.ended_at or record.created_at) <= until
            and (projects is None or record.project_id in projects)
        ]

    async def delete_sessions(self, session_ids: Collection[str]) -> None:
        await trio.lowlevel.checkpoint()
        for session_id in session_ids:
            del self.saved[session_id]
        self.stored = [event for event in self.stored if event.session_id not in session_ids]

    async def flush(self) -> None:
        await trio.lowlevel.checkpoint()


def _age(record: SessionRecord) -> tuple[str, str]:
    return record.created_at, record.session_id


class NoLinks:
    """A link door that opens nothing: the test speaks to the relay itself."""

    def open(self, session: Session) -> NoListener:
        return NoListener(session)


class NoListener:
    def __init__(self, session: Session) -> None:
        self.path = Path("/nowhere")
        self._session = session

    async def serve(self) -> None:
        await self._session.ending.wait()

    def close(self) -> None:
        pass
