"""From the configuration to agents and runtimes."""

from __future__ import annotations

from pathlib import Path

import pytest

from oubliette.agents.acp import AcpAgent
from oubliette.agents.command import CommandAgent
from oubliette.agents.known import AGENTS
from oubliette.agents.profile import CliAgent
from oubliette.config import (
    AcpProfile,
    AgentsConfig,
    ClaudeProfile,
    CodexProfile,
    CommandProfile,
    Config,
    ExternalProfile,
    OpencodeProfile,
    Profile,
    RuntimeConfig,
)
from oubliette.errors import InternalError
from oubliette.hiring import hire
from oubliette.homes import Homes
from oubliette.workplace import Workforce

PROFILES: dict[str, Profile] = {
    "external": ExternalProfile(),
    "command": CommandProfile(command=("true",)),
    "claude": ClaudeProfile(),
    "codex": CodexProfile(base_url="http://127.0.0.1:1/v1"),
    "opencode": OpencodeProfile(),
    "acp": AcpProfile(command=("opencode", "acp")),
}


async def hired(folder: Path, runtime: RuntimeConfig) -> Workforce:
    config = Config(runtime=runtime, agents=AgentsConfig(profiles=PROFILES))
    workforce, clean_up = await hire(config, folder, Homes(folder))
    await clean_up()
    return workforce


async def test_every_profile_has_its_agent(tmp_path: Path) -> None:
    workforce = await hired(tmp_path, RuntimeConfig(kind="process"))
    kinds = {name: type(agent) for name, agent in workforce.agents.items()}
    assert kinds == {
        "external": type(None),
        "command": CommandAgent,
        "claude": CliAgent,
        "codex": CliAgent,
        "opencode": CliAgent,
        "acp": AcpAgent,
    }
    assert AGENTS.keys() | {"external", "command"} == kinds.keys(), "a profile that nobody can configure"


async def test_a_runtime_that_is_asked_for_is_the_only_one(tmp_path: Path) -> None:
    workforce = await hired(tmp_path, RuntimeConfig(kind="process"))
    assert (list(workforce.runtimes), workforce.default_runtime) == (["process"], "process")
    assert not (tmp_path / "client").exists(), "no bundle is made that nobody needs"


async def test_of_those_that_work_the_strongest_is_the_default(tmp_path: Path) -> None:
    workforce = await hired(tmp_path, RuntimeConfig(kind="auto"))
    assert "process" in workforce.runtimes
    assert workforce.default_runtime == next(iter(workforce.runtimes))


async def test_a_runtime_that_does_not_work_here_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InternalError, match=r"runtime\.kind: bubblewrap does not work here: bwrap is not installed"):
        await hired(tmp_path, RuntimeConfig(kind="bubblewrap"))
