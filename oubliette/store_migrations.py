"""The tables, as the steps that lead from any older version of the database to this one."""

from __future__ import annotations

from typing import Final

# Forward only: what was released is never edited. Deleting a session deletes its events; AUTOINCREMENT remembers the
# highest `seq` even when its row is gone, because a `seq` must never name two events.
MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    (
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
        "INSERT INTO meta VALUES ('clean_stop', '1')",
        """CREATE TABLE tokens (
            token_id TEXT PRIMARY KEY, name TEXT NOT NULL, scope TEXT NOT NULL, digest BLOB NOT NULL,
            created_at TEXT NOT NULL, last_used_at TEXT, expires_at TEXT)""",
        """CREATE TABLE projects (
            project_id TEXT PRIMARY KEY, name TEXT NOT NULL, description TEXT NOT NULL, agent TEXT, runtime TEXT,
            packs TEXT, default_workspace_id TEXT NOT NULL, created_at TEXT NOT NULL)""",
        # No reference to its project: a project's default workspace is saved first, so that no project lacks one.
        """CREATE TABLE workspaces (
            workspace_id TEXT PRIMARY KEY, project_id TEXT NOT NULL, name TEXT NOT NULL, created_at TEXT NOT NULL)""",
        """CREATE TABLE sessions (
            session_id TEXT PRIMARY KEY, project_id TEXT NOT NULL REFERENCES projects ON DELETE CASCADE,
            workspace_id TEXT NOT NULL, status TEXT NOT NULL, agent TEXT NOT NULL, runtime TEXT NOT NULL,
            owner TEXT NOT NULL, parent_id TEXT, depth INTEGER NOT NULL, caller BLOB, created_at TEXT NOT NULL,
            ended_at TEXT, last_index INTEGER NOT NULL)""",
        "CREATE INDEX sessions_by_age ON sessions (created_at, session_id)",
        "CREATE INDEX sessions_of_project ON sessions (project_id)",
        """CREATE TABLE events (
            seq INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
            event_index INTEGER NOT NULL, type TEXT NOT NULL, data BLOB NOT NULL, UNIQUE (session_id, event_index))""",
        # A session's row is written when something of it changes, its events all the time: the higher index is true.
        """CREATE VIEW session_records AS
            SELECT session_id, project_id, workspace_id, status, agent, runtime, owner, parent_id, depth, caller,
                created_at, ended_at, max(last_index, ifnull((SELECT max(event_index) FROM events
                    WHERE events.session_id = sessions.session_id), 0)) AS last_index
            FROM sessions""",
    ),
    # What is removed disappears at once, with one change of one row, and is deleted bit by bit (`store_removal.py`).
    (
        "ALTER TABLE projects ADD COLUMN removed INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE sessions ADD COLUMN removed INTEGER NOT NULL DEFAULT 0",
        "CREATE INDEX removed_projects ON projects (project_id) WHERE removed",
        "CREATE INDEX marked_sessions ON sessions (session_id) WHERE removed",
        """CREATE VIEW project_records AS
            SELECT project_id, name, description, agent, runtime, packs, default_workspace_id, created_at
            FROM projects WHERE NOT removed""",
        """CREATE VIEW removed_sessions AS
            SELECT session_id FROM sessions WHERE removed
            UNION ALL SELECT session_id FROM projects CROSS JOIN sessions USING (project_id) WHERE projects.removed""",
        "DROP VIEW session_records",
        """CREATE VIEW session_records AS
            SELECT session_id, project_id, workspace_id, status, agent, runtime, owner, parent_id, depth, caller,
                created_at, ended_at, max(last_index, ifnull((SELECT max(event_index) FROM events
                    WHERE events.session_id = sessions.session_id), 0)) AS last_index
            FROM sessions
            WHERE NOT removed AND project_id NOT IN (SELECT project_id FROM projects WHERE removed)""",
    ),
)
