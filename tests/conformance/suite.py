"""The official conformance suite as a process, and what it found."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import trio
import yaml
from msgspec import Struct

FOLDER: Final = Path(__file__).parent
INSTALL: Final = "npm ci --prefix tests/conformance"
# Far more than a set takes, in seconds.
LIMIT: Final = 120
_BINARIES: Final = FOLDER / "node_modules" / ".bin"
_PACKAGE: Final = FOLDER / "node_modules" / "@modelcontextprotocol" / "conformance"
_EXPECTED_FAILURES: Final = FOLDER / "expected-failures.yaml"
# The suite names the folder of a scenario's checks `server-<scenario>-<time>`.
_CHECKS_FOLDER: Final = re.compile(r"server-(.+)-\d{4}-\d{2}-\d{2}T[\d-]+Z\Z")
# The suite counts a broken SHOULD, its WARNING, as a failure too when it compares with the expected ones.
_FAILED: Final = ("FAILURE", "WARNING")
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_UNEXPECTED: Final = re.compile(r"^  ✗ ([^:\n]+)", re.MULTILINE)
# What is said at the end of the test run.
SUMMARY: Final = "conformance"


def missing() -> str:
    """Says what of the suite is not installed, and how it comes; empty where all is there."""
    absent = [name for name in ("conformance", "node") if not (_BINARIES / name).exists()]
    return f"no {' and no '.join(absent)} in tests/conformance/node_modules; install them: {INSTALL}" if absent else ""


def revisions() -> list[str]:
    """Returns the dated revisions that the suite has requirements for."""
    return sorted(path.stem for path in (_PACKAGE / "requirements").glob("*.yaml"))


class Findings(Struct, frozen=True, kw_only=True):
    """What a run of the requirements of one revision found. `failed` has the checks that failed, in words, of each
    scenario that was run to its end.
    """

    revision: str
    exit_code: int
    output: str
    failed: Mapping[str, Sequence[str]]

    @property
    def required(self) -> list[str]:
        """The scenarios that the revision requires of a server; the others are not scored."""
        path = _PACKAGE / "requirements" / f"{self.revision}.yaml"
        return list(yaml.safe_load(path.read_text())["server"])

    @property
    def summary(self) -> str:
        """Says how many scenarios passed."""
        required = self.required
        unscored = [scenario for scenario in self.failed if scenario not in required]
        wanting = len(required) - self._passed(required)
        known = "as" if self.exit_code == 0 else "not as"
        return (
            f"MCP {self.revision}: {len(required) - wanting} of {len(required)} required scenarios passed, "
            f"{wanting} failed {known} expected-failures.yaml says; not scored: "
            f"{self._passed(unscored)} of {len(unscored)} passed"
        )

    @property
    def verdict(self) -> str:
        """The suite's own words on what was expected and what was not, and what failed where nothing was to fail."""
        _, _, verdict = self.output.partition("\nTotal: ")
        unexpected = [scenario for scenario in _UNEXPECTED.findall(verdict) if scenario in self.required]
        failed = [f"{scenario}: {check}" for scenario in unexpected for check in self.failures(scenario)]
        return "\n".join([verdict or self.output, "", *failed])

    def failures(self, scenario: str) -> Sequence[str]:
        """Returns what failed in a scenario."""
        return self.failed.get(scenario, ["it was not run to its end"])

    def _passed(self, scenarios: Sequence[str]) -> int:
        return sum(not self.failures(scenario) for scenario in scenarios)


async def run(revision: str, url: str, results: Path) -> Findings:
    """Runs the requirements of a revision against the server at `url`; the suite writes its results into `results`."""
    command: list[str | Path] = [_BINARIES / "node", _BINARIES / "conformance", "server", "--url", url]
    command += ["--requirements", revision, "--expected-failures", _EXPECTED_FAILURES, "--output-dir", results]
    with trio.fail_after(LIMIT):
        done = await trio.run_process(command, capture_stdout=True, stderr=subprocess.STDOUT, check=False)
    return Findings(
        revision=revision,
        exit_code=done.returncode,
        output=_COLOUR.sub("", done.stdout.decode()),
        failed=_failed_in(results),
    )


def _failed_in(results: Path) -> dict[str, list[str]]:
    return dict(_failures(folder) for folder in results.iterdir())


def _failures(folder: Path) -> tuple[str, list[str]]:
    match = _CHECKS_FOLDER.match(folder.name)
    assert match, folder
    checks: list[dict[str, Any]] = json.loads((folder / "checks.json").read_text())
    return match[1], [
        f"{check['id']}: {check.get('errorMessage', check['description'])}"
        for check in checks
        if check["status"] in _FAILED
    ]
