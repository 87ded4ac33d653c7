"""What a server answers and tells, in the words of each revision (WIRE section 4.1)."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from msgspec import Raw

from oubliette.protocol import mcp_results
from oubliette.protocol.mcp import LEVELS, Level, SubscriptionFilter, delivers_events, passes
from oubliette.protocol.mcp_results import Caching, Server, stamped
from oubliette.protocol.revisions import BY_NAME, REVISIONS, Revision

NEWEST = REVISIONS[-1]
LEGACY = BY_NAME["2025-11-25"]
SERVER = Server("oubliette", "1.0")
SERVER_INFO = {"io.modelcontextprotocol/serverInfo": {"name": "oubliette", "version": "1.0"}}
REVISION = pytest.mark.parametrize("revision", REVISIONS, ids=lambda revision: revision.name)


def as_json(text: bytes) -> Any:
    assert b"\n" not in text
    return json.loads(text)


# What every result carries


@pytest.mark.parametrize("name", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
def test_results_of_the_earlier_revisions_stay_as_they_are(name: str) -> None:
    assert stamped(b'{"a": 1.10}', BY_NAME[name], SERVER, Caching(5)) == b'{"a": 1.10}'


def test_a_result_says_its_type_and_its_server() -> None:
    assert as_json(stamped(b"{}", NEWEST, SERVER)) == {"resultType": "complete", "_meta": SERVER_INFO}


def test_what_may_be_reused_says_for_how_long_and_by_whom() -> None:
    private = as_json(stamped(b'{"tools":[]}', NEWEST, SERVER, Caching(60_000)))
    assert (private["ttlMs"], private["cacheScope"], private["tools"]) == (60_000, "private", [])
    assert as_json(stamped(b"{}", NEWEST, SERVER, Caching(0, "public")))["cacheScope"] == "public"


def test_a_results_own_members_and_meta_are_kept_as_spelled() -> None:
    own = b'{"resultType":"input_required","ttlMs":1,"n":1.10,"_meta":{"a/b":1e400}}'
    text = stamped(own, NEWEST, SERVER, Caching(60_000))
    assert b'"resultType":"input_required"' in text
    assert b'"ttlMs":1,' in text
    assert b'"n":1.10' in text
    assert b'"a/b":1e400' in text
    assert as_json(text)["_meta"].keys() == {"a/b", *SERVER_INFO}


# Results


def test_initialize_and_discover() -> None:
    initialized = as_json(mcp_results.initialize_result(LEGACY, SERVER, "Do this"))
    assert initialized["protocolVersion"] == "2025-11-25"
    assert initialized["serverInfo"] == {"name": "oubliette", "version": "1.0"}
    discovered = as_json(mcp_results.discover_result(["2026-07-28", "2025-11-25"], "Do this"))
    assert discovered.keys() == {"supportedVersions", "capabilities", "instructions"}
    assert discovered["capabilities"]["resources"] == {"subscribe": True, "listChanged": True}
    for result in (initialized, discovered):
        assert result["instructions"] == "Do this"
        assert result["capabilities"].keys() == {"logging", "completions", "tools", "prompts", "resources"}


@REVISION
def test_tools_are_listed_without_what_the_revision_does_not_know(revision: Revision) -> None:
    entry = {"name": "t", "title": "T", "inputSchema": {}, "outputSchema": {}, "annotations": {}}
    (listed,) = as_json(mcp_results.list_tools_result([entry], revision))["tools"]
    assert ("outputSchema" in listed, "title" in listed) == (revision.structured_content,) * 2
    assert ("annotations" in listed) is revision.annotations
    assert {"name", "inputSchema"} <= listed.keys()


@REVISION
def test_a_tools_result_is_text_and_structure_where_that_is_known(revision: Revision) -> None:
    source = '{"n":1.10,"text":"Grüße \\" \u2028"}'
    result = as_json(mcp_results.call_tool_result(source.encode(), revision))
    assert result["content"] == [{"type": "text", "text": source}]
    assert ("structuredContent" in result) is revision.structured_content


def test_lists_have_a_cursor_where_there_is_more() -> None:
    assert as_json(mcp_results.list_result("prompts", [])) == {"prompts": []}
    assert as_json(mcp_results.list_result("resources", [{"uri": "x"}], "c")) == {
        "resources": [{"uri": "x"}],
        "nextCursor": "c",
    }


# Notifications


@pytest.mark.parametrize("id", ["1", '"listen-1"', "1.0", "9007199254740993"])
def test_a_subscription_is_named_by_the_id_of_its_request_as_spelled(id: str) -> None:
    named = f'"_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}'
    granted = mcp_results.acknowledged(id.encode(), SubscriptionFilter(tools_list_changed=True))
    assert named in granted.decode()
    assert as_json(granted)["params"]["notifications"] == {"toolsListChanged": True}
    told = mcp_results.told("notifications/resources/updated", {"uri": "x"}, id.encode())
    assert named in told.decode()
    assert as_json(told)["params"]["uri"] == "x"
    assert mcp_results.listening_ended(id.encode()).decode() == f"{{{named}}}"


def test_without_a_subscription_nothing_is_named() -> None:
    told = as_json(mcp_results.told("notifications/tools/list_changed", {}))
    assert told == {"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": {}}


@pytest.mark.parametrize(
    ("total", "message", "said"),
    [
        (None, None, {}),
        (3, "half", {"total": 3, "message": "half"}),
        (0, "", {"total": 0, "message": ""}),
    ],
)
def test_progress_says_what_is_known(total: float | None, message: str | None, said: dict[str, Any]) -> None:
    told = as_json(mcp_results.progress(Raw(b'"t"'), 1.5, total, message))
    assert told["method"] == "notifications/progress"
    assert told["params"] == {"progressToken": "t", "progress": 1.5, **said}


def test_a_log_message() -> None:
    told = as_json(mcp_results.log_message("warning", "oubliette", {"a": [1]}))
    assert told["method"] == "notifications/message"
    assert told["params"] == {"level": "warning", "logger": "oubliette", "data": {"a": [1]}}


# Levels


def test_levels_are_in_the_order_of_rfc_5424() -> None:
    levels: list[Level] = [*get_args(Level)]
    assert levels == list(LEVELS)
    for place, least in enumerate(levels):
        assert [level for level in levels if passes(level, least)] == levels[place:]
    assert [level for level in levels if delivers_events(level)] == ["debug", "info"]
