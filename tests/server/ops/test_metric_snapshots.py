"""Folding what dead processes have left changes no sum, wherever it is interrupted."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from fake_engine import FakeEngine

from quire.core.messages import EngineStats
from quire.core.sampling_params import SamplingParams
from quire.server.app import build_app
from quire.server.http.request_record import RequestRecord
from quire.server.ops.metric_snapshots import COUNTERS, FOLDED, SUFFIX, Snapshot, SnapshotFolder
from quire.server.ops.server_metrics import EngineTotal, Metrics
from quire.server.settings import ServerSettings


@pytest.fixture(scope="module")
def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def leave(folder: Path, name: str, *, requests: int = 1, epoch: int = 0) -> None:
    """What a process has left: so many requests, and an engine's figures."""
    engine = FakeEngine()
    metrics = Metrics(folder)
    metrics._folder._name = name  # type: ignore[union-attr]
    metrics.add_engine(engine)
    for _ in range(requests):
        (times,) = engine.metrics.record_request(0.0, 5, SamplingParams())
        engine.metrics.finish(times, "stop", 1.0)
        metrics.count(RequestRecord("POST", "/x", "id"))
    engine.stats = EngineStats(epoch=epoch, time=float(requests), num_steps=10 * requests)
    metrics.share()


def sums(folder: Path) -> tuple[float, ...]:
    """All counters, as read by one process."""
    total = Metrics(folder).total()
    engine = EngineTotal(total.engines["fake"])
    return (
        engine.requests.num_sent,
        engine.requests.finished["stop"],
        engine.requests.e2e_latency.count,
        engine.requests.e2e_latency.sum,
        engine.counted.num_steps,
        sum(total.http_requests.values()),
    )


def files(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob(f"*{SUFFIX}")}


def test_the_dead_are_folded_and_the_living_are_not(tmp_path: Path, dead_pid: int) -> None:
    for number in range(20):
        leave(tmp_path, f"{dead_pid}-{number}", requests=number + 1, epoch=number % 2)
    alive = f"{os.getpid()}-sister"
    leave(tmp_path, alive)
    (tmp_path / f"{dead_pid}-torn.draft").write_bytes(b"half")
    before = sums(tmp_path)
    assert before[:2] == (211, 211)
    for _ in range(2):  # a second time changes nothing
        SnapshotFolder(tmp_path).fold_dead()
        assert files(tmp_path) == {FOLDED, alive}
        assert sums(tmp_path) == before
    leave(tmp_path, f"{dead_pid}-late", requests=3)
    before = sums(tmp_path)
    SnapshotFolder(tmp_path).fold_dead()
    assert files(tmp_path) == {FOLDED, alive}
    assert sums(tmp_path) == before
    assert not list(tmp_path.glob("*.draft"))


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("num_calls", range(8))
def test_a_fold_may_be_interrupted_anywhere(
    tmp_path: Path, dead_pid: int, monkeypatch: pytest.MonkeyPatch, num_calls: int
) -> None:
    """After each change to the folder in turn; then another process folds."""
    leave(tmp_path, f"{dead_pid}-old", requests=2)
    SnapshotFolder(tmp_path).fold_dead()
    for number in range(4):
        leave(tmp_path, f"{dead_pid}-{number}", requests=number + 1)
    before, left = sums(tmp_path), num_calls
    changes = {name: getattr(Path, name) for name in ("replace", "unlink")}

    def until_killed(name: str) -> object:
        def change(*args: object, **options: object) -> object:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return changes[name](*args, **options)

        return change

    with monkeypatch.context() as patch:
        for name in changes:
            patch.setattr(Path, name, until_killed(name))
        try:
            SnapshotFolder(tmp_path).fold_dead()
        except Killed:
            assert num_calls < 5
        else:
            assert num_calls >= 5, "one replace and four unlinks"
    assert sums(tmp_path) == before
    leave(tmp_path, f"{dead_pid}-later")
    before = sums(tmp_path)
    SnapshotFolder(tmp_path).fold_dead()
    assert sums(tmp_path) == before
    assert files(tmp_path) == {FOLDED}


def test_who_reads_during_a_fold_reads_again(
    tmp_path: Path, dead_pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(tmp_path, f"{dead_pid}-a")
    leave(tmp_path, f"{dead_pid}-b")
    before, reads = sums(tmp_path), 0
    read = SnapshotFolder._read

    def read_and_fold(self: SnapshotFolder, name: str) -> Snapshot | None:
        nonlocal reads
        reads += 1
        found = read(self, name)
        if reads == 2:  # it has seen that nothing is folded, and one of the two files
            with monkeypatch.context() as patch:
                patch.setattr(SnapshotFolder, "_read", read)
                SnapshotFolder(tmp_path).fold_dead()
        return found

    monkeypatch.setattr(SnapshotFolder, "_read", read_and_fold)
    assert sums(tmp_path) == before
    assert files(tmp_path) == {FOLDED}


def test_what_cannot_be_read_is_neither_lost_nor_replaced(tmp_path: Path, dead_pid: int) -> None:
    leave(tmp_path, f"{dead_pid}-a")
    (tmp_path / (FOLDED + SUFFIX)).write_bytes(b"\x93")
    SnapshotFolder(tmp_path).fold_dead()
    assert files(tmp_path) == {FOLDED, f"{dead_pid}-a"}
    SnapshotFolder(tmp_path / "gone").fold_dead()


def test_damaged_figures_go_with_their_process(tmp_path: Path, dead_pid: int) -> None:
    leave(tmp_path, f"{dead_pid}-a")
    for name in (f"{dead_pid}-torn", f"{os.getpid()}-alive"):
        (tmp_path / (name + SUFFIX)).write_bytes(b"\x93")
    SnapshotFolder(tmp_path).fold_dead()
    assert files(tmp_path) == {FOLDED, f"{os.getpid()}-alive"}
    assert sums(tmp_path)[0] == 1


def test_one_folds_at_a_time(tmp_path: Path, dead_pid: int) -> None:
    leave(tmp_path, f"{dead_pid}-a")
    with SnapshotFolder(tmp_path)._folding() as old:
        assert old is not None
        SnapshotFolder(tmp_path).fold_dead()
        assert FOLDED not in files(tmp_path)
    SnapshotFolder(tmp_path).fold_dead()
    assert FOLDED in files(tmp_path)


def test_folding_loses_nothing_of_ended_processes(tmp_path: Path, dead_pid: int) -> None:
    """Figures that are folded already, those that will be, and those of this process."""
    leave(tmp_path, f"{dead_pid}-a", requests=2, epoch=90)
    SnapshotFolder(tmp_path).fold_dead()
    for epoch in range(80):
        leave(tmp_path, f"{dead_pid}-{epoch}", epoch=epoch)
    own = SnapshotFolder(tmp_path)
    before = sums(tmp_path)
    assert (before[0], before[4]) == (82, 820)
    with own._folding() as old:
        assert old is not None
        assert own.sum_epochs(Snapshot()) == {}
    assert own.sum_epochs(Snapshot()) == {"fake": 64}  # the newest sixteen are 65 to 79, and 90
    assert sums(tmp_path) == before
    own.fold_dead()
    assert sums(tmp_path) == before
    (tmp_path / (FOLDED + SUFFIX)).write_bytes(b"\x93")
    assert own.sum_epochs(Snapshot()) == {}


def test_every_counter_is_summed() -> None:
    gauges = {"epoch", "num_restarts", "num_running", "num_waiting", "num_blocks"}
    gauges |= {"num_free_blocks", "num_cached_blocks", "num_shared_blocks"}
    fields = msgspec.structs.fields(EngineStats)
    assert {field.name for field in fields if field.type is int} - gauges == set(COUNTERS)


def test_a_server_folds_as_it_starts(tmp_path: Path, dead_pid: int) -> None:
    leave(tmp_path, f"{dead_pid}-a")
    app = build_app(FakeEngine(), ServerSettings(), tmp_path)

    async def live() -> None:
        async with app.router.lifespan_context(app):
            assert f"{dead_pid}-a" not in files(tmp_path)

    asyncio.run(live())
