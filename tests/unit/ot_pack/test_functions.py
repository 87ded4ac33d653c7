"""The functions: keywords only, text out, one state a call, errors as text or as `TypeError`."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

import ot_pack
from ot_pack import standalone
from ot_pack.document import ConfigError
from ot_pack.state import bound, current
from ot_pack.topics import Topic
from tests.unit.ot_pack.harness import FOO, shown, state

NOTIFY = {"topic": "a", "message": "b"}
CALLS = {name: NOTIFY if name == "notify" else {} for name in ot_pack.__all__}


def test_the_pack_is_its_functions() -> None:
    assert ot_pack.pack == "ot"
    assert ot_pack.__all__ == ["aliases", "config", "health", "notify", "packs", "reload", "snippets", "tools"]
    assert all(inspect.isfunction(getattr(ot_pack, name)) for name in ot_pack.__all__)


def test_a_submodule_does_not_take_the_name_of_a_function() -> None:
    """`ot_pack.config` is a function and a module: importing a module binds its name in the package."""
    code = (
        "import ot_pack; tools = ot_pack.tools()\n"
        "import ot_pack.config, ot_pack.snippets; from ot_pack.config import PackConfig\n"
        "from ot_pack import config, snippets\n"
        "assert config is ot_pack.config and PackConfig\n"
        "print(ot_pack.config()); print(ot_pack.snippets())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd="/", check=False
    )
    assert done.stderr == ""
    assert done.stdout == "{aliases: {}, snippets: {}, servers: []}\n[]\n"


@pytest.mark.parametrize("function", sorted(CALLS))
def test_arguments_are_keywords(function: str) -> None:
    with pytest.raises(TypeError, match="positional"):
        getattr(ot_pack, function)("x")
    with pytest.raises(TypeError, match="unexpected keyword argument 'nope'"):
        shown(function, state(reload=lambda: None), **CALLS[function], nope=1)
    assert all(
        parameter.kind is parameter.KEYWORD_ONLY
        for parameter in inspect.signature(getattr(ot_pack, function)).parameters.values()
    )


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        ("tools", {"name": 1}, "name must be str | None, not int"),
        ("tools", {"pattern": ["a"]}, "pattern must be str | None, not list"),
        ("tools", {"pack": b"a"}, "pack must be str | None, not bytes"),
        ("tools", {"compact": 1}, "compact must be bool, not int"),
        ("packs", {"name": True}, "name must be str | None, not bool"),
        ("aliases", {"pattern": 1.5}, "pattern must be str | None, not float"),
        ("snippets", {"name": {}}, "name must be str | None, not dict"),
        ("notify", {"topic": None, "message": "a"}, "topic must be str, not NoneType"),
        ("notify", {"topic": "a", "message": 1}, "message must be str, not int"),
    ],
)
def test_a_wrong_type_is_a_type_error(function: str, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        shown(function, state(), **arguments)


def test_notify_needs_both_arguments() -> None:
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'message'"):
        shown("notify", state(), topic="a")


def test_a_call_sees_one_state_from_beginning_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    states = [state(aliases={"a": "b.c"}), state(aliases={"x": "y.z"})]
    monkeypatch.setattr(standalone, "state", lambda: states.pop(0))
    assert ot_pack.aliases() == "{a: b.c}"
    assert len(states) == 1, "read once"


def test_an_exception_goes_through_the_span() -> None:
    seen = []

    @contextmanager
    def span(name: str) -> Iterator[None]:
        try:
            yield
        except ZeroDivisionError:
            seen.append(name)
            raise

    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        shown("reload", state(span=span, reload=fail))
    assert seen == ["ot.reload"]


def test_a_bad_configuration_is_an_error_and_the_old_one_stays() -> None:
    def refuse() -> None:
        raise ConfigError("/etc/oubliette.yaml:3: aliases.ws: names no tool \ud800")

    old = state(entries=(FOO,), reload=refuse)
    with bound(old):
        assert ot_pack.reload() == "Error: /etc/oubliette.yaml:3: aliases.ws: names no tool \ufffd"
        assert current() is old


def test_a_bad_configuration_in_reach_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise ConfigError("oubliette.yaml:1: is not YAML")

    monkeypatch.setattr(standalone, "state", refuse)
    assert ot_pack.tools() == "Error: oubliette.yaml:1: is not YAML"


def test_what_is_returned_can_be_encoded() -> None:
    surrogates = state(aliases={"a": "b.\ud800"}, entries=(FOO._replace(description="\udfff"),))
    for text in (
        shown("aliases", surrogates, name="a"),
        shown("tools", surrogates),
        shown("tools", surrogates, name="\ud800"),
    ):
        assert text.encode()
    assert shown("aliases", surrogates, name="a") == "a -> b.\ufffd"


def test_notify_writes_when_it_was_called(tmp_path: Path) -> None:
    told = state(topics=(Topic(pattern="*", file="all.yaml"),), topics_folder=tmp_path)
    assert shown("notify", told, topic="a b", message="c") == "OK: a b -> all.yaml"
    document = yaml.safe_load((tmp_path / "all.yaml").read_text())
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", document["ts"])
    assert shown("notify", state(), topic="a", message="c") == "SKIP: no matching topic"
