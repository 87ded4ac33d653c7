"""The `ot` tools of the daemon, and how tools of packs are found and run for principals.

WIRE sections 6 and 10; tool-ot-spec, "Logging"; HAZARDS T23, T27.
"""

from __future__ import annotations

import inspect
import io
import json
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import yaml
from msgspec import Raw
from trio.testing import MockClock

import ot_pack
from ot_pack.document import ConfigError
from ot_pack.names import DAEMON_PACKS, DAEMON_TOOLS
from oubliette import log
from oubliette.errors import Forbidden, InvalidParams, NotFound
from oubliette.packs.registry import PackSettings
from oubliette.packs.tools import PackTool
from oubliette.scopes import Scope
from oubliette.tokens import Principal
from oubliette.toolbox import box, ot
from oubliette.toolbox.call import Call, Services, Unheard
from oubliette.toolbox.declare import AnyTool
from tests.helpers.domain import OWNER, Domain, open_domain
from tests.helpers.packs import DEMO, ObservedPacks, PlayedServer, configured, connected, packs_of

CONFIG = """
packs: ['*.py']
servers: {github: {command: played}}
aliases: {hi: demo.greet, new: project.create, what: ot.tools}
snippets: {ask: {description: Asks, body: "Ask."}}
topics: [{pattern: "notes*", file: notes.yaml}]
"""
READER = Principal("reader", Scope(None, True))
PROJECT = Principal("project", Scope("default", False))
STRANGER = Principal("stranger", Scope("elsewhere", False))


@asynccontextmanager
async def open_packs(folder: Path, allowed: list[str] | None = None) -> AsyncIterator[Domain]:
    """A domain with a local pack and a server."""
    packs = packs_of(configured(folder, CONFIG, demo=DEMO), allowed, folder=folder, github=PlayedServer("search"))
    async with open_domain(folder, packs=packs) as domain:
        await connected(packs)
        yield domain


def registry_of(domain: Domain) -> ObservedPacks:
    packs = domain.services.packs
    assert isinstance(packs, ObservedPacks)
    return packs


def call_of(services: Services, principal: Principal = OWNER, reports: Any = None) -> Call:
    return Call(principal=principal, services=services, door="mcp", reports=reports or Unheard())


async def text_of(domain: Domain, function: str, principal: Principal = OWNER, /, **arguments: Any) -> str:
    """Calls a function of `ot` that must succeed."""
    result = await domain.run(principal, f"ot_{function}", **arguments)
    [block] = result["content"]
    assert result == {"content": [{"type": "text", "text": block["text"]}]}
    return str(block["text"])


# The tools


def test_names_of_the_daemon_are_those_that_a_configuration_must_not_use() -> None:
    """`ot_pack` imports nothing of the daemon, so it has a list of its own."""
    assert {tool.identity for tool in box.TOOLS.values()} == DAEMON_TOOLS
    assert DAEMON_PACKS == box.PACKS


def test_there_is_a_tool_for_each_function() -> None:
    tools = {tool.identity.removeprefix("ot.") for tool in box.TOOLS.values() if tool.pack == "ot"}
    assert tools == set(ot_pack.__all__)


@pytest.mark.parametrize("tool", [tool for tool in box.TOOLS.values() if tool.pack == "ot"], ids=lambda tool: tool.name)
def test_a_tool_takes_the_arguments_of_its_function(tool: AnyTool) -> None:
    function = inspect.signature(getattr(ot_pack, tool.shown.tool))
    shown = ot_pack_signature(tool)
    assert [*shown.parameters] == [*function.parameters]
    for name, parameter in function.parameters.items():
        assert shown.parameters[name].default == parameter.default


def ot_pack_signature(tool: AnyTool) -> Any:
    """What the signature that `ot` shows says to Python."""
    namespace: dict[str, Any] = {}
    exec(f"def {tool.shown.signature.replace('.', '_', 1)}: ...", namespace)
    return inspect.signature(namespace[tool.name])


def test_agents_get_what_reads_and_notify() -> None:
    """WIRE section 1: "the `ot` read tools and `ot.notify`"."""
    reading = {tool.name for tool in box.TOOLS.values() if tool.pack == "ot" and tool.access == "read"}
    assert {tool.name for tool in ot.FOR_AGENTS} == reading | {"ot_notify"}


@pytest.mark.parametrize(
    ("function", "arguments", "text"),
    [
        ("tools", {"pattern": "GREET", "compact": True}, '- {name: demo.greet, description: "Greets somebody."}'),
        ("packs", {"pattern": "hub"}, "- {name: github, source: proxy, tool_count: 1}"),
        ("aliases", {}, "{hi: demo.greet, new: project.create, what: ot.tools}"),
        ("aliases", {"name": "hi"}, "hi -> demo.greet"),
        ("snippets", {}, "- {name: ask, description: Asks}"),
        (
            "config",
            {},
            "aliases: {hi: demo.greet, new: project.create, what: ot.tools}\n"
            "snippets: {ask: {description: Asks}}\nservers: [github]",
        ),
        ("notify", {"topic": "notes", "message": "x"}, "OK: notes -> notes.yaml"),
        ("notify", {"topic": "x", "message": "x"}, "SKIP: no matching topic"),
        ("reload", {}, "OK: Configuration reloaded"),
    ],
)
async def test_a_tool_is_one_block_of_what_its_function_returns(
    tmp_path: Path, function: str, arguments: dict[str, Any], text: str
) -> None:
    async with open_packs(tmp_path) as domain:
        registry_of(domain).settings = domain.services.packs.offer.settings
        assert (await text_of(domain, function, **arguments)).rstrip("\n") == text


async def test_a_text_that_begins_with_error_says_so(tmp_path: Path) -> None:
    async with open_packs(tmp_path) as domain:
        result = await domain.run(OWNER, "ot_packs", name="gitub")
        assert result["isError"] is True
        assert result["content"][0]["text"].startswith("Error: pack 'gitub' not found. Available: github, ")


async def test_health_tells_what_is_the_matter(tmp_path: Path) -> None:
    async with open_packs(tmp_path) as domain:
        health = yaml.safe_load(await text_of(domain, "health"))
        assert health["registry"] == {"status": "ok", "tool_count": len(box.TOOLS) + 2}
        assert health["proxy"] == {"status": "ok", "server_count": 1, "servers": {"github": "connected"}}
        (tmp_path / "worse.py").write_text("pack = 'worse'\n")
        await registry_of(domain).use(configured(tmp_path, CONFIG))
        health = yaml.safe_load(await text_of(domain, "health", READER))
        assert health["registry"]["status"] == "degraded"
        assert "has no __all__" in health["registry"]["problems"][str(tmp_path / "worse.py")]
        assert "problems" not in yaml.safe_load(await text_of(domain, "health", PROJECT))["registry"]


async def test_a_bad_configuration_is_told_and_not_used(tmp_path: Path) -> None:
    def refuse() -> PackSettings:
        raise ConfigError("oubliette.yaml:3: aliases.a: is an alias of itself")

    async with open_packs(tmp_path) as domain:
        registry_of(domain).settings = refuse
        result = await domain.run(OWNER, "ot_reload")
        assert result["isError"] is True
        assert result["content"][0]["text"] == "Error: oubliette.yaml:3: aliases.a: is an alias of itself"
        assert "hi" in await text_of(domain, "aliases")


async def test_a_reload_that_is_given_up_ends_at_once(tmp_path: Path) -> None:
    """Its thread goes on to its own end, and what it found is not used."""
    over, begun = threading.Event(), trio.Event()
    async with open_packs(tmp_path) as domain:
        before = domain.services.packs.offer

        def hang() -> PackSettings:
            trio.from_thread.run_sync(begun.set)
            over.wait(20)
            return before.settings

        registry_of(domain).settings = hang
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(domain.run, OWNER, "ot_reload")
                await begun.wait()
                nursery.cancel_scope.cancel()
        assert domain.services.packs.offer is before
        over.set()


async def test_many_reloads_at_once_do_not_stop_each_other(tmp_path: Path) -> None:
    """Each holds a thread while it waits for its turn, and the one whose turn it is needs another."""
    async with open_packs(tmp_path) as domain:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                for _ in range(60):
                    nursery.start_soon(text_of, domain, "reload")
        assert registry_of(domain).reads == 60


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What the daemon logs."""
    root, ours = logging.getLogger(), logging.getLogger("oubliette")
    before = root.level, ours.level, root.handlers[:]
    stream = io.StringIO()
    log.setup("debug", "json", stream)
    yield stream
    root.handlers[:] = before[2]
    root.setLevel(before[0])
    ours.setLevel(before[1])


@pytest.mark.parametrize("function", ot_pack.__all__)
async def test_each_call_runs_in_a_span(tmp_path: Path, function: str, lines: io.StringIO) -> None:
    """tool-ot-spec: "span name SHALL be `ot.{function_name}`"."""
    async with open_packs(tmp_path) as domain:
        await domain.run(OWNER, f"ot_{function}", **({"topic": "x", "message": "x"} if function == "notify" else {}))
    logged = [json.loads(line) for line in lines.getvalue().splitlines()]
    ends = [line for line in logged if line["event"] == f"ot.{function} ended"]
    assert [line["span"] for line in ends] == [f"ot.{function}"]


# Who may see and call what


async def test_a_scope_finds_the_tools_of_its_projects_packs(tmp_path: Path) -> None:
    async with open_packs(tmp_path, ["ot", "demo"]) as domain:
        found = {}
        for principal in (OWNER, READER, PROJECT, STRANGER):
            call = call_of(domain.services, principal)
            found[principal.token_id] = {tool.identity for tool in call.pack_tools()}
            for tool in domain.services.packs.offer.tools.values():
                for name in (tool.identity, tool.mcp_name):
                    assert (call.pack_tool(name) is tool) == (tool.identity in found[principal.token_id])
        demo = {"demo.greet", "demo.wait"}
        assert found == {"owner": {*demo, "github.search"}, "reader": set(), "project": demo, "stranger": set()}


@pytest.mark.parametrize(
    ("name", "identity"),
    [
        ("project_create", "project.create"),
        ("project.create", "project.create"),
        ("new", "project.create"),
        ("what", "ot.tools"),
        ("demo_greet", "demo.greet"),
        ("demo.greet", "demo.greet"),
        ("hi", "demo.greet"),
        ("github_search", "github.search"),
    ],
)
async def test_a_tool_is_found_by_its_names_and_aliases(tmp_path: Path, name: str, identity: str) -> None:
    async with open_packs(tmp_path) as domain:
        assert box.find(call_of(domain.services), name).identity == identity


@pytest.mark.parametrize("name", ["nope", "demo", "hi.x", "", "session_mesage", "github.fetch"])
async def test_an_unknown_tool_is_refused_with_the_nearest(tmp_path: Path, name: str) -> None:
    async with open_packs(tmp_path) as domain:
        with pytest.raises(NotFound, match="; nearest: ") as refused:
            box.find(call_of(domain.services), name)
        assert refused.value.field == "name"


async def test_what_a_scope_may_not_use_is_not_there(tmp_path: Path) -> None:
    """HAZARDS T23: neither shown nor callable, and an alias is no way around."""
    async with open_packs(tmp_path, ["ot"]) as domain:
        for name in ("demo_greet", "demo.greet", "hi", "github_search"):
            with pytest.raises(NotFound) as refused:
                box.find(call_of(domain.services, PROJECT), name)
            assert "greet," not in refused.value.message
        forbidden = box.find(call_of(domain.services, PROJECT), "new")
        assert not isinstance(forbidden, PackTool)
        with pytest.raises(Forbidden):
            await box.run(call_of(domain.services, PROJECT), forbidden, b'{"name":"x"}')


# Running them


class Heard:
    """Reports that a peer reads slowly, one in a second."""

    def __init__(self) -> None:
        self.progressed: list[tuple[float, float | None, str | None]] = []

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        await trio.sleep(1)
        self.progressed.append((done, total, message))

    async def log(self, level: Any, data: Any) -> None:
        raise AssertionError("nothing is logged")


class Reporting(PackTool):
    """Reports three times at once, waits, reports, and ends."""

    @property
    def shown(self) -> Any:
        raise AssertionError("is not shown")

    async def call(self, arguments: Raw, progress: Any) -> bytes:
        for done in (1, 2, 3):
            progress(done, 5, "on it")
        await trio.sleep(10)
        progress(4, None, None)
        if bytes(arguments) == b"{}":
            raise InvalidParams("nothing to do")
        return b'{"content":[]}'


async def test_reports_are_passed_on_and_delay_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_domain(tmp_path) as domain:
        heard = Heard()
        tool = Reporting("demo", "work", {})
        call = call_of(domain.services, reports=heard)
        assert await box.run_pack_tool(call, tool, b'{"x":1}') == b'{"content":[]}'
        # Of those that come at once the first is passed on.
        assert heard.progressed == [(1, 5, "on it"), (4, None, None)]
        with pytest.raises(InvalidParams, match="nothing to do"):
            await box.run_pack_tool(call, tool, b"{}")


async def test_a_cancelled_call_is_cancelled(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_domain(tmp_path) as domain:
        with trio.move_on_after(5) as scope:
            await box.run_pack_tool(call_of(domain.services, reports=Heard()), Reporting("demo", "work", {}), b"{}")
        assert (scope.cancelled_caught, trio.current_time()) == (True, 5)


async def test_calls_of_packs_are_in_the_audit_log(tmp_path: Path) -> None:
    async with open_packs(tmp_path) as domain:
        call = call_of(domain.services)
        tool = box.find(call, "hi")
        assert isinstance(tool, PackTool)
        await box.run_pack_tool(call, tool, b'{"name":"Ada"}')
        with pytest.raises(InvalidParams):
            await box.run_pack_tool(call, tool, b"{}")
        noted = [(line["action"], line["outcome"]) for line in domain.audit.noted]
        assert noted == [("demo.greet", "ok"), ("demo.greet", "invalid_params")]


async def test_no_caller_takes_the_name_of_a_pack_that_came_later(tmp_path: Path) -> None:
    async with open_packs(tmp_path) as domain:
        for caller_id in ("demo", "github", "ot"):
            context = {"caller_id": caller_id, "caller_tools": [{"name": "send"}]}
            with pytest.raises(InvalidParams) as refused:
                await domain.run(OWNER, "session_message", message="x", context=context)
            assert refused.value.field == "context.caller_id"


async def test_projects_are_given_packs_that_there_are(tmp_path: Path) -> None:
    async with open_packs(tmp_path) as domain:
        options = await domain.run(OWNER, "project_options")
        assert options["packs"] == ["ot", "demo", "github"]
        created = await domain.run(OWNER, "project_create", name="x", packs=["demo"])
        assert created["packs"] == ["demo"]
        with pytest.raises(InvalidParams) as refused:
            await domain.run(OWNER, "project_create", name="y", packs=["nope"])
        assert refused.value.field == "packs"
