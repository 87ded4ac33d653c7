"""What of this host bubblewrap shows, by rule, and what it never does."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import oubliette
from oubliette.runtimes.visible import ETC, Shown, Visible, search_path


class Host:
    """A home with programs in it, which PATH leads to, and a data directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "home"
        self.bin = self.home / "bin"
        self.data = self.home / "data"
        for folder in (self.bin, self.data):
            folder.mkdir(parents=True)

    def program(self, path: str, text: str = "#!/bin/sh\n") -> Path:
        file = self.home / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)
        return file

    def visible(self, *commands: tuple[str, ...], mounts: tuple[str, ...] = ()) -> Visible:
        return Visible(mounts, commands, self.data)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    host = Host(tmp_path.resolve())
    monkeypatch.setenv("HOME", str(host.home))
    monkeypatch.setenv("PATH", f"{host.bin}:/usr/bin:/bin")
    return host


def test_the_daemons_python_and_package_are_there_and_not_the_repository(host: Host) -> None:
    visible = host.visible()
    package = Path(oubliette.__file__).parent
    for path in (Path(sys.prefix), Path(sys.base_prefix), package):
        assert any(path.is_relative_to(shown) for shown in (*visible.paths, Path("/usr"))), path
    assert visible.program(sys.executable) == Shown(sys.executable)
    if not package.is_relative_to(sys.prefix):
        assert package.parent not in visible.paths


def test_a_program_of_the_system_needs_nothing(host: Host) -> None:
    shown = host.visible().program("cat")
    assert Path(shown.argument).name == "cat"
    assert shown.paths == ()


def test_a_lone_program_is_shown_alone(host: Host) -> None:
    file = host.program("bin/agent")
    assert host.visible().program("agent") == Shown(str(file), (file,))


def test_a_link_to_a_program_is_shown_as_a_program(host: Host) -> None:
    """Its mount shows what the link leads to."""
    host.program("versions/1.2/agent")
    link = host.bin / "agent"
    link.symlink_to("../versions/1.2/agent")
    assert host.visible().program("agent") == Shown(str(link), (link,))


def test_a_package_of_node_is_shown_with_the_whole_tree_and_node(host: Host) -> None:
    node = host.program("bin/node")
    script = host.program("lib/node_modules/@maker/agent/node_modules/deep/cli.js")
    (host.bin / "agent").symlink_to(script)
    shown = host.visible().program("agent")
    assert shown == Shown(str(script), (host.home / "lib/node_modules", node))


def test_a_program_of_a_virtual_environment_is_shown_with_it_and_its_base(host: Host) -> None:
    base = host.program("pythons/3.13/bin/python3.13").parent.parent
    (base / "lib/python3.13").mkdir(parents=True)
    (base / "lib/python3.13/os.py").write_text("")
    script = host.program("venv/bin/agent")
    (host.home / "venv/pyvenv.cfg").write_text(f"home = {base}/bin\nversion = 3.13.0\n")
    visible = host.visible()
    assert visible.program(str(script)) == Shown(str(script), (host.home / "venv", base))
    assert visible.program(f"{base}/bin/python3.13") == Shown(f"{base}/bin/python3.13", (base,))


def test_a_home_that_is_a_virtual_environment_is_not_shown(host: Host) -> None:
    host.program("bin/agent")
    (host.home / "pyvenv.cfg").write_text("home = /usr/bin\n")
    assert host.visible().program("agent").paths == ()


def test_what_a_command_names_is_there_in_every_sandbox(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    script = host.program("work/agent.py")
    monkeypatch.chdir(host.home)
    for argument in (str(script), "work/agent.py"):
        visible = host.visible(("python3", argument))
        assert script in visible.paths
        assert script.parent not in visible.paths


def test_what_is_mounted_needs_nothing_more(host: Host) -> None:
    script = host.program("tools/agent")
    visible = host.visible(mounts=(str(script.parent),))
    assert script.parent in visible.paths
    assert visible.program(str(script)) == Shown(str(script))


@pytest.mark.parametrize("name", ["no-such-program", "/nowhere/agent", "/etc/passwd"])
def test_a_program_that_cannot_be_seen_is_an_error_with_the_mend(host: Host, name: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"runtime\.mounts"):
        host.visible().program(name)


def test_what_is_not_executable_is_never_shown_as_a_program(host: Host) -> None:
    secret = host.program("secret")
    secret.chmod(0o600)
    with pytest.raises(FileNotFoundError):
        host.visible().program(str(secret))


@pytest.mark.parametrize("name", ["/workspace/agent", "/home/agent/bin/x", "./agent", "bin/agent"])
def test_a_program_in_the_agents_own_folders_is_looked_up_there(host: Host, name: str) -> None:
    assert host.visible().program(name) == Shown(name)


def test_a_mount_that_holds_the_data_directory_is_refused(host: Host) -> None:
    link = host.root / "link"
    link.symlink_to(host.home)
    for mount in (host.data, host.home, Path("/"), link):
        with pytest.raises(ValueError, match="no agent may see"):
            host.visible(mounts=(str(mount),))


def test_a_mount_that_is_not_there_is_refused(host: Host) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        host.visible(mounts=("/nowhere/at/all",))


def test_the_path_leads_to_what_is_shown(host: Host) -> None:
    node = host.program("bin/node")
    assert search_path((node, host.home)).split(os.pathsep)[0] == str(host.bin)
    assert search_path((host.home,)).startswith("/usr/local/sbin:")


def test_of_etc_nothing_is_shown_that_may_hold_a_secret() -> None:
    for secret in ("shadow", "gshadow", "ssl/private", "pki/tls/private", "ssh", "sudoers", "krb5.keytab"):
        assert not any(f"{secret}/".startswith(f"{name}/") for name in ETC), secret
