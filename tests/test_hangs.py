"""A test that hangs or is slow fails, and shows where; its random numbers are its own."""

from __future__ import annotations

import gc
import os
import random
import re
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from child_process import run_to_end
from cpu_limit import cpu_limit

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


def test_work_beyond_its_processor_time_fails_by_that_and_errors_stay_what_they_are() -> None:
    with pytest.raises(AssertionError, match=r"^0\.\d\d s of processor time"), cpu_limit(0.0):
        pass
    with pytest.raises(ValueError, match="wrong"), cpu_limit(0.0):
        raise ValueError("wrong")
    with cpu_limit(60.0, time.process_time):
        assert not gc.isenabled()


def test_random_numbers_are_those_of_the_name(request: pytest.FixtureRequest) -> None:
    seed = zlib.crc32(request.node.nodeid.encode())
    assert random.random() == random.Random(seed).random()
    assert np.random.random() == np.random.RandomState(seed).random()
    assert torch.equal(torch.rand(2), torch.rand(2, generator=torch.Generator().manual_seed(seed)))


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
