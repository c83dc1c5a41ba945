"""A program that hangs is ended with what it started, and its stack is shown."""

from __future__ import annotations

import subprocess
import sys

import pytest
from child_process import run_to_end

HANGS = """
import subprocess, threading
words = "trap '' ABRT; echo ready >&2; sleep 100"  # with the same outputs, which would stay open
subprocess.Popen(["sh", "-c", words])
def stands_here():
    threading.Event().wait()
stands_here()
"""


def test_one_that_hangs_shows_where_and_leaves_nothing() -> None:
    with pytest.raises(AssertionError, match=r"did not end(?s:.*)ready(?s:.*)stands_here"):
        run_to_end([sys.executable, "-c", HANGS], seconds=5.0)


def test_a_failure_shows_what_was_written() -> None:
    with pytest.raises(AssertionError, match=r"ended with 3(?s:.*)told"):
        run_to_end([sys.executable, "-c", "import sys; print('told'); sys.exit(3)"], check=True)
    done = run_to_end([sys.executable, "-c", "print(input())"], input="said", check=True)
    assert (done.stdout, done.stderr) == ("said\n", "")


def test_an_interrupt_ends_the_run_and_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not taken for a failure of the one test."""
    started: list[subprocess.Popen[str]] = []
    communicate = subprocess.Popen.communicate

    def interrupted(process: subprocess.Popen[str], *args: str, **options: float) -> object:
        started.append(process)
        if len(started) == 1:
            raise KeyboardInterrupt
        return communicate(process, *args, **options)

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_to_end(["sleep", "100"])
    assert started[0].returncode is not None
