"""The state of the configuration alone, and reading it again (issue 5)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import ot_pack
from ot_pack import standalone
from ot_pack.document import ConfigError

PACK = 'pack = "demo"\n__all__ = ["foo"]\ndef foo(text):\n    """Foo a text."""\n'
CONFIG = """
packs: [demo.py]
aliases: {f: demo.foo}
snippets: {s: {description: A snippet, body: text}}
servers: {github: {command: npx, env: {TOKEN: "${NOT_SET_HERE}"}}}
topics: [{pattern: "*", file: notes.yaml}]
"""


@pytest.fixture(autouse=True)
def reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    for name in ("OUBLIETTE_CONFIG", "XDG_CONFIG_HOME", "OUBLIETTE_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    standalone.use(None)
    yield
    standalone.use(None)


def test_without_a_configuration_there_is_the_ot_pack(tmp_path: Path) -> None:
    state = standalone.state()
    assert list(state.by_pack) == ["ot"]
    assert {entry.tool for entry in state.entries} == set(ot_pack.__all__)
    assert {entry.source for entry in state.entries} == {"local"}
    assert (state.servers, state.aliases, state.snippets, state.topics) == ({}, {}, {}, ())
    assert (state.cwd, state.topics_folder) == (str(tmp_path), tmp_path / "home/.local/share/oubliette/topics")
    assert state.version.split(".")[0].isdigit()


def test_the_configuration_in_reach(tmp_path: Path) -> None:
    Path("demo.py").write_text(PACK)
    Path("oubliette.yaml").write_text(CONFIG + "server: {port: any}\nfuture: [key]\n")  # others' keys
    Path("prompts.yaml").write_text("packs: {demo: Be brief.}")
    state = standalone.state()
    assert state.by_name["demo.foo"].signature == "demo.foo(text)"
    assert state.servers == {"github": "disconnected"}
    assert state.packs == {"demo": "local", "github": "proxy"}
    assert (state.aliases, state.instructions) == ({"f": "demo.foo"}, {"demo": "Be brief."})
    assert (list(state.snippets), [topic.file for topic in state.topics]) == (["s"], ["notes.yaml"])
    assert ot_pack.tools(pack="demo") == (
        '- {name: demo.foo, signature: "demo.foo(text)", description: "Foo a text.", source: local}'
    )
    assert "proxy: {status: degraded, server_count: 1, servers: {github: disconnected}}" in ot_pack.health()


def test_where_it_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("asked.yaml", "variable.yaml", "home/.config/oubliette/oubliette.yaml"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(f"aliases: {{{Path(name).parts[0].removesuffix('.yaml')}: ot.tools}}")
    assert list(standalone.state().aliases) == ["home"]
    monkeypatch.setenv("OUBLIETTE_CONFIG", "variable.yaml")
    standalone.reload()
    assert list(standalone.state().aliases) == ["variable"]
    standalone.use(Path("asked.yaml"))
    assert list(standalone.state().aliases) == ["asked"]


def test_it_is_read_once(tmp_path: Path) -> None:
    Path("oubliette.yaml").write_text("aliases: {a: ot.tools}")
    first = standalone.state()
    Path("oubliette.yaml").unlink()
    assert standalone.state() is first


def test_a_reload_reads_all_of_it_again() -> None:
    Path("demo.py").write_text(PACK)
    Path("oubliette.yaml").write_text("packs: [demo.py]\n")
    assert ot_pack.aliases() == "{}"
    Path("demo.py").write_text(PACK.replace("foo", "bar"))
    Path("oubliette.yaml").write_text("packs: [demo.py]\naliases: {b: demo.bar}\n")
    Path("prompts.yaml").write_text("packs: {demo: New.}")
    assert ot_pack.aliases() == "{}"
    assert ot_pack.reload() == "OK: Configuration reloaded"
    assert ot_pack.aliases() == "{b: demo.bar}"
    assert standalone.state().by_name.keys() >= {"demo.bar"}
    assert standalone.state().instructions == {"demo": "New."}


def test_a_bad_configuration_leaves_the_old_one() -> None:
    Path("oubliette.yaml").write_text("aliases: {a: ot.tools}")
    old = standalone.state()
    Path("oubliette.yaml").write_text("aliases:\n  a: b\n  b: a\n")
    said = (
        "oubliette.yaml:2: aliases.a: is an alias of another alias (oubliette.yaml:3: aliases.b): it stands for a tool"
    )
    assert ot_pack.reload() == f"Error: {said}"
    with pytest.raises(ConfigError) as caught:
        standalone.reload()
    assert (str(caught.value), standalone.state()) == (said, old)


def test_a_broken_pack_is_told_by_health() -> None:
    Path("demo.py").write_text("import gone_away\n")
    Path("oubliette.yaml").write_text("packs: [demo.py]\n")
    assert "demo.py:1: raises ModuleNotFoundError: No module named 'gone_away'" in ot_pack.health()
    assert standalone.state().problems.keys() == {"demo.py"}


def test_the_topics_lie_below_the_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUBLIETTE_DATA_DIR", str(tmp_path / "data"))
    Path("oubliette.yaml").write_text('topics: [{pattern: "n*", file: notes.yaml}]')
    assert ot_pack.notify(topic="new", message="Hello") == "OK: new -> notes.yaml"
    assert "message: Hello" in (tmp_path / "data" / "topics" / "notes.yaml").read_text()
