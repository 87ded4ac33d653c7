"""Fixtures for all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.conformance.suite import SUMMARY
from tests.helpers.http import Api
from tests.helpers.process import DaemonProcess

# Short graces, so that no test waits long for what it is about; everything else is the default.
SHARED_CONFIG = """
relay: {attach_grace_seconds: 2, poll_grace_seconds: 1}
sessions: {max_active_per_project: 10000}
log: {level: debug}
"""


# Everywhere else each run looks for something new; a gate asks the same question of every change.
settings.register_profile("gate", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("gate")


@pytest.fixture(scope="session")
def daemon() -> Iterator[DaemonProcess]:
    """One real daemon for every test that leaves it as it was."""
    with DaemonProcess(SHARED_CONFIG) as process:
        yield process
        assert process.process.poll() is None, "a test ended the shared daemon"
        errors = [line for line in process.log_text.splitlines() if '"level": "error"' in line]
        assert not errors, "nothing that a test did may be an error of the daemon's own"


@pytest.fixture
def api(daemon: DaemonProcess) -> Api:
    """The shared daemon, as its admin."""
    return Api(daemon.port, daemon.admin_token)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the conformance suite found is said also when all is well; the reports come from several processes."""
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    lines = [value for report in reports for name, value in report.user_properties if name == SUMMARY]
    if lines:
        terminalreporter.section("conformance")
        for line in lines:
            terminalreporter.write_line(str(line))
