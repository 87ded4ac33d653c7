"""Tools of packs over MCP: listed, called by name and by alias, with the progress that their servers report.

Issue 5, 4: "Aliases are callable by name wherever a pack tool is".
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from trio.testing import MockClock

from oubliette.mcp import methods
from tests.helpers.domain import STRANGER
from tests.helpers.packs import DEMO, ObservedPacks, PlayedServer, configured, connected, packs_of, tool_entry
from tests.unit.mcp.harness import Asker, message_of, open_asker

CONFIG = """
packs: ['*.py']
servers: {github: {command: played}}
aliases: {hi: demo.greet, find: github.search, say: session.message, what: ot.aliases}
"""


@asynccontextmanager
async def open_packs(folder: Path, server: PlayedServer | None = None) -> AsyncIterator[Asker]:
    server = server or PlayedServer("search", "issues.list")
    packs = packs_of(configured(folder, CONFIG, demo=DEMO), github=server)
    async with open_asker(folder, packs=packs) as asker:
        await connected(packs)
        yield asker


async def test_tools_of_packs_are_listed_beside_the_daemons(tmp_path: Path) -> None:
    async with open_packs(tmp_path) as asker:
        listed = {tool["name"]: tool for tool in (await asker.result("tools/list"))["tools"]}
        assert {"project_create", "ot_reload", "demo_greet", "demo_wait", "github_search"} <= listed.keys()
        assert listed["github_issues_list"] == {**tool_entry("issues.list"), "name": "github_issues_list"}
        assert listed["demo_greet"]["inputSchema"]["required"] == ["name"]
        stranger = (await Asker(asker.domain, STRANGER).result("tools/list"))["tools"]
        assert not {tool["name"] for tool in stranger} & {"demo_greet", "github_search"}


@pytest.mark.parametrize("name", ["demo_greet", "demo.greet", "hi"])
async def test_a_local_tool_is_called_by_any_of_its_names(tmp_path: Path, name: str) -> None:
    async with open_packs(tmp_path) as asker:
        assert (await asker.call(name, name="Ada"))["content"] == [{"type": "text", "text": "hello Ada"}]


@pytest.mark.parametrize("arguments", [{"arguments": None}, {}])
async def test_arguments_may_be_missing(tmp_path: Path, arguments: dict[str, None]) -> None:
    async with open_packs(tmp_path) as asker:
        assert (await asker.result("tools/call", name="find", **arguments))["content"] == [
            {"type": "text", "text": "{}"}
        ]


async def test_failures_of_a_known_tool_are_results_and_an_unknown_one_is_an_error(tmp_path: Path) -> None:
    async with open_packs(tmp_path) as asker:
        failure = (await asker.call("hi", nmae="Ada"))["_meta"]["oubliette/error"]
        assert (failure["kind"], failure["field"]) == ("invalid_params", "arguments")
        for asking in (asker, Asker(asker.domain, STRANGER)):
            error = await asking.error("tools/call", name="github.fetch", arguments={})
            assert (error["code"], error["data"]["field"]) == (-32602, "name")
        hidden = await Asker(asker.domain, STRANGER).error("tools/call", name="hi", arguments={"name": "Ada"})
        assert hidden["code"] == -32602


async def test_aliases_of_the_daemons_own_tools_are_the_tools(tmp_path: Path) -> None:
    async with open_packs(tmp_path) as asker:
        assert (await asker.call("what", name="hi"))["content"][0]["text"] == "hi -> demo.greet"
        started = await asker.call("say", message="hello")
        assert started["structuredContent"]["status"] == "running"


@pytest.mark.parametrize(
    ("name", "held"),
    [
        ("session_message", True),
        ("say", True),
        ("session.message", True),
        ("hi", True),
        ("github_search", True),
        ("project_list", False),
        ("what", False),
        ("nope", False),
    ],
)
async def test_what_may_take_long_is_held(tmp_path: Path, name: str, held: bool) -> None:
    """By whatever name: what is not held has no way back for its reports."""
    async with open_packs(tmp_path) as asker:
        assert methods.holds(message_of("tools/call", name=name), asker.domain.services) is held


async def test_a_servers_progress_is_passed_on(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = PlayedServer("search")
    server.reports = [(1, 3, "begun"), (2, 3, None)]
    async with open_packs(tmp_path, server) as asker:
        result = await asker.call("find", {"token": "t"}, q="x")
        assert result["content"][0]["text"] == '{"q": "x"}'
        assert asker.sent.params("notifications/progress") == [
            {"progressToken": "t", "progress": 1.0, "total": 3.0, "message": "begun"},
            {"progressToken": "t", "progress": 2.0, "total": 3.0},
        ]
        assert server.calls == [("search", {"q": "x"})]


async def test_a_reload_changes_what_is_listed(tmp_path: Path) -> None:
    async with open_packs(tmp_path) as asker:
        packs = asker.domain.services.packs
        assert isinstance(packs, ObservedPacks)
        await packs.use(configured(tmp_path, "packs: ['*.py']"))
        listed = {tool["name"] for tool in (await asker.result("tools/list"))["tools"]}
        assert ("demo_greet" in listed, "github_search" in listed) == (True, False)
