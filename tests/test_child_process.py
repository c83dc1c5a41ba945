"""A program that hangs is ended with what it started, and its stack is shown."""

from __future__ import annotations

import sys

import pytest
from child_process import run_to_end

HANGS = """
import subprocess, threading
subprocess.Popen(["sleep", "100"])  # with the same outputs, which would stay open
def stands_here():
    threading.Event().wait()
stands_here()
"""


def test_one_that_hangs_shows_where_and_leaves_nothing() -> None:
    with pytest.raises(AssertionError, match=r"did not end(?s:.*)stands_here"):
        run_to_end([sys.executable, "-c", HANGS], seconds=5.0)


def test_a_failure_shows_what_was_written() -> None:
    with pytest.raises(AssertionError, match=r"ended with 3(?s:.*)told"):
        run_to_end([sys.executable, "-c", "import sys; print('told'); sys.exit(3)"], check=True)
    done = run_to_end([sys.executable, "-c", "print(input())"], input="said", check=True)
    assert (done.stdout, done.stderr) == ("said\n", "")
