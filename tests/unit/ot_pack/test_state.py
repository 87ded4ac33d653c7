"""The state: bound for a call, else read from the configuration in reach; its indexes; the span of who has no other."""

from __future__ import annotations

import logging
import subprocess
import sys
from contextlib import suppress
from contextvars import copy_context

import pytest

from ot_pack import standalone
from ot_pack.state import Entry, State, bound, current, log_span
from tests.unit.ot_pack.harness import FOO, GITHUB_SEARCH, WEB_SEARCH, state


def test_the_innermost_bound_state_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    reach, one, other = state(cwd="/reach"), state(cwd="/one"), state(cwd="/other")
    monkeypatch.setattr(standalone, "state", lambda: reach)
    assert current() is reach
    with bound(one) as given:
        assert given is one
        with suppress(ZeroDivisionError), bound(other):
            assert current() is other
            raise ZeroDivisionError
        assert current() is one
    assert current() is reach


def test_other_tasks_do_not_see_what_one_has_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    reach = state(cwd="/reach")
    monkeypatch.setattr(standalone, "state", lambda: reach)
    other_task = copy_context()
    with bound(state()):
        assert other_task.run(current) is reach
        assert copy_context().run(current) is not reach, "a task started within inherits it"


def test_the_reload_of_who_has_no_other_is_that_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    reloads = []
    monkeypatch.setattr(standalone, "reload", lambda: reloads.append("reload"))
    state().reload()
    assert reloads == ["reload"]


def test_a_name_has_a_pack_and_a_tool() -> None:
    dotted = Entry(name="github.search.code", signature="", description="", source="proxy:github")
    assert (dotted.pack, dotted.tool) == ("github", "search.code")
    assert (WEB_SEARCH.pack, WEB_SEARCH.tool) == ("brave", "web_search")


def test_indexes() -> None:
    another = WEB_SEARCH._replace(name="brave.image_search")
    full = state(entries=(WEB_SEARCH, FOO, another), packs={"slack": "proxy", "demo": "local"})
    assert full.by_name == {"brave.web_search": WEB_SEARCH, "demo.foo": FOO, "brave.image_search": another}
    assert list(full.by_pack) == ["brave", "demo", "slack"]
    assert full.by_pack == {"brave": (WEB_SEARCH, another), "demo": (FOO,), "slack": ()}
    assert full.by_pack is full.by_pack, "made once"
    assert full._replace(entries=(GITHUB_SEARCH,)).by_name == {"github.search": GITHUB_SEARCH}


def test_a_state_has_nothing_unless_it_is_given() -> None:
    bare = State(version="1", cwd="/")
    assert (bare.entries, bare.topics, bare.topics_folder) == ((), (), None)
    for part in (bare.servers, bare.aliases, bare.snippets, bare.instructions, bare.problems, bare.packs):
        assert part == {}
        with pytest.raises(TypeError):
            part["x"] = "shared by all"  # type: ignore[index]  # that it cannot be changed is what is tested


def test_the_span_of_who_has_no_other_is_a_debug_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "ot_pack")
    with log_span("ot.tools"):
        pass
    with pytest.raises(ZeroDivisionError), log_span("ot.health"):
        raise ZeroDivisionError
    assert [(record.name, record.levelname, record.message) for record in caplog.records] == [
        ("ot_pack", "DEBUG", "ot.tools ended"),
        ("ot_pack", "DEBUG", "ot.health failed"),
    ]
    assert [vars(record)["span"] for record in caplog.records] == ["ot.tools", "ot.health"]


def test_the_import_needs_the_standard_library_alone() -> None:
    """Issue 5: `import ot_pack` under 60 ms; what takes long is imported where it is used."""
    shown = "import sys; before = set(sys.modules); import ot_pack; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True, timeout=60)
    roots = {name.partition(".")[0] for name in done.stdout.split()}
    assert "ot_pack" in roots
    assert roots <= {"ot_pack", *sys.stdlib_module_names}
    assert not roots & {"dataclasses", "inspect", "logging", "pathlib", "datetime"}
