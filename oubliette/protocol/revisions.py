"""The revisions of MCP as a table: what differs between them is a column, never an `if` on a date elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Door = Literal["stdio", "http"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """One revision; the booleans say what it knows."""

    name: str
    http: bool = True
    """streamable HTTP (2024-11-05 had another transport over HTTP)"""
    batches: bool = False
    """a JSON array of messages in one POST"""
    annotations: bool = True
    """`annotations` of a tool"""
    structured_content: bool = True
    """`structuredContent`, `outputSchema` and `title`"""
    stateless: bool = False
    """no `initialize`: every request says its revision in `_meta`, results have a `resultType` and caching hints"""


REVISIONS: Final = (
    Revision(name="2024-11-05", http=False, annotations=False, structured_content=False),
    Revision(name="2025-03-26", batches=True, structured_content=False),
    Revision(name="2025-06-18"),
    Revision(name="2025-11-25"),
    Revision(name="2026-07-28", stateless=True),
)
BY_NAME: Final = {revision.name: revision for revision in REVISIONS}
# The newest that `initialize` can agree on.
NEWEST: Final = [revision for revision in REVISIONS if not revision.stateless][-1]
# MCP 2025-06-18, transports: a server that gets no MCP-Protocol-Version header assumes 2025-03-26.
WITHOUT_HEADER: Final = BY_NAME["2025-03-26"]


def spoken(door: Door) -> tuple[Revision, ...]:
    """Returns the revisions that are spoken at a door, oldest first."""
    return tuple(revision for revision in REVISIONS if door == "stdio" or revision.http)


def negotiate(asked: object, door: Door) -> Revision:
    """Returns the revision that answers `initialize`: the one asked for where it is spoken at this door and has a
    handshake, else the newest that has (MCP lifecycle, "Version Negotiation"). `asked` is what the peer sent, of
    whatever type.
    """
    revisions = [revision for revision in spoken(door) if not revision.stateless]
    return next((revision for revision in revisions if revision.name == asked), revisions[-1])
