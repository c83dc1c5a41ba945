"""What caused a process's death: real processes that are ended in real ways."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from child_process import run_to_end

from quire.engine.processes import death_cause
from quire.engine.processes.death_cause import DeathCause, is_stopped, num_memory_kills


def status_of(code: str) -> int:
    return run_to_end([sys.executable, "-c", code]).returncode


@pytest.mark.parametrize(
    ("code", "is_outside"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", True),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", True),
        ("import os; os.abort()", False),
        ("import ctypes; ctypes.string_at(0)", False),
        ("raise RuntimeError('the device is lost')", False),
    ],
    ids=["SIGKILL", "SIGTERM", "abort", "segmentation fault", "exception"],
)
def test_a_fault_is_the_requests_and_a_kill_is_not(code: str, is_outside: bool) -> None:
    status = status_of(code)
    assert DeathCause().is_outside(status, had_work=True) is is_outside
    assert DeathCause().is_outside(status, had_work=False)


def test_a_kill_for_lack_of_memory_may_be_the_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(death_cause, "num_memory_kills", lambda: 7)
    cause = DeathCause()
    monkeypatch.setattr(death_cause, "num_memory_kills", lambda: 8)
    assert not cause.is_outside(-signal.SIGKILL, had_work=True)
    cause.watch()  # it may be the one that is about to end
    assert not cause.is_outside(-signal.SIGKILL, had_work=True)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + death_cause.SECONDS_TO_END + 1)
    cause.watch()  # it was another process, long before
    assert cause.is_outside(-signal.SIGKILL, had_work=True)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_that_was_stopped_has_not_hung_by_itself() -> None:
    assert num_memory_kills() >= 0
    with subprocess.Popen(["sleep", "60"]) as process:
        running, stopped = DeathCause(), DeathCause()
        running.hung(process.pid)
        os.kill(process.pid, signal.SIGSTOP)
        deadline = time.monotonic() + 5
        while not is_stopped(process.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        stopped.hung(process.pid)
        process.kill()
    assert not running.is_outside(-signal.SIGKILL, had_work=True)
    assert stopped.is_outside(-signal.SIGKILL, had_work=True)
