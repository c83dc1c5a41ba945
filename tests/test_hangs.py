"""A test that hangs fails, also where pytest-timeout cannot end it, and shows where."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from child_process import run_to_end

IN_C = """
import ctypes
def test():
    lock, mutex = ctypes.PyDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64)
    for _ in range(2):
        lock(mutex)
"""
AFTER_AN_ERROR = """
import pytest, threading
@pytest.fixture
def ends_late():
    yield
    threading.Event().wait()
def test(ends_late):
    raise ValueError
"""


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (IN_C, "line 6 in test$"),
        (AFTER_AN_ERROR, "line 6 in ends_late$"),
    ],
    ids=["in C", "after an error"],
)
def test_one_that_hangs_fails_and_shows_where(content: str, shown: str, tmp_path: Path) -> None:
    done = outcome(content, tmp_path)
    assert done.returncode == 1
    assert re.search(shown, done.stdout + done.stderr, re.M), done


def test_a_slow_machine_gets_the_time_that_the_command_line_gives(tmp_path: Path) -> None:
    done = outcome("import time\ndef test():\n    time.sleep(3.0)\n", tmp_path, "--timeout=60")
    assert done.returncode == 0, done


def outcome(content: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """That of a file of tests, each of which may take two seconds."""
    (folder / "test_hanging.py").write_text(content)
    usual = ["-n0", "-p", "conftest", "-p", "no:cacheprovider", "-o", "timeout=2"]
    settings = Path(__file__).parents[1] / "pyproject.toml"
    return run_to_end(
        [sys.executable, "-m", "pytest", "-c", settings, *usual, *options, folder],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        cwd=folder,
    )
