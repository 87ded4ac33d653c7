"""The user namespace of confined agents where the daemon is root: in it an agent is nobody's root.

bubblewrap maps whoever started it, so of a daemon that is root it would make an agent that is root where files are
concerned. Here agents are the user `AGENT_UID` of the host instead, 1000 inside. Root is mapped too, so that what sets
the sandbox up may pass through folders of root's alone to what is shown in it; it gives up all that before the agent
starts (`--cap-drop ALL`, and bubblewrap sets no_new_privs). Nobody in it can make user namespaces of their own, as
`--disable-userns` has it, which bubblewrap does not do for a namespace that was given to it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from typing import Final

from oubliette.runtimes.folders import AGENT_UID

UID_INSIDE: Final = 1000
# Of util-linux.
TOOLS: Final = ("setpriv", "unshare", "nsenter")
# How long the tools of util-linux may take, in seconds. Each takes 2 ms.
_PATIENCE: Final = 10.0
_MAP: Final = f"0 0 1\n{UID_INSIDE} {AGENT_UID} 1\n"


def as_agent() -> tuple[str, ...]:
    """Returns what is put before a command that root runs as `AGENT_UID`."""
    identity = (f"--reuid={AGENT_UID}", f"--regid={AGENT_UID}", "--clear-groups")
    return (shutil.which("setpriv") or "setpriv", *identity, "--")


@cache
def agents_namespace() -> int:
    """Returns a descriptor of a user namespace that `AGENT_UID` owns, the same one as long as this process lives.

    The first time it blocks for some ms. Raises `OSError`.
    """
    # The first answer of `cat` tells that it is in its namespace; it keeps that until its input ends.
    with subprocess.Popen(  # noqa: S603  # a constant command
        [*as_agent(), "unshare", "--user", "--", "cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as keeper:
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        keeper.stdin.write(b"\n")
        keeper.stdin.flush()
        if not keeper.stdout.readline():
            raise OSError("util-linux's setpriv and unshare cannot make a user namespace")
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{keeper.pid}/{name}", "w") as file:
                file.write(_MAP)
        namespace = os.open(f"/proc/{keeper.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _allow_no_more(namespace)
    except BaseException:
        os.close(namespace)
        raise
    return namespace


def _allow_no_more(namespace: int) -> None:
    try:
        subprocess.run(  # noqa: S603  # a constant command
            ["nsenter", f"--user=/proc/self/fd/{namespace}", "--", "tee", "/proc/sys/user/max_user_namespaces"],  # noqa: S607  # of the daemon's PATH
            input=b"0\n",
            stdout=subprocess.DEVNULL,
            pass_fds=[namespace],
            timeout=_PATIENCE,
            check=True,
        )
    except subprocess.SubprocessError as error:
        raise OSError(f"util-linux's nsenter cannot enter a user namespace: {error}") from error
