"""The supervisor of a model's first engine process, without a server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from quire.config import EngineConfig
from quire.engine.processes.control_channel import EngineDown, EngineUp, StartEngine
from quire.engine.processes.engine_supervisor import SOCKET, EngineSupervisor
from quire.logs import LogOptions
from quire.shared_memory import create_shared_memory


def supervisor_of(
    folder: Path,
    on_change: Callable[[EngineUp | EngineDown], None] = lambda _: None,
    *,
    hang: float = 0,
    load: float = 0,
) -> EngineSupervisor:
    """hang, load: seconds without a heartbeat, and without progress of a load; 0: any."""
    first = StartEngine(
        config=EngineConfig(), epoch=0, address=f"{SOCKET}{folder}/engine",
        memory=create_shared_memory(), page=1, log=LogOptions(level="info", format="text"),
    )  # fmt: skip
    return EngineSupervisor("m", first, (1, 2), on_change, hang, load)
