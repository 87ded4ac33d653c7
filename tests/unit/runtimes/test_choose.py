"""Which runtime is taken, what is said of the others, and of what is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from oubliette.errors import InternalError
from oubliette.runtimes import choose as choosing
from oubliette.runtimes import mends, trial
from oubliette.runtimes.base import Kind, Settings
from oubliette.runtimes.bubblewrap import BubblewrapRuntime
from oubliette.runtimes.choose import STRENGTH, choose
from oubliette.runtimes.mends import Lack
from oubliette.runtimes.process import ProcessRuntime
from oubliette.runtimes.trial import Examined, examine
from tests.helpers.runtimes import make_plain_settings

Works = Callable[..., None]


@pytest.fixture
def works(monkeypatch: pytest.MonkeyPatch) -> Works:
    """Says which kinds of runtime work on this machine."""

    def say(*kinds: Kind) -> None:
        async def examined(kind: Kind, settings: Settings) -> Examined:
            if kind in kinds:
                runtime = ProcessRuntime(settings)
                runtime.name = kind  # type: ignore[misc]  # another runtime's part
                return Examined(kind=kind, runtime=runtime)
            return Examined(kind=kind, lacks=Lack(why=f"no {kind}", mend=f"apt install {kind}"))

        monkeypatch.setattr(choosing, "examine", examined)

    return say


@pytest.mark.parametrize(
    ("kinds", "taken"),
    [
        (STRENGTH, "podman"),
        (("docker", "bubblewrap", "process"), "docker"),
        (("bubblewrap", "process"), "bubblewrap"),
        (("process",), "process"),
    ],
)
async def test_auto_takes_the_strongest_that_works(
    works: Works, tmp_path: Path, kinds: tuple[Kind, ...], taken: Kind, capsys: pytest.CaptureFixture[str]
) -> None:
    works(*kinds)
    choice = await choose("auto", make_plain_settings(tmp_path))
    assert choice.runtime.name == taken
    assert list(choice.runtimes) == list(kinds)


async def test_of_a_kind_that_is_named_there_is_no_way_around(works: Works, tmp_path: Path) -> None:
    works("podman", "bubblewrap", "process")
    choice = await choose("bubblewrap", make_plain_settings(tmp_path))
    assert list(choice.runtimes) == ["bubblewrap"]


async def test_a_kind_that_is_named_and_does_not_work_is_refused_with_the_mend(works: Works, tmp_path: Path) -> None:
    works("bubblewrap", "process")
    with pytest.raises(InternalError, match=r"runtime.kind: podman .*no podman \(apt install podman\)"):
        await choose("podman", make_plain_settings(tmp_path))


@pytest.mark.parametrize("kind", ["bubblewrap", "podman", "docker"])
async def test_what_is_not_installed_can_be(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = await examine(kind, make_plain_settings(tmp_path, image="agent"))
    assert found.runtime is None
    assert found.lacks is not None
    assert found.lacks.mend.startswith("apt install ")


async def test_root_needs_util_linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name: None if name == "nsenter" else f"/usr/bin/{name}")
    assert (await examine("bubblewrap", make_plain_settings(tmp_path))).lacks == mends.NO_TOOLS


async def test_an_engine_is_not_tried_without_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    found = await examine("podman", make_plain_settings(tmp_path))
    assert found.lacks == mends.NO_IMAGE


async def test_a_mount_that_cannot_be_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    found = await examine("bubblewrap", make_plain_settings(tmp_path, mounts=("/nowhere",)))
    assert "runtime.mounts: /nowhere does not exist" in str(found.lacks)


async def test_an_engine_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docker").write_text("#!/bin/sh\n[ $1 = run ] || exit 0\nexec /usr/bin/sleep 1000\n")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(trial, "TRIAL", 0.2)
    found = await examine("docker", make_plain_settings(tmp_path, image="agent"))
    assert "within 0.2 s" in str(found.lacks)


async def test_every_kind_is_cleaned_up_after(works: Works, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kind that is configured may be another one than before the crash."""
    cleaned: list[str] = []

    async def clean(runtime: ProcessRuntime) -> None:
        cleaned.append(runtime.name)

    async def remove_left(kind: str, data_dir: Path) -> None:
        cleaned.append(kind)

    async def remove_left_groups(data_dir: Path) -> None:
        cleaned.append("groups")

    for name in ("remove_left", "remove_left_groups"):
        monkeypatch.setattr(choosing, name, locals()[name])
    monkeypatch.setattr(ProcessRuntime, "clean", clean)
    works("bubblewrap")
    settings = make_plain_settings(tmp_path)
    await choosing.clean(await choose("auto", settings), settings)
    assert sorted(cleaned) == ["bubblewrap", "docker", "podman", "process"]
    works("process")
    cleaned.clear()
    await choosing.clean(await choose("auto", settings), settings)
    assert sorted(cleaned) == ["docker", "groups", "podman", "process"]


async def test_an_old_bubblewrap_does_without_the_fence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[bool] = []

    async def try_out(runtime: BubblewrapRuntime) -> tuple[int, str]:
        tried.append(runtime.fence)
        return (1, "bwrap: Unknown option --disable-userns") if runtime.fence else (0, "")

    monkeypatch.setattr(trial, "_try_out", try_out)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    found = await examine("bubblewrap", make_plain_settings(tmp_path))
    assert tried == [True, False]
    assert isinstance(found.runtime, BubblewrapRuntime)
    assert not found.runtime.fence


# What is behind a complaint


@pytest.mark.parametrize(
    ("name", "value", "mend"),
    [
        ("kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        ("user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=15000"),
        ("user/max_user_namespaces", "15000", ""),
    ],
)
def test_a_kernel_that_forbids_namespaces_can_be_told(
    name: str, value: str, mend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text(f"{value}\n")
    monkeypatch.setattr(mends, "_SYSCTL", tmp_path)
    complaint = "bwrap: No permissions to create new namespace, likely because the kernel does not allow it"
    assert mends.of_bubblewrap(complaint).mend == mend
    assert complaint in mends.of_bubblewrap(complaint).why


@pytest.mark.parametrize(
    ("complaint", "mend"),
    [
        ("Error: localhost/agent:1: image not known", "podman pull localhost/agent:1, or build it"),
        (
            "Unable to find image 'x' locally\ndocker: Error: No such image: x",
            "podman pull localhost/agent:1, or build it",
        ),
        (
            "docker: Cannot connect to the Docker daemon at unix:///x.\nRun 'docker run --help'",
            "systemctl start docker",
        ),
        ("docker: permission denied while trying to connect to the Docker daemon socket", "usermod -aG docker"),
        ("Error: runc: error setting rlimits for ready process: error setting rlimit type 7", "default_ulimits"),
        ("Error: OCI runtime error: crun: creating cgroup directory: No such file", "cgroup_manager"),
        ('Error: exec: "python3": executable file not found in $PATH', "Python 3.11"),
        ("", ""),
    ],
)
def test_what_an_engine_complains_of_has_a_mend(complaint: str, mend: str) -> None:
    assert mend in mends.of_engine("podman", "localhost/agent:1", complaint).mend


def test_the_reason_is_the_line_that_says_it() -> None:
    said = "time=now level=warning msg=odd\nError: it went wrong\nRun 'podman --help' for more"
    assert mends.of_engine("podman", "agent", said).why == "Error: it went wrong"


def test_what_an_engine_cannot_do_here_is_a_warning() -> None:
    said = "Resource limits are not supported and ignored on cgroups V1 rootless systems\nsomething else"
    assert mends.shortcomings(said) == ("Resource limits are not supported and ignored on cgroups V1 rootless systems",)


@pytest.mark.parametrize(
    ("said", "is_old"),
    [
        ("runc version 1.1.5+ds1\ncommit: 1.1.5+ds1-1+deb12u1", True),
        ("Engine 28.2.2\ncontainerd v1.7.27\nrunc 1.2.7\n", True),
        ("runc version 1.2.8", False),
        ("runc version 1.3.2", True),
        ("runc version 1.3.3", False),
        ("runc version 1.4.0", False),
        ("crun version 1.8.1", False),
        ("", False),
    ],
)
def test_a_runc_with_known_ways_out_is_told_of(said: str, is_old: bool) -> None:
    """HAZARDS T38."""
    assert (mends.of_runc(said) is not None) is is_old
