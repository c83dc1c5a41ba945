"""Calls made by children first, side by side; what a child fails in is made up for."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

import pytest

from quire.kernels.triton.forked import ForkedExecutor


def leave(folder: Path, number: int) -> int:
    """As a compiler with a cache: works only if nobody has yet. Returns whose work it was."""
    path = folder / str(number)
    if not path.exists():
        time.sleep(0.02)
        path.write_text(str(os.getpid()))
    return int(path.read_text())


def test_children_share_the_work_and_this_process_reads_it(tmp_path: Path) -> None:
    with ForkedExecutor(3) as executor:
        futures = [executor.submit(leave, tmp_path, number) for number in range(12)]
        assert not list(tmp_path.iterdir())
        executor.run()
        executor.run()  # nothing is left to do
    workers = {future.result() for future in futures}
    assert os.getpid() not in workers
    assert 2 <= len(workers) <= 3
    with pytest.raises(ChildProcessError):  # none is left behind
        os.waitpid(-1, os.WNOHANG)


def test_a_child_that_dies_or_fails_costs_time_alone(tmp_path: Path) -> None:
    here = os.getpid()

    def dies() -> int:
        if os.getpid() != here:
            os._exit(1)
        return 5

    def fails() -> None:
        raise ValueError("it cannot be")

    with ForkedExecutor(2) as executor:
        futures = [executor.submit(call) for call in (dies, dies, dies, fails)]
        futures += [executor.submit(partial(leave, tmp_path, 7))]
        executor.run()
    assert [future.result() for future in futures[:3]] == [5, 5, 5]
    with pytest.raises(ValueError, match="cannot be"):
        futures[3].result()
    assert futures[4].result() == here


def test_a_single_call_is_worth_no_process(tmp_path: Path) -> None:
    with ForkedExecutor(2) as executor:
        future = executor.submit(leave, tmp_path, 0)
        executor.run()
    assert future.result() == os.getpid()


def test_quick_calls_are_not_worth_one_either(tmp_path: Path) -> None:
    with ForkedExecutor(2) as executor:
        calls = [executor.submit(leave, tmp_path, number) for number in range(4)]
        for call in calls[1:]:
            call.is_quick = True
        executor.run()
    assert {call.result() for call in calls} == {os.getpid()}


def test_a_child_does_more_with_what_it_made(tmp_path: Path) -> None:
    with ForkedExecutor(2) as executor:
        calls = [executor.submit(leave, tmp_path, number) for number in range(3)]
        for call in calls:
            call.follow_up = lambda worker: (tmp_path / f"by {worker}").touch()
        executor.run()
    assert {f"by {call.result()}" for call in calls} <= {path.name for path in tmp_path.iterdir()}
    assert not (tmp_path / f"by {os.getpid()}").exists()
