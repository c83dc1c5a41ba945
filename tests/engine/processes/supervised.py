"""Settings of an engine process that tests supervise."""

from __future__ import annotations

from pathlib import Path

from quire.engine.processes.engine_supervisor import EngineProcessSettings
from quire.logs import LogOptions
from quire.shared_memory import create_shared_memory


def process_settings(folder: Path, *, load: float = 0) -> EngineProcessSettings:
    """Of a model's first process. load: seconds that it may load without progress; 0: any."""
    return EngineProcessSettings(
        folder=folder, memory=create_shared_memory(), pages=(1, 2), number=0, first_epoch=0,
        hang=0, load=load, log=LogOptions(level="info", format="text"),
    )  # fmt: skip
