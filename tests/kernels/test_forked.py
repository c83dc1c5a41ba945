"""Work that forked processes begin while more of it is found; their failures cost nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from quire.kernels.triton.compile.forked_workers import ForkedWorkers


def leave(folder: str, number: int) -> None:
    """Write down which process did this work."""
    time.sleep(0.02)
    os.symlink(str(os.getpid()), Path(folder, str(number)))  # there and whole at once


def makers(folder: Path) -> dict[int, int]:
    return {int(path.name): int(path.readlink().name) for path in folder.iterdir()}


def test_processes_share_the_work(tmp_path: Path) -> None:
    workers = ForkedWorkers(3, leave)
    for number in range(12):
        workers.put(str(tmp_path), number)
    workers.finish()
    found = makers(tmp_path)
    assert sorted(found) == list(range(12))
    assert os.getpid() not in found.values()
    assert 2 <= len(set(found.values())) <= 3
    for process in set(found.values()):
        with pytest.raises(ChildProcessError):  # none is left behind
            os.waitpid(process, os.WNOHANG)


def test_they_begin_before_all_is_there(tmp_path: Path) -> None:
    workers = ForkedWorkers(2, leave)
    workers.put(str(tmp_path), 0)
    deadline = time.monotonic() + 10.0
    while not makers(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert makers(tmp_path)
    workers.put(str(tmp_path), 1)
    workers.finish()
    assert sorted(makers(tmp_path)) == [0, 1]


def test_a_failure_stops_no_other_work(tmp_path: Path) -> None:
    workers = ForkedWorkers(1, leave)
    workers.put(str(tmp_path / "none"), 0)
    workers.put(str(tmp_path), 1)
    workers.finish()
    assert list(makers(tmp_path)) == [1]


def test_nobody_waits_for_dead_ones() -> None:
    workers = ForkedWorkers(2, os._exit)
    for _ in range(50):
        workers.put(1)
    workers.finish()


def test_without_work_there_is_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    ForkedWorkers(2, leave).finish()
