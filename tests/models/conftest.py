"""One tiny checkpoint of each kind, written once per test session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import transformers
from checkpoints import write_checkpoint

from quire.kernels.cpu.native import set_num_threads

Saved = tuple[Path, transformers.PreTrainedModel]


@pytest.fixture(scope="session", autouse=True)
def _quiet_and_single_threaded() -> None:
    set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Saved]:
    """checkpoint(name) → (folder, the model of transformers)."""
    saved: dict[str, Saved] = {}

    def get(name: str) -> Saved:
        if name not in saved:
            folder = tmp_path_factory.mktemp(name)
            saved[name] = (folder, write_checkpoint(name, folder))
        return saved[name]

    return get
