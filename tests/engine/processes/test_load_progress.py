"""An engine process whose storage does not answer while it loads its model."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path

import pytest

from quire.config import EngineConfig
from quire.engine.processes import engine_supervisor
from quire.engine.processes.engine_supervisor import EngineProcessSettings, EngineSupervisor
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
    settings = EngineProcessSettings(
        folder=folder, memory=create_shared_memory(), pages=(1, 2), number=0, first_epoch=0,
        hang=0, load=LIMIT, log=LogOptions(level="info", format="text"),
    )  # fmt: skip

    async def run() -> None:
        async with asyncio.timeout(30.0):
            await EngineSupervisor("m", EngineConfig(), settings, lambda _: None).run()

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
                EngineError, match=r"no progress.*model.safetensors.*engine_load_timeout"
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
