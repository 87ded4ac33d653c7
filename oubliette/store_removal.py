"""How records are removed: out of sight with one small change, and deleted for good in small steps.

A session may have a million events, and whatever is written waits for what is being written. So a removal marks a row,
which hides it and all that hangs on it (`session_records`, `project_records`), and a PURGE deletes a bounded number of
rows. A crash in between loses nothing: what is marked stays hidden, and the next daemon goes on.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from typing import Final

import msgspec

from oubliette.records import FINISHED
from oubliette.store_schema import Statement

# How long a purge that failed waits before it goes on, in seconds.
RETRY_SECONDS: Final = 5.0

# Rows of each kind that one step deletes: 250 events of 0.5 KB take 4 ms, and other writes wait no longer.
_BATCH: Final = 250
_EVENTS: Final = f"""DELETE FROM events WHERE seq IN (
    SELECT seq FROM removed_sessions CROSS JOIN events USING (session_id) LIMIT {_BATCH})"""  # noqa: S608  # a number
_SESSIONS: Final = f"""DELETE FROM sessions WHERE session_id IN (
    SELECT session_id FROM removed_sessions AS gone
    WHERE NOT EXISTS (SELECT 1 FROM events WHERE events.session_id = gone.session_id) LIMIT {_BATCH})"""  # noqa: S608  # too
_PROJECTS: Final = """DELETE FROM projects
    WHERE removed AND NOT EXISTS (SELECT 1 FROM sessions WHERE sessions.project_id = projects.project_id)"""

# One step; there is more to do while `is_left`.
PURGE: Final = Statement(_EVENTS, also=(Statement(_SESSIONS), Statement(_PROJECTS)))


def of_project(project_id: str, token_ids: Collection[str]) -> Statement:
    """Hides a project and its sessions, and deletes its workspaces and these tokens."""
    named = {"project_id": project_id}
    tokens = Statement(
        "DELETE FROM tokens WHERE token_id IN (SELECT value FROM json_each(:ids))", {"ids": _json(token_ids)}
    )
    workspaces = Statement("DELETE FROM workspaces WHERE project_id = :project_id", named)
    return Statement("UPDATE projects SET removed = 1 WHERE project_id = :project_id", named, (workspaces, tokens))


def of_workspace(workspace_id: str) -> Statement:
    """Deletes a workspace."""
    return Statement("DELETE FROM workspaces WHERE workspace_id = :id", {"id": workspace_id})


def of_sessions(session_ids: Collection[str]) -> Statement:
    """Hides these sessions."""
    sql = "UPDATE sessions SET removed = 1 WHERE session_id IN (SELECT value FROM json_each(:ids))"
    return Statement(sql, {"ids": _json(session_ids)})


def is_left(connection: sqlite3.Connection) -> bool:
    """Whether something is removed that is not yet deleted."""
    sql = "SELECT EXISTS (SELECT 1 FROM removed_sessions) OR EXISTS (SELECT 1 FROM projects WHERE removed)"
    (found,) = connection.execute(sql).fetchone()
    return bool(found)


def ended_sessions(connection: sqlite3.Connection, projects: Collection[str] | None, until: str) -> list[str]:
    """The ids of sessions that had ended by `until`, oldest first."""
    sql = """SELECT session_id FROM session_records
        WHERE status IN (SELECT value FROM json_each(:finished)) AND ifnull(ended_at, created_at) <= :until
            AND (:projects IS NULL OR project_id IN (SELECT value FROM json_each(:projects)))
        ORDER BY created_at, session_id"""
    wanted = {"finished": _json(FINISHED), "until": until, "projects": None if projects is None else _json(projects)}
    return [session_id for (session_id,) in connection.execute(sql, wanted)]


def _json(values: Collection[str]) -> str:
    return msgspec.json.encode(list(values)).decode()
