"""The configuration in the words of `Settings`."""

from __future__ import annotations

import sys
from pathlib import Path

from oubliette import config
from oubliette.runtimes.configured import commands, settings_of

TEXT = """
runtime:
  {kind: podman, image: agent, network: host, model_hosts: ["a.test:443"], memory: 512m, cpus: 0.5, pids: 99,
   extra_args: [--ulimit, nofile=9], mounts: [/opt/agents]}
agents:
  default: own
  profiles:
    own: {type: command, command: [python3, /opt/agent.py, "{prompt}", "--say={prompt}"]}
    claude: {type: claude}
    external: {type: external}
"""


def load(root: Path, text: str) -> config.Config:
    (root / "oubliette.yaml").write_text(text)
    return config.load(root / "oubliette.yaml", environ={}, overrides={})


def test_every_key_reaches_the_runtimes(tmp_path: Path) -> None:
    settings = settings_of(load(tmp_path, TEXT), tmp_path, tmp_path / "bundle")
    assert (settings.image, settings.network, settings.model_hosts) == ("agent", "host", ("a.test:443",))
    assert (settings.memory, settings.cpus, settings.pids) == (512 * 2**20, 0.5, 99)
    assert settings.extra_args == ("--ulimit", "nofile=9")
    assert settings.mounts == ("/opt/agents",)
    assert (settings.data_dir, settings.bundle) == (tmp_path, tmp_path / "bundle")


def test_a_message_is_no_part_of_a_command(tmp_path: Path) -> None:
    loaded = load(tmp_path, TEXT)
    assert commands(loaded) == {"own": ("python3", "/opt/agent.py"), "claude": ("claude",)}
    assert settings_of(loaded, tmp_path, tmp_path).commands == (("python3", "/opt/agent.py"), ("claude",))


def test_the_defaults_are_those_of_settings(tmp_path: Path) -> None:
    settings = settings_of(load(tmp_path, "{}"), tmp_path, tmp_path)
    assert (settings.memory, settings.cpus, settings.pids, settings.network) == (2 * 2**30, 2, 256, "model")
    assert settings.commands == ((sys.executable, "-m", "oubliette.demo.agent"),)
