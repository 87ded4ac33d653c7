"""Tools of packs over the link: what an agent is told of without a key, and what comes of calling it.

WIRE section 1, `pack_tools_config` and `pack_tool`; issue 5, 4; HAZARDS T23, T27, F31.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import yaml
from trio.testing import MockClock, wait_all_tasks_blocked

from oubliette.link import packs as link_packs
from tests.helpers.domain import OWNER
from tests.helpers.link import AgentLink
from tests.helpers.link_bench import MAX_BYTES, LinkBench, open_link_bench
from tests.helpers.packs import DEMO, ObservedPacks, PlayedServer, configured, connected, packs_of, tool_entry
from tests.helpers.waiting import until

CONFIG = """
packs: ['*.py']
servers: {github: {command: played}}
aliases: {hi: demo.greet, find: github.search, what: ot.tools, new: project.create}
topics: [{pattern: "notes*", file: notes.yaml}]
"""
READS = {f"ot_{function}" for function in ("tools", "packs", "aliases", "snippets", "config", "health")}


class PackBench:
    """A session whose daemon has a local pack and a server, and a link to it."""

    def __init__(self, bench: LinkBench, packs: ObservedPacks, server: PlayedServer, link: AgentLink) -> None:
        self.bench = bench
        self.packs = packs
        self.server = server
        self.link = link

    async def ask(self, name: str, /, *, id: Any = 1, **arguments: Any) -> None:
        await self.link.ask("pack_tool", {"name": name, "arguments": arguments}, id=id)

    async def answer(self, name: str, /, **arguments: Any) -> Any:
        """Calls a pack tool and returns the whole answer."""
        await self.ask(name, **arguments)
        return await self.link.receive()

    async def result(self, name: str, /, **arguments: Any) -> Any:
        return (await self.answer(name, **arguments))["result"]

    async def text(self, name: str, /, **arguments: Any) -> str:
        """Calls a pack tool that must succeed, and returns its text."""
        result = await self.result(name, **arguments)
        assert not result.get("isError"), result
        [block] = result["content"]
        return str(block["text"])

    async def is_silent(self) -> bool:
        """Whether the client has been told nothing: the first that comes is the answer to a call."""
        await wait_all_tasks_blocked()
        return bool((await self.answer("demo.greet", name="x")).get("id") == 1)


@asynccontextmanager
async def open_pack_bench(
    folder: Path, text: str = CONFIG, *, allowed: list[str] | None = None, project: list[str] | None = None
) -> AsyncIterator[PackBench]:
    """`allowed` are the packs of the configuration's `project_packs`, `project` those of the session's own project."""
    server = PlayedServer("search", "issues.list")
    packs = packs_of(configured(folder, text, demo=DEMO), allowed, folder=folder, github=server)
    async with open_link_bench(folder, packs=packs) as plain:
        await connected(packs)
        session = plain.session if project is None else await in_project(plain, project)
        bench = LinkBench(plain.domain, session, plain.stream, plain.tasks)
        yield PackBench(bench, packs, server, await bench.connect())


async def in_project(bench: LinkBench, packs: list[str]) -> Any:
    created = await bench.domain.run(OWNER, "project_create", name="another", packs=packs)
    return await bench.domain.start("send", project_id=created["project_id"])


def told(config: Any) -> set[str]:
    """The tools that a `pack_tools_config` tells of, by their MCP names."""
    assert (config["jsonrpc"], config["type"]) == ("2.0", "pack_tools_config")
    return {f"{tool['pack']}_{tool['name']}" for tool in config["params"]["tools"]}


# What is told


async def test_a_client_is_told_of_what_its_agents_may_call_without_a_key(tmp_path: Path) -> None:
    """ "Local packs, proxied servers, the `ot` read tools and `ot.notify`": not `ot.reload`."""
    async with open_pack_bench(tmp_path) as bench:
        config = bench.link.configs[1]
        others = {"demo_greet", "demo_wait", "github_search", "github_issues.list"}
        assert told(config) == READS | {"ot_notify"} | others
        tools = {(tool["pack"], tool["name"]): tool for tool in config["params"]["tools"]}
        assert tools["github", "issues.list"] == {**tool_entry("issues.list"), "pack": "github"}
        greet = tools["demo", "greet"]
        assert greet["description"].startswith("Greets somebody.")
        assert greet["inputSchema"]["properties"]["times"] == {
            "type": "integer",
            "default": 1,
            "description": "How often",
        }
        assert tools["ot", "tools"]["annotations"]["readOnlyHint"] is True
        assert "outputSchema" not in tools["ot", "tools"]


@pytest.mark.parametrize(
    ("allowed", "project", "packs"),
    [
        (["ot"], None, {"ot"}),
        ([], None, set()),
        (["ot", "demo"], ["github"], {"github"}),
        ([], ["demo", "ot"], {"demo", "ot"}),
        (None, [], set()),
    ],
)
async def test_the_packs_are_those_of_the_project(
    tmp_path: Path, allowed: list[str] | None, project: list[str] | None, packs: set[str]
) -> None:
    async with open_pack_bench(tmp_path, allowed=allowed, project=project) as bench:
        assert {tool["pack"] for tool in bench.link.configs[1]["params"]["tools"]} == packs
        callable_packs = set()
        for name in ("ot.tools", "demo.greet", "github.search"):
            answer = await bench.answer(name, **({"name": "Ada"} if name == "demo.greet" else {}))
            if "result" in answer:
                callable_packs.add(name.partition(".")[0])
        assert callable_packs == packs
        if "ot" in packs:
            shown = {entry["name"].partition(".")[0] for entry in yaml.safe_load(await bench.text("ot.tools"))}
            # Beside its packs: what every agent has, and its caller's tools, of which the first session has one.
            assert shown == packs | {"session", "project", "myapp"}


async def test_a_client_is_told_of_the_aliases_of_what_its_agents_may_call(tmp_path: Path) -> None:
    async with open_pack_bench(tmp_path, allowed=["ot", "demo"]) as bench:
        assert bench.link.configs[1]["params"]["aliases"] == ["hi", "what"]
        await bench.packs.use(configured(tmp_path, CONFIG.replace("hi: ", "hello: "), demo=DEMO))
        assert (await bench.link.receive())["params"]["aliases"] == ["hello", "find", "what"]


async def test_tools_that_do_not_fit_into_a_line_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_packs, "MAX_CONFIG_BYTES", 2000)
    async with open_pack_bench(tmp_path) as bench:
        tools = bench.link.configs[1]["params"]["tools"]
        assert 0 < len(tools) < 11
        assert sum(len(json.dumps(tool, separators=(",", ":"))) + 1 for tool in tools) <= 2000


# What is called


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("demo.greet", {"name": "Ada", "times": 2}, "hello Ada hello Ada"),
        ("demo_greet", {"name": "Ada"}, "hello Ada"),
        ("hi", {"name": "Ada"}, "hello Ada"),
        ("github.search", {"q": "x"}, '{"q": "x"}'),
        ("github.issues.list", {}, "{}"),
        ("github_issues_list", {}, "{}"),
        ("find", {"q": "y"}, '{"q": "y"}'),
        ("ot.aliases", {"name": "hi"}, "hi -> demo.greet"),
        ("ot_aliases", {"name": "hi"}, "hi -> demo.greet"),
        ("what", {"name": "demo.wait", "compact": True}, "name: demo.wait\ndescription: Waits."),
        ("ot.notify", {"topic": "notes", "message": "x"}, "OK: notes -> notes.yaml"),
        ("ot.notify", {"topic": "other", "message": "x"}, "SKIP: no matching topic"),
    ],
)
async def test_a_tool_is_called_by_its_identity_its_mcp_name_or_an_alias(
    tmp_path: Path, name: str, arguments: dict[str, Any], text: str
) -> None:
    async with open_pack_bench(tmp_path) as bench:
        assert (await bench.text(name, **arguments)).rstrip("\n") == text


@pytest.mark.parametrize(
    "name",
    [
        "",
        "nope",
        "ot.reload",
        "ot_reload",
        "new",
        "project.create",
        "token_list",
        "session.message",
        "myapp.send",
        "demo",
    ],
)
async def test_what_is_not_offered_is_not_found(tmp_path: Path, name: str) -> None:
    """ "Anything not offered in `pack_tools_config` is -32005"."""
    async with open_pack_bench(tmp_path) as bench:
        error = (await bench.answer(name))["error"]
        assert (error["code"], error["data"]) == (-32005, {"kind": "not_found", "field": "name"})
        assert "ot.tools" in error["message"]


async def test_a_name_without_end_is_quoted_in_part(tmp_path: Path) -> None:
    async with open_pack_bench(tmp_path) as bench:
        error = (await bench.answer("x" * 3000))["error"]
        assert error["code"] == -32005
        assert len(error["message"]) < 1000


@pytest.mark.parametrize("params", ["", ',"params":{}', ',"params":{"name":5}', ',"params":[]'])
async def test_params_of_another_shape_are_refused(tmp_path: Path, params: str) -> None:
    async with open_pack_bench(tmp_path) as bench:
        await bench.link.send_line(f'{{"id":1,"method":"pack_tool"{params}}}'.encode())
        assert (await bench.link.receive())["error"]["code"] == -32602


@pytest.mark.parametrize("arguments", ["", ',"arguments":null', ',"arguments":{}'])
async def test_arguments_may_be_missing(tmp_path: Path, arguments: str) -> None:
    async with open_pack_bench(tmp_path) as bench:
        await bench.link.send_line(
            f'{{"id":1,"method":"pack_tool","params":{{"name":"ot.config"{arguments}}}}}'.encode()
        )
        assert "aliases:" in (await bench.link.receive())["result"]["content"][0]["text"]


@pytest.mark.parametrize(
    ("name", "arguments", "field"),
    [
        ("demo.greet", {}, "arguments"),
        ("demo.greet", {"name": "x", "nmae": 1}, "arguments"),
        ("ot.tools", {"nmae": 1}, "nmae"),
        ("ot.notify", {"topic": "x"}, "message"),
        ("ot.tools", {"compact": "yes"}, "compact"),
    ],
)
async def test_a_failure_of_a_known_tool_is_a_result(
    tmp_path: Path, name: str, arguments: dict[str, Any], field: str
) -> None:
    async with open_pack_bench(tmp_path) as bench:
        result = await bench.result(name, **arguments)
        failure = result["_meta"]["oubliette/error"]
        assert (result["isError"], failure["kind"], failure["field"]) == (True, "invalid_params", field)
        assert result["content"] == [{"type": "text", "text": failure["message"]}]


async def test_what_ot_does_not_find_is_an_error(tmp_path: Path) -> None:
    async with open_pack_bench(tmp_path) as bench:
        result = await bench.result("ot.tools", name="demo.gret")
        assert result["isError"] is True
        assert result["content"][0]["text"].startswith("Error: tool 'demo.gret' not found. Available: demo.greet, ")


async def test_a_result_that_is_longer_than_a_line_is_refused(tmp_path: Path) -> None:
    async with open_pack_bench(tmp_path) as bench:
        failure = (await bench.result("demo.greet", name="x" * 1000, times=5))["_meta"]["oubliette/error"]
        assert failure["kind"] == "limit_exceeded"
        assert f"at most {MAX_BYTES} (relay.max_message_bytes)" in failure["message"]
        assert await bench.text("demo.greet", name="short") == "hello short"


async def test_a_mistake_of_ours_ends_one_call_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_pack_bench(tmp_path) as bench:
        tool = bench.packs.offer.tools["demo.greet"]

        async def fail(arguments: object, progress: object) -> bytes:
            raise KeyError("secret")

        monkeypatch.setattr(tool, "call", fail)
        result = await bench.result("demo.greet")
        assert result["_meta"]["oubliette/error"]["kind"] == "internal_error"
        assert "secret" not in json.dumps(result)
        assert await bench.text("ot.aliases", name="hi") == "hi -> demo.greet"


async def test_the_agents_folder_is_its_workspace(tmp_path: Path) -> None:
    async with open_pack_bench(tmp_path) as bench:
        health = yaml.safe_load(await bench.text("ot.health"))
        assert await trio.Path(health["cwd"]).is_dir()
        assert health["cwd"].endswith(f"/{bench.bench.session.project_id}/{bench.bench.session.workspace_id}")
        assert health["proxy"] == {"status": "ok", "server_count": 1, "servers": {"github": "connected"}}


# Requests that wait


async def test_calls_run_at_once_and_are_answered_as_they_end(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_pack_bench(tmp_path) as bench:
        started = trio.current_time()
        for seconds in (20, 10):
            await bench.ask("demo.wait", id=seconds, seconds=seconds)
        await bench.ask("nope", id=0)
        assert [(await bench.link.receive())["id"] for _ in range(3)] == [0, 10, 20]
        assert trio.current_time() - started == 20


async def test_a_call_is_cancelled(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_pack_bench(tmp_path) as bench:
        await bench.ask("demo.wait", id="w", seconds=30)
        await wait_all_tasks_blocked()
        await bench.link.send({"method": "notifications/cancelled", "params": {"requestId": "w"}})
        error = (await bench.link.receive())["error"]
        assert (error["code"], error["data"]["kind"]) == (-32800, "cancelled")
        assert trio.current_time() < 30


async def test_progress_is_passed_on_with_the_requests_id(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_pack_bench(tmp_path) as bench:
        bench.server.reports = [(1, 3, "begun"), (2, None, None)]
        await bench.ask("github.search", id="s", q="x")
        messages = [await bench.link.receive() for _ in range(3)]
        assert [message.get("params") for message in messages] == [
            {"request": "s", "progress": 1.0, "total": 3.0, "message": "begun"},
            {"request": "s", "progress": 2.0, "total": None, "message": None},
            None,
        ]
        assert {message["method"] for message in messages[:2]} == {"notifications/progress"}
        assert messages[2]["id"] == "s"


async def test_progress_of_a_call_without_an_id_goes_nowhere(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_pack_bench(tmp_path) as bench:
        bench.server.reports = [(1, None, None)]
        await bench.link.send_line(b'{"method":"pack_tool","params":{"name":"find","arguments":{"q":"x"}}}')
        assert (await bench.link.receive())["id"] is None


# Changes


async def test_a_client_is_told_when_its_tools_change(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_pack_bench(tmp_path) as bench:
        other = await bench.bench.connect()
        started = trio.current_time()
        bench.server.list_again("search", "fetch")
        for link in (bench.link, other):
            now = told(await link.receive())
            assert now >= {"github_search", "github_fetch"}
            assert "github_issues.list" not in now
        assert trio.current_time() - started < 1


async def test_a_client_is_not_told_what_it_knows(tmp_path: Path) -> None:
    async with open_pack_bench(tmp_path) as bench:
        before = bench.packs.told
        await bench.packs.use(configured(tmp_path, CONFIG.replace("notes*", "*"), demo=DEMO))
        assert bench.packs.told > before
        assert await bench.is_silent()


async def test_a_client_is_not_told_of_packs_that_are_not_its_projects(tmp_path: Path) -> None:
    async with open_pack_bench(tmp_path, project=["demo"]) as bench:
        before = bench.packs.told
        bench.server.list_again("search", "fetch")
        await until(lambda: bench.packs.told > before)
        assert await bench.is_silent()


async def test_a_reload_reaches_a_running_agent(tmp_path: Path) -> None:
    async with open_pack_bench(tmp_path) as bench:
        more = (
            DEMO.replace('"wait"]', '"wait", "fresh"]') + '\n\ndef fresh() -> str:\n    """New."""\n    return "new"\n'
        )
        await bench.packs.use(configured(tmp_path, CONFIG.replace("hi: demo.greet", "hi: demo.fresh"), demo=more))
        assert "demo_fresh" in told(await bench.link.receive())
        assert (await bench.text("demo.fresh"), await bench.text("hi")) == ("new", "new")


async def test_what_projects_get_by_default_changes_with_a_reload(tmp_path: Path) -> None:
    async with open_pack_bench(tmp_path, allowed=["ot"]) as bench:
        assert (await bench.answer("demo.greet", name="x"))["error"]["code"] == -32005
        await bench.packs.use(bench.packs.offer.settings.config, ["demo"])
        assert told(await bench.link.receive()) == {"demo_greet", "demo_wait"}
        assert await bench.text("demo.greet", name="x") == "hello x"
        assert (await bench.answer("ot.tools"))["error"]["code"] == -32005


async def test_a_link_that_has_closed_is_told_no_more(tmp_path: Path) -> None:
    async with open_pack_bench(tmp_path) as bench:
        watching = len(bench.packs.watchers)
        await bench.link.stream.aclose()
        await until(lambda: len(bench.packs.watchers) == watching - 1)
        await bench.packs.reload()
