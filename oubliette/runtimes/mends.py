"""What a runtime may lack on a machine, in words, with the command that mends it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from oubliette.runtimes.base import Kind

_SYSCTL: Final = Path("/proc/sys")
# Which setting of the kernel keeps users from namespaces, the value that does so, and the one that does not.
_NAMESPACE_SETTINGS: Final = (
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ("user.max_user_namespaces", "0", "15000"),
)
_ERROR: Final = re.compile(r"error|cannot|denied|fail", re.IGNORECASE)
_RUNC: Final = re.compile(r"runc(?: version)? v?([0-9]+)\.([0-9]+)\.([0-9]+)")
_RUNC_FIXED: Final = ((1, 2, 8), (1, 3, 3))
_CONTAINERS_CONF: Final = "/etc/containers/containers.conf"


class Lack(Struct, frozen=True, kw_only=True):
    """Why a runtime does not work here, and what to do about it: a command where there is one."""

    why: str
    mend: str

    def __str__(self) -> str:
        return f"{self.why} ({self.mend})" if self.mend else self.why


INSTALL: Final[dict[Kind, Lack]] = {
    "bubblewrap": Lack(why="bwrap is not installed", mend="apt install bubblewrap"),
    "podman": Lack(why="podman is not installed", mend="apt install podman"),
    "docker": Lack(why="docker is not installed", mend="apt install docker.io"),
}
NO_IMAGE: Final = Lack(
    why="no image is configured", mend="set runtime.image; examples/Containerfile shows how one is made"
)
NO_TOOLS: Final = Lack(
    why="setpriv, unshare or nsenter is not installed, which a daemon that is root needs", mend="apt install util-linux"
)
NO_GROUP: Final = Lack(
    why="this user can make no control group",
    mend="run the daemon with one delegated: systemd-run --user --pty --property=Delegate=yes oubliette serve",
)


def of_bubblewrap(complaint: str) -> Lack:
    """Returns what is behind a failed start, as bubblewrap complains of it."""
    if "namespace" in complaint or "uid map" in complaint or "Operation not permitted" in complaint:
        for name, value in _settings_against():
            return Lack(
                why=f"this kernel lets users make no namespaces: {_reason(complaint)}", mend=f"sysctl -w {name}={value}"
            )
    return Lack(why=_reason(complaint), mend="")


def of_engine(kind: Kind, image: str, complaint: str) -> Lack:
    """Returns what is behind a failed start, as an engine complains of it."""
    said = complaint.lower()
    for signs, mend in (
        (("no such image", "image not known", "unable to find image"), f"{kind} pull {image}, or build it"),
        (("cannot connect to the docker daemon",), "systemctl start docker"),
        (("permission denied while trying to connect",), 'usermod -aG docker "$USER", and log in again'),
        (("rlimit",), f"name limits that this machine allows in default_ulimits of {_CONTAINERS_CONF}"),
        (("cgroup",), f"choose another cgroup_manager or runtime in {_CONTAINERS_CONF}"),
        (("python3",), "put Python 3.11 or newer into the image, as python3"),
    ):
        if any(sign in said for sign in signs):
            return Lack(why=_reason(complaint), mend=mend)
    return Lack(why=_reason(complaint), mend="")


def of_runc(said: str) -> Lack | None:
    """Returns what is wrong with the version of runc that `said` names; nothing with another program.

    HAZARDS T38: CVE-2025-31133, CVE-2025-52565 and CVE-2025-52881 led out of containers.
    """
    match = _RUNC.search(said)
    if match is None:
        return None
    version = tuple(map(int, match.groups()))
    if version >= next((fixed for fixed in _RUNC_FIXED if fixed[:2] == version[:2]), _RUNC_FIXED[0]):
        return None
    why = f"runc {'.'.join(match.groups())} is older than 1.2.8 and 1.3.3, which closed three ways out of a container"
    return Lack(why=why, mend="apt upgrade runc; Debian's security updates have the fixes under older numbers")


def shortcomings(said: str) -> tuple[str, ...]:
    """Returns the lines in which an engine that works says what it cannot do here."""
    return tuple(line.strip() for line in said.splitlines() if "not support" in line.lower())


def _settings_against() -> Iterator[tuple[str, str]]:
    for name, forbids, allows in _NAMESPACE_SETTINGS:
        with suppress(OSError):
            if (_SYSCTL / name.replace(".", "/")).read_text().strip() == forbids:
                yield name, allows


def _reason(complaint: str) -> str:
    """Returns the line that says why: the first that speaks of an error, else the last one."""
    lines = [line.strip() for line in complaint.splitlines() if line.strip()] or ["it failed without a word"]
    return next((line for line in lines if _ERROR.search(line)), lines[-1])
