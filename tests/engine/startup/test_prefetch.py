"""What is begun beside the imports does no harm where there is nothing to begin with."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from quire.config import EngineConfig
from quire.engine.startup import prefetch
from quire.engine.startup.prefetch import read_ahead, start_prefetch, wait_for_triton
from quire.engine.startup.start_engine import start_engine
from quire.models.prepared.prepared_files import checkpoint_key, file_name


def config_of(folder: Path, prepared: Path, **options: object) -> EngineConfig:
    given = {"model": str(folder), "prepared_weights": str(prepared), "device": "cpu"} | options
    return EngineConfig.from_options(**given)


def test_files_are_asked_for(tmp_path: Path) -> None:
    config = config_of(tmp_path, tmp_path / "prepared")
    (tmp_path / "config.json").write_text("{}")
    assert read_ahead(config) == []
    files = [tmp_path / f"{name}.safetensors" for name in ("a", "b")]
    for file in files:
        file.write_bytes(b"x" * 100)
    assert read_ahead(config) == files
    files[0].unlink()
    files[0].symlink_to(tmp_path / "gone")
    assert read_ahead(config) == files[1:]


def test_prepared_weights_are_asked_for_instead(tmp_path: Path) -> None:
    """A checkpoint that will not be read must not evict other files from the page cache."""
    folder, prepared = tmp_path / "model", tmp_path / "prepared"
    folder.mkdir()
    prepared.mkdir()
    (folder / "config.json").write_text("{}")
    checkpoint = folder / "a.safetensors"
    checkpoint.write_bytes(b"x")
    config = config_of(folder, prepared, quantization="int8")
    key = checkpoint_key(config.model, folder)
    older, newer = (prepared / file_name(key, version) for version in ("form-1", "form-2"))
    for file, second in ((older, 1), (newer, 2)):
        file.write_bytes(b"x")
        os.utime(file, (second, second))
    assert read_ahead(config) == [newer]
    assert read_ahead(config_of(folder, prepared)) == [checkpoint]  # which has none of its own
    assert read_ahead(config_of(folder, prepared, quantization="int8", device="cuda")) == [
        checkpoint
    ]


def test_a_system_that_cannot_be_asked_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{}")
    file = tmp_path / "a.safetensors"
    file.write_bytes(b"x")
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.delattr("os.posix_fadvise")
    assert read_ahead(config_of(tmp_path, tmp_path / "prepared")) == [file]


def test_it_ends_without_a_gpu_or_a_folder() -> None:
    before = threading.enumerate()
    start_prefetch(EngineConfig.from_options(model="no/such-model"))
    for thread in set(threading.enumerate()) - set(before):
        thread.join(10.0)
        assert not thread.is_alive()


def test_a_start_waits_for_triton_where_it_is_being_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    awake: list[float] = []

    def wake() -> None:
        time.sleep(0.05)
        awake.append(time.monotonic())

    monkeypatch.setattr(prefetch, "may_use_gpu", lambda _: True)
    monkeypatch.setattr(prefetch, "gpu_driver", lambda: None)
    start_prefetch(EngineConfig.from_options(model="no/such-model"))
    wait_for_triton()  # without a GPU nobody wakes it
    monkeypatch.setattr(prefetch, "gpu_driver", object)
    monkeypatch.setattr(prefetch, "retain_primary_context", lambda: None)
    monkeypatch.setattr(prefetch, "_initialise_triton", wake)
    start_prefetch(EngineConfig.from_options(model="no/such-model"))
    wait_for_triton()
    assert awake


def test_phases_are_reported_in_order() -> None:
    config = EngineConfig.from_options(model="quire-tiny-draft", num_blocks=8)
    _, info = start_engine(config, begin=0.0)
    assert list(info.seconds) == ["imports", "device", "weights", "kv_cache", "kernels", "graphs"]
    assert info.seconds["imports"] > 0.0
    assert all(seconds >= 0.0 for seconds in info.seconds.values())
