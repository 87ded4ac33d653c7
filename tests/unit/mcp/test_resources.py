"""Resources: what is listed, what a reading returns, and what lies outside the asker's scope (WIRE section 4.1)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oubliette.mcp import resources
from oubliette.mcp.resources import RESOURCES, Resource
from oubliette.scopes import Scope
from oubliette.tokens import Principal
from tests.helpers.domain import OTHER, STRANGER
from tests.unit.mcp.harness import Asker, open_asker, open_legacy_asker

FIXED = "oubliette://fixed"
ENTRY = {"uri": FIXED, "name": "fixed", "mimeType": "text/plain"}


@pytest.fixture
def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RESOURCES, FIXED, Resource(entry=ENTRY, contents={"mimeType": "text/plain", "text": "hi"}))


async def pages(asker: Asker) -> list[list[Any]]:
    """Every page of `resources/list`."""
    found: list[list[Any]] = []
    cursor = None
    while True:
        page = await asker.result("resources/list", cursor=cursor)
        found.append(page["resources"])
        cursor = page.get("nextCursor")
        if cursor is None:
            return found


async def test_each_session_is_a_resource_and_the_newest_comes_first(tmp_path: Path, fixed: None) -> None:
    async with open_asker(tmp_path, max_active=1000) as asker:
        started = [(await asker.domain.start()).id for _ in range(103)]
        first, second = await pages(asker)
        assert (len(first), len(second)) == (101, 3)
        assert first[0] == ENTRY, "what stands alone comes with the first page"
        sessions = [*first[1:], *second]
        assert {entry["uri"] for entry in sessions} == {f"oubliette://sessions/{id}/events" for id in started}
        times = [entry["description"].rpartition(" ")[2] for entry in sessions]
        assert times == sorted(times, reverse=True)
        assert first[1]["mimeType"] == "application/json"
        assert "external" in first[1]["description"]


async def test_a_list_shows_what_the_scope_covers(tmp_path: Path) -> None:
    async with open_asker(tmp_path) as asker:
        session = await asker.domain.start()
        for principal in (OTHER, Principal("reader", Scope("default", True))):
            (page,) = await pages(Asker(asker.domain, principal))
            assert [entry["uri"] for entry in page] == [f"oubliette://sessions/{session.id}/events"]
        error = await Asker(asker.domain, STRANGER).error("resources/list")
        assert (error["data"]["kind"], error["data"]["field"]) == ("not_found", "project_id")


@pytest.mark.parametrize("cursor", ["", "nonsense", "e30="])
async def test_an_unknown_cursor_is_invalid_params(tmp_path: Path, cursor: str) -> None:
    async with open_asker(tmp_path) as asker:
        assert (await asker.error("resources/list", cursor=cursor))["code"] == -32602


async def test_the_template_is_listed(tmp_path: Path) -> None:
    async with open_asker(tmp_path) as asker:
        (template,) = (await asker.result("resources/templates/list"))["resourceTemplates"]
        assert template["uriTemplate"] == "oubliette://sessions/{id}/events"
        assert template.keys() == {"uriTemplate", "name", "title", "description", "mimeType"}


async def test_reading_returns_a_page_of_the_events(tmp_path: Path) -> None:
    async with open_asker(tmp_path) as asker:
        session = await asker.domain.start()
        uri = f"oubliette://sessions/{session.id}/events"
        result = await asker.result("resources/read", uri=uri)
        (contents,) = result["contents"]
        assert (contents["uri"], contents["mimeType"]) == (uri, "application/json")
        page = json.loads(contents["text"])
        assert [event["type"] for event in page["events"]] == ["session_started", "message"]
        assert (page["session_id"], page["last_index"]) == (session.id, 2)
        assert (result["ttlMs"], result["cacheScope"], result["resultType"]) == (0, "private", "complete")


async def test_reading_returns_the_newest_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "MAX_EVENTS", 3)
    async with open_asker(tmp_path) as asker:
        session = await asker.domain.start()
        for number in range(4):
            session.message(str(number))
        result = await asker.result("resources/read", uri=f"oubliette://sessions/{session.id}/events")
        assert [event["index"] for event in json.loads(result["contents"][0]["text"])["events"]] == [4, 5, 6]


async def test_reading_what_stands_alone(tmp_path: Path, fixed: None) -> None:
    async with open_legacy_asker(tmp_path) as asker:
        result = await asker.result("resources/read", uri=FIXED)
        assert result == {"contents": [{"uri": FIXED, "mimeType": "text/plain", "text": "hi"}]}


UNKNOWN = ["", "nope", "oubliette://sessions/ses_0/events", "oubliette://sessions/a/b/events", "oubliette://sessions"]


@pytest.mark.parametrize("uri", UNKNOWN)
async def test_an_unknown_uri_has_the_code_of_the_revision(tmp_path: Path, uri: str) -> None:
    """ "-32002 in the earlier revisions and -32602 in 2026-07-28, as they demand"."""
    async with open_asker(tmp_path) as asker, open_legacy_asker(tmp_path) as legacy:
        for each, code in ((asker, -32602), (legacy, -32002)):
            error = await each.error("resources/read", uri=uri)
            assert (error["code"], error["data"]["uri"], error["data"]["field"]) == (code, uri, "uri")
            assert repr(uri) in error["message"]


async def test_what_lies_outside_the_scope_is_unknown(tmp_path: Path) -> None:
    async with open_asker(tmp_path) as asker:
        session = await asker.domain.start()
        uri = f"oubliette://sessions/{session.id}/events"
        foreign = await Asker(asker.domain, STRANGER).error("resources/read", uri=uri)
        unknown = await asker.error("resources/read", uri=uri.replace(session.id, "ses_0"))
        assert foreign["message"].replace(session.id, "ses_0") == unknown["message"]
        assert "result" in await Asker(asker.domain, OTHER).ask("resources/read", uri=uri)


@pytest.mark.parametrize("params", [{}, {"uri": 5}, {"uri": None}])
async def test_a_uri_must_be_a_string(tmp_path: Path, params: dict[str, Any]) -> None:
    async with open_legacy_asker(tmp_path) as asker:
        assert (await asker.error("resources/read", **params))["code"] == -32602
