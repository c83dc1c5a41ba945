"""Processes whose storage does not answer while they start."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from supervised import supervisor_of

from quire.engine.processes import engine_supervisor
from quire.engine.processes.control_channel import StartWorker
from quire.engine.processes.worker_supervisor import WorkerSupervisor
from quire.errors import EngineError
from quire.logs import LogOptions
from quire.shared_memory import create_shared_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

LIMIT = 0.6
MODULE = "stalled_engine"
STALLED = """
import os, sys
os.read(os.open({path!r}, os.O_RDONLY), 1)
"""
BUSY = "import time\nend = time.monotonic() + 3 * {limit}\nwhile time.monotonic() < end: pass"


def run_engine(folder: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a supervisor of processes with this source; raises what it raises."""
    (folder / f"{MODULE}.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr(engine_supervisor, "ENGINE_MODULE", MODULE)

    async def run() -> None:
        async with asyncio.timeout(30.0):
            await supervisor_of(folder, load=LIMIT).run()

    asyncio.run(run())


def test_an_engine_that_waits_for_its_storage_is_named_in_the_log_and_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    weights = tmp_path / "model.safetensors"
    os.mkfifo(weights)
    writer = os.open(weights, os.O_RDWR)  # that never writes
    monkeypatch.setattr(engine_supervisor, "NOTE_SECONDS", LIMIT / 2)
    try:
        with (
            caplog.at_level(logging.WARNING),
            pytest.raises(
                EngineError, match=r"no progress.*model.safetensors.*--engine-load-timeout"
            ),
        ):
            run_engine(tmp_path, STALLED.format(path=str(weights)), monkeypatch)
    finally:
        os.close(writer)
    assert [str(weights) in line for line in caplog.messages] == [True]


def test_an_engine_that_works_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EngineError, match="died while it was loading"):
        run_engine(tmp_path, BUSY.format(limit=LIMIT), monkeypatch)


def test_an_api_process_that_waits_for_its_storage_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Before its event loop runs, and so before its first heartbeat."""
    os.mkfifo(tmp_path / "module")
    writer = os.open(tmp_path / "module", os.O_RDWR)
    (tmp_path / f"{MODULE}.py").write_text(STALLED.format(path=str(tmp_path / "module")))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    memory = create_shared_memory()
    first = StartWorker(
        row=0, client="0.0", settings=b"", listeners=[], memory=memory, counters=memory,
        metrics_folder="", log=LogOptions(level="info", format="text"),
    )  # fmt: skip
    parent = SimpleNamespace(statuses=list, reachable=list, on_death=lambda _: None)

    async def run() -> str:
        worker = WorkerSupervisor(MODULE, first, parent, 0, LIMIT)  # type: ignore[arg-type]
        async with asyncio.timeout(30.0):
            return await worker._run_once("0.0")

    try:
        assert asyncio.run(run()) == "signal SIGKILL"
    finally:
        os.close(writer)
    assert ["no progress" in line for line in caplog.messages] == [True]
