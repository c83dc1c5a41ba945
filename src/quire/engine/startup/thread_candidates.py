"""Numbers of threads that steps on a CPU are tried with. No torch."""

from __future__ import annotations

import os

from quire.config import EngineConfig
from quire.engine.startup.cpu_cores import usable_cores
from quire.engine.startup.step_tuning import is_tiny
from quire.errors import ConfigError
from quire.models.config.model_config import ModelConfig

MOST_THREADS = 4  # for each of the machine's cores


def thread_candidates(config: EngineConfig, model_config: ModelConfig) -> list[int]:
    """As asked; else all cores, and what is to be measured beside them.

    A tiny model's products are too short to be worth sharing. Raises ConfigError for far more than
    there are cores.
    """
    if (asked := config.device.threads) is not None:
        most = MOST_THREADS * (os.cpu_count() or 1)
        if asked > most:
            raise ConfigError(f"threads is {asked}; give at most {most}, {MOST_THREADS} for a core")
        return [asked]
    usable = usable_cores()
    return [1] if is_tiny(model_config) else sorted({usable, -(-usable // 2), 1}, reverse=True)
