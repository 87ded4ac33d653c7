"""What the conformance suite found is said at the end of the test run, also when all is well."""

from __future__ import annotations

import pytest

from tests.conformance.suite import SUMMARY


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    # From the reports, which come from other processes where the tests are spread over several.
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    lines = [value for report in reports for name, value in report.user_properties if name == SUMMARY]
    if lines:
        terminalreporter.section("conformance")
        for line in lines:
            terminalreporter.write_line(str(line))
