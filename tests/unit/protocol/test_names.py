"""`oubliette.protocol.names` (WIRE, "Words" and section 2)."""

from __future__ import annotations

import pytest

from oubliette.protocol.names import MAX_MCP_NAME, RESERVED_CALLER_ID, is_caller_id, is_tool_name, mcp_name

INJECTIONS = ["a\n", "\na", "a\r", "a\0", "a b", "a\u2028", "a/b", "a:b", 'a"b', "ä", "а", "１", "a,b", "a$", ""]


@pytest.mark.parametrize("value", ["a", "Z", "0", "myapp", "my-app", "a-", "A1-b2", "oubliette", "a" * 32])
def test_caller_ids(value: str) -> None:
    assert is_caller_id(value)


@pytest.mark.parametrize("value", [*INJECTIONS, "-a", "_a", "a_b", "a.b", "a" * 33])
def test_what_is_no_caller_id(value: str) -> None:
    assert not is_caller_id(value)


@pytest.mark.parametrize("value", ["a", "send_notification", "a.b", "-", ".", "_", "0", "A-b_c.9", "a" * 64])
def test_tool_names(value: str) -> None:
    assert is_tool_name(value)


@pytest.mark.parametrize("value", [*INJECTIONS, "a" * 65])
def test_what_is_no_tool_name(value: str) -> None:
    assert not is_tool_name(value)


@pytest.mark.parametrize(
    ("pack", "tool", "name"),
    [
        ("myapp", "send_notification", "myapp_send_notification"),
        ("github", "repo.search", "github_repo_search"),
        ("my-app", "a.b.c-d", "my-app_a_b_c-d"),
    ],
)
def test_the_mcp_name_of_a_tool(pack: str, tool: str, name: str) -> None:
    assert mcp_name(pack, tool) == name


def test_two_tools_may_collide_in_their_mcp_name() -> None:
    # WIRE, "Words": "a collision that this makes is refused"; whoever keeps the names has to look for it.
    assert mcp_name("a", "b.c") == mcp_name("a", "b_c")


def test_the_bounds_of_the_contract() -> None:
    assert (MAX_MCP_NAME, RESERVED_CALLER_ID) == (64, "oubliette")
