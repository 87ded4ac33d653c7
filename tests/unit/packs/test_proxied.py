"""Tools of proxied servers, as the registry offers them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw

from oubliette.errors import NotFound
from oubliette.packs.tools import ProxiedTool
from oubliette.upstreams.tools import UpstreamTool
from oubliette.upstreams.upstreams import Upstreams


def proxied(**entry: Any) -> ProxiedTool:
    entry = {"name": "issues.list", "inputSchema": {"type": "object"}, **entry}
    listed = UpstreamTool(name="issues.list", entry=entry, fingerprint="f")
    return ProxiedTool("github", listed, Upstreams(on_change=lambda: None))


def test_a_proxied_tool_is_shown_from_its_schema() -> None:
    schema = {
        "type": "object",
        "properties": {"repo": {"type": "string"}, "query": {"type": "string", "description": "What"}},
        "required": ["query"],
    }
    tool = proxied(inputSchema=schema, description="Lists", title="Issues")
    assert tool.shown.signature == "github.issues_list(query: str, repo: str = '...')"
    assert tool.shown.args == ("query: What", "repo: (no description)")
    assert (tool.shown.source, tool.shown.description) == ("proxy:github", "Lists")
    assert (tool.identity, tool.mcp_name) == ("github.issues.list", "github_issues_list")
    assert tool.entry == {"inputSchema": schema, "description": "Lists", "title": "Issues"}
    assert tool.shown is tool.shown


def test_a_proxied_tool_may_say_nothing_of_itself() -> None:
    assert (proxied().shown.description, proxied().shown.args) == ("", ())


async def test_a_server_that_is_not_there_is_an_error_of_ours() -> None:
    with pytest.raises(NotFound, match="unknown server 'github'"):
        await proxied().call(Raw(b"{}"), lambda done, total, message: None)
