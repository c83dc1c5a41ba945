"""A pytest plugin: one JSON line for each test in SUITE_REPORT; a time limit; one tokenizer.

A test that fails has pytest's message, and the latest refusals that it got (`note`).
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import transformers

SECONDS = 60  # that a test may take, with the start of its server

_notes: list[str] = []  # of the test that runs


def note(text: str) -> None:
    """Add a sentence to the message of this test, if it fails."""
    _notes.append(text)


def pytest_configure() -> None:
    """Whatever tokenizer a test asks for, it gets the one of the suite's model."""
    original = transformers.AutoTokenizer.from_pretrained

    def from_pretrained(*_names: Any, **_options: Any) -> Any:
        return original(os.environ["SUITE_MODEL"])

    transformers.AutoTokenizer.from_pretrained = from_pretrained


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """End a test that waits for ever."""

    def too_long(*_: object) -> None:
        raise TimeoutError(f"{item.name} took more than {SECONDS} s")

    _notes.clear()
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(SECONDS)
    try:
        return (yield)
    finally:
        signal.alarm(0)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Write a file that cannot be imported: it tests vLLM's insides."""
    if report.failed:
        _write(report.nodeid, "error", str(report.longrepr).strip().splitlines()[-1])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write the outcome of a test, or of a setup that failed."""
    if report.when != "call" and not (report.when == "setup" and report.outcome != "passed"):
        return
    crash = getattr(report.longrepr, "reprcrash", None)
    why = getattr(crash, "message", None) or str(report.longrepr or "")
    _write(report.nodeid, report.outcome, " | ".join([why, *_notes[-2:]]))


def _write(test: str, outcome: str, why: str) -> None:
    row = {"test": test, "outcome": outcome, "why": " ".join(why.split())[:1000]}
    with open(os.environ["SUITE_REPORT"], "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
