"""The registry of packs: what is offered, names that collide, and reloading.

Issue 5, 3 and 4; HAZARDS T26, T27, F31.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from msgspec import Raw
from trio.testing import MockClock, wait_all_tasks_blocked

from ot_pack.config import PackConfig
from ot_pack.document import ConfigError
from oubliette.errors import ToolTimeout
from oubliette.packs.registry import READ_SECONDS, PackSettings
from oubliette.packs.tools import PackTool
from tests.helpers.packs import (
    DEMO,
    ObservedPacks,
    PlayedServer,
    configured,
    connected,
    packs_of,
    running,
    settings_of,
    tool_entry,
)
from tests.helpers.waiting import until

SERVED = "packs: ['*.py']\nservers: {github: {command: played}}\n"


def ignore(done: float, total: float | None, message: str | None) -> None:
    """Nobody is told."""


async def text_of(tool: PackTool | None, arguments: bytes) -> bytes:
    assert tool is not None
    return await tool.call(Raw(arguments), ignore)


def pack(name: str, *tools: str) -> str:
    """The source of a local pack whose tools do nothing."""
    functions = "".join(f"def {tool}():\n    '''Does nothing.'''\n" for tool in tools)
    return f"pack = '{name}'\n__all__ = {list(tools)}\n{functions}"


# What is offered


async def test_the_tools_of_files_and_servers_are_offered(tmp_path: Path) -> None:
    config = configured(tmp_path, SERVED + "aliases: {hi: demo.greet, find: github.search}\n", demo=DEMO)
    async with running(packs_of(config, github=PlayedServer("search", "issues.list"))) as packs:
        offer = packs.offer
        assert [*offer.tools] == ["demo.greet", "demo.wait", "github.search", "github.issues.list"]
        assert offer.packs == {"demo": "local", "github": "proxy"}
        assert (packs.names, offer.problems) == (["ot", "demo", "github"], {})
        for name in ("github.issues.list", "github_issues_list"):
            assert offer.find(name) is offer.tools["github.issues.list"]
        assert (offer.find("hi"), offer.find("find")) == (offer.tools["demo.greet"], offer.tools["github.search"])
        for nothing in ("github", "issues.list", "github.issues_list", "", "hi.there", "demo.greet\n"):
            assert offer.find(nothing) is None


async def test_a_server_without_a_connection_is_a_pack_without_tools(tmp_path: Path) -> None:
    packs = packs_of(configured(tmp_path, SERVED), github=PlayedServer("search"))
    assert (packs.offer.packs, packs.offer.tools) == ({"github": "proxy"}, {})
    assert packs.offer.problems == {"github": "it is being connected"}


async def test_what_projects_get_that_say_nothing_is_the_configurations_to_say(tmp_path: Path) -> None:
    packs = packs_of(configured(tmp_path, demo=DEMO), ["ot"])
    assert [*map(sorted, map(packs.allowed, (None, [], ["demo"])))] == [["ot"], [], ["demo"]]
    await packs.use(packs.offer.settings.config, ["demo"])
    assert packs.allowed(None) == {"demo"}


# Names that collide


async def test_of_tools_with_one_name_none_is_offered(tmp_path: Path) -> None:
    """HAZARDS T27: `a_b.c` and `a.b_c` are both `a_b_c` to an agent."""
    config = configured(tmp_path, "packs: ['*.py']\nservers: {a_b: {command: played}}\n", a=pack("a", "b_c", "other"))
    async with running(packs_of(config, a_b=PlayedServer("c", "d"))) as packs:
        assert [*packs.offer.tools] == ["a.other", "a_b.d"]
        assert packs.offer.problems == {
            "a_b_c": "left out: a.b_c, a_b.c would be called a_b_c, as another tool is",
        }
        assert packs.offer.find("a_b_c") is packs.offer.find("a.b_c") is None


async def test_no_tool_is_called_as_one_of_the_daemons_own(tmp_path: Path) -> None:
    """`caller_tool` is a pack of the daemon's; `caller` may be a server, and must not pose as it."""
    config = configured(tmp_path, "servers: {caller: {command: played}}")
    async with running(packs_of(config, caller=PlayedServer("tool.response", "tool.other"))) as packs:
        assert [*packs.offer.tools] == ["caller.tool.other"]
        assert "caller_tool_response" in packs.offer.problems


async def test_an_alias_hides_no_tool_of_a_server(tmp_path: Path) -> None:
    """What a server offers is not known when the configuration is read."""
    config = configured(tmp_path, SERVED + "aliases: {github_search: demo.greet}\n", demo=DEMO)
    server = PlayedServer("search")
    async with running(packs_of(config, github=server)) as packs:
        assert packs.offer.find("github_search") is packs.offer.tools["github.search"]
        problem = "not in force: the tool github.search is called github_search"
        assert packs.offer.problems == {"alias github_search": problem}
        server.list_again("other")
        await until(lambda: "github.other" in packs.offer.tools)
        assert packs.offer.find("github_search") is packs.offer.tools["demo.greet"]
        assert packs.offer.problems == {}


# Changes


async def test_watchers_are_told_of_tools_that_come_go_and_change(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = PlayedServer("search")
    async with running(packs_of(configured(tmp_path, SERVED), github=server)) as packs:
        assert packs.told == 1
        server.list_again("search", "fetch")
        await trio.sleep(1)
        assert ([*packs.offer.tools], packs.told) == (["github.search", "github.fetch"], 2)
        server.tools[0] = tool_entry("search", title="is another one")
        server.say_changed()
        await trio.sleep(1)
        assert (packs.told, packs.changed_tools) == (3, [("github", "search")])


async def test_watchers_are_not_told_of_what_changes_no_tool(tmp_path: Path, autojump_clock: MockClock) -> None:
    """HAZARDS F31: a server that comes and goes, and lists the same again, costs its agents nothing."""
    server = PlayedServer("search")
    async with running(packs_of(configured(tmp_path, SERVED), github=server)) as packs:
        before = packs.offer
        server.list_again("search")
        await trio.sleep(1)
        server.drop()
        await wait_all_tasks_blocked()
        assert (packs.upstreams.status, "github" in packs.offer.problems) == ({"github": "disconnected"}, True)
        assert packs.offer.tools == before.tools
        await connected(packs)
        assert packs.offer.problems == {}
        assert packs.offer.tools["github.search"] is before.tools["github.search"]
        assert packs.told == 1


async def test_a_watcher_may_go_while_it_is_told() -> None:
    packs = packs_of()

    def leave() -> None:
        packs.watchers.discard(leave)

    packs.watchers.add(leave)
    await packs.reload()
    assert (leave in packs.watchers, packs.told) == (False, 1)


# Reloading


async def test_a_reload_puts_everything_in_force(tmp_path: Path) -> None:
    config = configured(tmp_path, SERVED, demo=DEMO)
    async with running(packs_of(config, github=PlayedServer("search"), docs=PlayedServer("find"))) as packs:
        text = "packs: ['*.py']\nservers: {docs: {command: played}}\naliases: {hi: demo.greet}\n"
        await packs.use(configured(tmp_path, text, demo=DEMO.replace('"wait"]', '"wait", "fresh"]') + FRESH))
        await connected(packs)
        assert [*packs.offer.tools] == ["demo.greet", "demo.wait", "demo.fresh", "docs.find"]
        assert packs.offer.find("hi") is packs.offer.tools["demo.greet"]
        assert b"new" in await text_of(packs.offer.tools["demo.fresh"], b"{}")
        assert packs.names == ["ot", "demo", "docs"]


FRESH = '''
def fresh() -> str:
    """Is new."""
    return "new"
'''


async def test_a_server_that_is_the_same_stays_connected(tmp_path: Path) -> None:
    server = PlayedServer("search")
    config = configured(tmp_path, SERVED)
    async with running(packs_of(config, github=server)) as packs:
        tool = packs.offer.tools["github.search"]
        await packs.use(configured(tmp_path, SERVED + "aliases: {find: github.search}\n"))
        assert packs.offer.tools["github.search"] is tool
        assert (packs.upstreams.status, server.connections) == ({"github": "connected"}, 1)


async def test_calls_that_run_end_with_what_they_began_with(tmp_path: Path, mock_clock: MockClock) -> None:
    packs = packs_of(configured(tmp_path, demo=DEMO))
    answers: list[bytes] = []

    async def call(tool: PackTool | None) -> None:
        answers.append(await text_of(tool, b'{"seconds": 5}'))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call, packs.offer.find("demo.wait"))
        await wait_all_tasks_blocked()
        await packs.use(configured(tmp_path, demo=DEMO.replace('"waited"', '"slept"')))
        nursery.start_soon(call, packs.offer.find("demo.wait"))
        await wait_all_tasks_blocked()
        mock_clock.jump(5)
    assert sorted(answer.split(b'"structuredContent":')[1] for answer in answers) == [
        b'{"slept":5.0}}',
        b'{"waited":5.0}}',
    ]


def refuse() -> PackSettings:
    raise ConfigError("oubliette.yaml:3: aliases.a: is an alias of itself")


async def test_a_bad_configuration_leaves_the_old_one_in_force(tmp_path: Path) -> None:
    packs = packs_of(configured(tmp_path, demo=DEMO))
    before = packs.offer
    packs.settings = refuse
    with pytest.raises(ConfigError, match="alias of itself"):
        await packs.reload()
    assert (packs.offer is before, packs.told) == (True, 0)
    # And the next one is not held up by it.
    await packs.use(PackConfig())
    assert (packs.offer.tools, packs.told) == ({}, 1)


async def test_a_broken_pack_is_a_problem_and_the_rest_is_in_force(tmp_path: Path) -> None:
    packs = packs_of(configured(tmp_path, demo=DEMO))
    await packs.use(configured(tmp_path, worse="pack = 'worse'\n__all__ = ['x'\n"))
    assert [*packs.offer.tools] == ["demo.greet", "demo.wait"]
    [(file, problem)] = packs.offer.problems.items()
    assert file == str(tmp_path / "worse.py")
    assert problem.startswith(f"{file}:2: is not Python")


class Gate:
    """Readings of the configuration that each wait until the test lets them go on, in whatever order."""

    def __init__(self) -> None:
        self.under_way: list[tuple[threading.Event, PackSettings]] = []
        self.at_once = 0
        self._lock = threading.Lock()

    def reading(self, settings: Callable[[], PackSettings]) -> Callable[[], PackSettings]:
        def read() -> PackSettings:
            go_on, found = threading.Event(), settings()
            with self._lock:
                self.under_way.append((go_on, found))
                self.at_once = max(self.at_once, len(self.under_way))
            go_on.wait(20)
            with self._lock:
                self.under_way.remove((go_on, found))
            return found

        return read

    def let_go(self) -> None:
        self.under_way[0][0].set()


async def test_of_two_reloads_the_later_one_has_the_last_word(tmp_path: Path) -> None:
    first = settings_of(configured(tmp_path, one=pack("one", "a")))
    packs, gate = packs_of(), Gate()
    now = [first]
    packs.settings = gate.reading(lambda: now[0])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(packs.reload)
        await until(lambda: gate.under_way)
        # The file is changed while it is being read, and another reload asked for.
        (tmp_path / "one.py").unlink()
        now[0] = settings_of(configured(tmp_path, two=pack("two", "b")))
        nursery.start_soon(packs.reload)
        await wait_all_tasks_blocked()
        gate.let_go()
        await until(lambda: packs.reads == 2 and gate.under_way)
        assert [*packs.offer.tools] == ["one.a"]
        gate.let_go()
    assert ([*packs.offer.tools], gate.at_once, packs.told) == (["two.b"], 1, 2)


async def test_a_pack_that_hangs_when_it_is_loaded_does_not_hold_up_the_next_reload(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    packs, gate = packs_of(configured(tmp_path, demo=DEMO)), Gate()
    packs.settings = gate.reading(lambda: settings_of(PackConfig()))

    async def time_out() -> None:
        with pytest.raises(ToolTimeout, match="had not been read after 60 s"):
            await packs.reload()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(time_out)
        await wait_all_tasks_blocked()
        mock_clock.jump(READ_SECONDS)
    assert [*packs.offer.tools] == ["demo.greet", "demo.wait"]
    await packs.use(configured(tmp_path, other=pack("other", "a")))
    assert "other.a" in packs.offer.tools
    gate.let_go()


async def test_a_reload_that_is_cancelled_changes_nothing(tmp_path: Path) -> None:
    packs, gate = packs_of(configured(tmp_path, demo=DEMO)), Gate()
    packs.settings = gate.reading(lambda: settings_of(PackConfig()))
    before = packs.offer
    async with trio.open_nursery() as nursery:
        nursery.start_soon(packs.reload)
        await until(lambda: gate.under_way)
        nursery.cancel_scope.cancel()
    assert packs.offer is before
    gate.let_go()
    await packs.use(PackConfig())
    assert packs.offer.tools == {}


async def test_what_is_told_to_clients_is_each_tool_with_its_pack(tmp_path: Path) -> None:
    config = configured(tmp_path, SERVED, demo=DEMO)
    async with running(packs_of(config, github=PlayedServer("issues.list"))) as packs:
        told: dict[str, Any] = {name: msgspec.json.decode(raw) for name, raw in packs.offer.told.items()}
        assert (told["demo.greet"]["pack"], told["demo.greet"]["name"]) == ("demo", "greet")
        assert told["demo.greet"]["inputSchema"]["required"] == ["name"]
        assert told["github.issues.list"] == {**tool_entry("issues.list"), "pack": "github"}


def test_the_registry_needs_no_running_loop() -> None:
    """It is made before the daemon runs, with the configuration that was read at the start."""
    assert isinstance(packs_of(), ObservedPacks)
