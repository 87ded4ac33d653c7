"""`oubliette.protocol.revisions` (WIRE section 4.1; the MCP specification's "Version Negotiation")."""

from __future__ import annotations

import pytest

from oubliette.protocol.revisions import BY_NAME, NEWEST, REVISIONS, Door, negotiate, spoken

OLDEST, BATCHES, STRUCTURED, LATEST = "2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"


@pytest.mark.parametrize(
    ("asked", "stdio", "http"),
    [
        (OLDEST, OLDEST, LATEST),
        (BATCHES, BATCHES, BATCHES),
        (STRUCTURED, STRUCTURED, STRUCTURED),
        (LATEST, LATEST, LATEST),
        ("2099-01-01", LATEST, LATEST),
        ("2024-10-07", LATEST, LATEST),
        ("2025-06-18 ", LATEST, LATEST),
        ("", LATEST, LATEST),
        (None, LATEST, LATEST),
        (20250618, LATEST, LATEST),
        ([STRUCTURED], LATEST, LATEST),
        ({"name": STRUCTURED}, LATEST, LATEST),
    ],
)
def test_negotiation(asked: object, stdio: str, http: str) -> None:
    assert negotiate(asked, "stdio").name == stdio
    assert negotiate(asked, "http").name == http


@pytest.mark.parametrize(
    ("name", "http", "batches", "annotations", "structured_content"),
    [
        (OLDEST, False, False, False, False),
        (BATCHES, True, True, True, False),
        (STRUCTURED, True, False, True, True),
        (LATEST, True, False, True, True),
    ],
)
def test_what_each_revision_knows(
    name: str, http: bool, batches: bool, annotations: bool, structured_content: bool
) -> None:
    revision = BY_NAME[name]
    assert revision.http is http
    assert revision.batches is batches
    assert revision.annotations is annotations
    assert revision.structured_content is structured_content


@pytest.mark.parametrize("door", ["stdio", "http"])
def test_what_is_spoken_comes_from_the_table_alone(door: Door) -> None:
    assert spoken(door) == tuple(revision for revision in REVISIONS if door == "stdio" or revision.http)
    with_handshake = [revision for revision in spoken(door) if not revision.stateless]
    assert all(negotiate(revision.name, door) is revision for revision in with_handshake)
    assert negotiate("unknown", door) is negotiate("2026-07-28", door) is with_handshake[-1] is NEWEST


def test_the_table_is_in_order_and_names_each_revision_once() -> None:
    names = [revision.name for revision in REVISIONS]
    assert names == sorted(set(names))
    assert list(BY_NAME) == names
