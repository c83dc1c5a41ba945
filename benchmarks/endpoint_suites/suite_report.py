"""A pytest plugin: one JSON line for each test in the file that SUITE_REPORT names."""

from __future__ import annotations

import json
import os

import pytest


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write the outcome of a test, or of a setup that failed."""
    if report.when != "call" and not (report.when == "setup" and report.outcome != "passed"):
        return
    crash = getattr(report.longrepr, "reprcrash", None)
    why = str(getattr(crash, "message", "") or "")
    row = {"test": report.nodeid, "outcome": report.outcome, "why": why[:400]}
    with open(os.environ["SUITE_REPORT"], "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
