"""A child process that is killed, and what becomes of it when nobody waits for its answer."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quire import framed_child
from quire.background import CallerGoneError, CancelFlag, poll_intervals, working_for
from quire.errors import OverloadedError
from quire.killable_process import KillableProcess

# Makes the file "go.loading" when it has read what it begins with, the name of the file "go"; it
# starts when that file is there. Answers with its process id, "sleep" and "work" never.
PROGRAM = """
import os, sys, time
from quire.framed_child import serve_frames

def begin(first):
    first = first.rstrip()
    open(first + b".loading", "w").close()
    while not os.path.exists(first):
        time.sleep(0.005)
    def answer(frame):
        if frame == b"sleep":
            time.sleep(100)
        while frame == b"work":
            pass
        return str(os.getpid()).encode()
    return answer

serve_frames(begin, 1 << 30)
"""


@pytest.fixture
def go(tmp_path: Path) -> Path:
    """The file without which no child starts."""
    return tmp_path / "go"


@pytest.fixture(params=[0, 1 << 20], ids=["short", "long"])
def process(go: Path, request: pytest.FixtureRequest) -> Iterator[KillableProcess]:
    """What its program begins with is short, or longer than a pipe."""
    first = str(go).encode() + b" " * request.param
    made = KillableProcess(["-c", PROGRAM], "test", lambda: first, "not now")
    yield made
    made.close()


def ask_in_vain(process: KillableProcess, frame: bytes, is_time: Callable[[], bool]) -> None:
    """Ask for a caller that leaves when it is time."""
    cancel_flag, gone = CancelFlag(), threading.Event()

    def ask() -> None:
        with working_for(cancel_flag), pytest.raises(CallerGoneError):
            process.ask(frame, math.inf, 60.0)
        gone.set()

    thread = threading.Thread(target=ask)
    thread.start()
    while not is_time():
        time.sleep(0.005)
    cancel_flag.is_set = True
    assert gone.wait(5.0)
    thread.join()


def test_a_caller_that_leaves_while_the_child_starts_leaves_it_starting(
    process: KillableProcess, go: Path
) -> None:
    ask_in_vain(process, b"a", lambda: process.pid is not None)
    ask_in_vain(process, b"a", lambda: True)
    starting = process.pid
    go.touch()
    assert process.ask(b"b", 1.0, 60.0) == str(starting).encode()


@pytest.mark.parametrize("frame", [b"sleep", b"work"])
def test_a_caller_that_leaves_frees_the_child_for_the_next(
    process: KillableProcess, go: Path, frame: bytes
) -> None:
    go.touch()
    first = process.ask(b"a", 1.0, 60.0)
    ask_in_vain(process, frame, lambda: True)
    assert process.ask(b"b", 1.0, 60.0) != first


def wait_until(is_true: Callable[[], bool]) -> None:
    """Wait for at most 30 s."""
    end = time.monotonic() + 30.0
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_child_begins_although_the_caller_has_gone(process: KillableProcess, go: Path) -> None:
    loading = go.with_name("go.loading")
    go.touch()
    process.ask(b"a", 1.0, 60.0)
    loading.unlink()
    ask_in_vain(process, b"sleep", lambda: True)
    wait_until(loading.exists)


def test_each_question_gives_the_child_time_to_start(
    process: KillableProcess, go: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go.touch()
    process.ask(b"a", 1.0, 60.0)
    with monkeypatch.context() as patch:
        patch.setattr(framed_child, "START_SECONDS", 0.01)
        ask_in_vain(process, b"sleep", lambda: True)
    starting = process.pid
    time.sleep(0.02)
    assert process.ask(b"b", 1.0, 60.0) == str(starting).encode()


def test_without_a_caller_the_bounds_hold(process: KillableProcess, go: Path) -> None:
    go.touch()
    with pytest.raises(TimeoutError):
        process.ask(b"work", 0.05, 60.0)
    with pytest.raises(OverloadedError, match="not now"):
        process.ask(b"sleep", 0.05, 0.1)


def test_time_in_which_all_were_stopped_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    pieces = []
    for seconds in poll_intervals(60.0):
        pieces.append(seconds)
        now[0] += 3600.0 if len(pieces) == 5 else seconds + 1e-6
    assert 500 < len(pieces) < 600


def test_a_child_that_is_killed_says_nothing_about_the_question(
    process: KillableProcess, go: Path
) -> None:
    go.touch()
    process.ask(b"a", 1.0, 60.0)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(OverloadedError, match="not now"):
        process.ask(b"b", 1.0, 60.0)
    assert process.ask(b"c", 1.0, 60.0)
