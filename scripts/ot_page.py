"""Writes the outputs in docs/ot.md: each command of a block `console` is run, and what it prints put behind it.

    python -m scripts.ot_page

What differs from machine to machine is replaced, so that the page can be compared: see `VOLATILE`.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import tempfile
from pathlib import Path
from typing import Final

from click.testing import CliRunner

from ot_pack.__main__ import main

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "ot.md"
CONFIG: Final = "examples/ot.yaml"
VOLATILE: Final = {
    r'(?m)^version: ".*"$': 'version: "1.0.0"',
    r'(?m)^python: ".*"$': 'python: "3.11.x"',
    r"(?m)^cwd: .*$": "cwd: /current/working/directory",
    r'(?m)^ts: ".*"$': 'ts: "2026-01-02T03:04:05.678Z"',
}
_BLOCK: Final = re.compile(r"(?ms)^```console\n(.*?)^```$")


def renewed(page: str) -> str:
    """Returns a page with the outputs as they are now. Raises `ValueError` for a command that is none of ours."""
    with contextlib.chdir(ROOT):
        return _BLOCK.sub(lambda block: f"```console\n{_run_all(block[1])}```", page)


def _run_all(block: str) -> str:
    commands = [line for line in block.splitlines() if line.startswith("$ ")]
    with tempfile.TemporaryDirectory() as data_dir:
        environment = {"OUBLIETTE_CONFIG": CONFIG, "OUBLIETTE_DATA_DIR": data_dir}
        return "".join(f"{command}\n{_stable(_run(command, environment))}" for command in commands)


def _run(command: str, environment: dict[str, str]) -> str:
    match shlex.split(command):
        case ["$", "python", "-m", "ot_pack", *arguments]:
            return CliRunner().invoke(main, arguments, env=environment, catch_exceptions=False).output
        case ["$", "cat", path]:
            return Path(path.replace("$OUBLIETTE_DATA_DIR", environment["OUBLIETTE_DATA_DIR"])).read_text()
    raise ValueError(f"{PAGE}: {command} cannot be run")


def _stable(output: str) -> str:
    for pattern, example in VOLATILE.items():
        output = re.sub(pattern, example, output)
    return output


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
