"""The official conformance suite against a real daemon, with its authentication on.

A failure that `expected-failures.yaml` does not name fails the test, and so does a check that it names and that passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from tests.conformance import suite
from tests.conformance.proxy import TokenProxy
from tests.helpers.process import DaemonProcess

REVISIONS = ["2025-11-25", "2026-07-28"]
# Scenarios that no set scores, as they came after its revision or as the suite's own server fails them, and that
# concern what the daemon does: the end of sessions, headers, and schemas that must be listed as they are.
PASSED_UNSCORED = {
    "2025-11-25": ["server-session-lifecycle", "json-schema-2020-12"],
    "2026-07-28": ["http-header-validation", "json-schema-2020-12"],
}

pytestmark = pytest.mark.skipif(bool(suite.missing()), reason=suite.missing())


@pytest.fixture(scope="module")
def prepared() -> Iterator[DaemonProcess]:
    """A daemon that has what the suite expects to find."""
    root = {"PYTHONPATH": str(suite.FOLDER.parent.parent)}
    with DaemonProcess(module="tests.conformance.daemon", environ=root) as process:
        yield process
        errors = [line for line in process.log_text.splitlines() if '"level": "error"' in line]
        assert not errors, "nothing that the suite does may be an error of the daemon's own"


def test_every_set_of_requirements_is_run() -> None:
    assert suite.revisions() == REVISIONS


@pytest.mark.parametrize("revision", REVISIONS)
async def test_requirements(
    revision: str, prepared: DaemonProcess, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    async with trio.open_nursery() as nursery:
        port = await nursery.start(TokenProxy(prepared.port, prepared.admin_token).serve)
        found = await suite.run(revision, f"http://127.0.0.1:{port}/mcp", tmp_path)
        nursery.cancel_scope.cancel(reason="the suite has ended")
    record_property(suite.SUMMARY, found.summary)
    assert found.exit_code == 0, found.verdict
    assert [name for name in PASSED_UNSCORED[revision] if found.failures(name)] == []
