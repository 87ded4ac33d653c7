"""What the conformance suite found is said at the end of the test run, also when all is well."""

from __future__ import annotations

import pytest

from tests.conformance.suite import SUMMARIES


@pytest.fixture(scope="session", autouse=True)
def summaries(pytestconfig: pytest.Config) -> None:
    pytestconfig.stash[SUMMARIES] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if lines := config.stash.get(SUMMARIES, []):
        terminalreporter.section("conformance")
        for line in lines:
            terminalreporter.write_line(line)
