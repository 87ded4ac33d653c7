"""What the store keeps: plain frozen values, without any I/O (WIRE sections 5 and 6).

A record's fields are the columns of its table, and its first field is the key (`store_schema.py`); a field more is a
migration more. Times are RFC 3339 UTC strings, which sort as text in the order of time.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

# WIRE section 5: the statuses that a session never leaves again.
FINISHED: Final = frozenset({"completed", "failed", "ended", "interrupted"})


class TokenRecord(Struct, frozen=True, kw_only=True):
    """An API token. `digest` is the SHA-256 of its secret, the only form in which it is stored (WIRE section 6)."""

    token_id: str
    name: str
    scope: str
    digest: bytes
    created_at: str
    last_used_at: str | None
    expires_at: str | None


class ProjectRecord(Struct, frozen=True, kw_only=True):
    """A project. `agent`, `runtime` and `packs` are None where the configuration's defaults apply."""

    project_id: str
    name: str
    description: str
    agent: str | None
    runtime: str | None
    packs: list[str] | None
    default_workspace_id: str
    created_at: str


class WorkspaceRecord(Struct, frozen=True, kw_only=True):
    workspace_id: str
    project_id: str
    name: str
    created_at: str


class SessionRecord(Struct, frozen=True, kw_only=True):
    """A session. `owner` is a token id, `caller` the declaration as JSON text, `depth` 0 for a session without parent.

    `last_index` is 0 before the first event.
    """

    session_id: str
    project_id: str
    workspace_id: str
    status: str
    agent: str
    runtime: str
    owner: str
    parent_id: str | None
    depth: int
    caller: bytes | None
    created_at: str
    ended_at: str | None
    last_index: int


class StoredEvent(Struct, frozen=True, kw_only=True):
    """One event as JSON text (`data`), and what it is looked up by.

    `seq` grows over all sessions and never names two events; `index` counts within the session, from 1. Within a
    session both grow together: the store's queries rely on it.
    """

    seq: int
    session_id: str
    index: int
    type: str
    data: bytes
