"""What is begun beside the imports does no harm where there is nothing to begin with."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from quire.config import EngineConfig
from quire.engine.head_start import give_head_start, read_ahead
from quire.engine.startup import start_engine


def test_files_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert read_ahead(tmp_path) == 0
    for name in ("a", "b"):
        (tmp_path / f"{name}.safetensors").write_bytes(b"x" * 100)
    (tmp_path / "a.safetensors").chmod(0)
    assert read_ahead(tmp_path) == 2


def test_a_system_that_cannot_be_asked_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"x")
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.delattr("os.posix_fadvise")
    assert read_ahead(tmp_path) == 1


def test_it_ends_without_a_gpu_or_a_folder() -> None:
    give_head_start(EngineConfig.from_options(model="no/such-model"))
    for thread in threading.enumerate():
        if thread.name.startswith("quire-"):
            thread.join(10.0)
            assert not thread.is_alive()


def test_phases_are_told_in_order() -> None:
    config = EngineConfig.from_options(model="quire-tiny-draft", num_blocks=8)
    _, info = start_engine(config, begin=0.0)
    assert list(info.seconds) == ["imports", "device", "weights", "kv_cache", "kernels", "graphs"]
    assert info.seconds["imports"] > 0.0
    assert all(seconds >= 0.0 for seconds in info.seconds.values())
