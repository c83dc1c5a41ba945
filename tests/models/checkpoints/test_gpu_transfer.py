"""Reading ahead into a device's memory, with the CPU as the device: bytes, order, damaged files."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from quire.errors import CheckpointError
from quire.models.checkpoints import gpu_transfer
from quire.models.checkpoints.checkpoint import Checkpoint
from quire.models.checkpoints.gpu_transfer import DeviceReader
from quire.models.loading import checkpoint_source

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    tensors = {
        "a": torch.randn(100, 30),
        "b": torch.randn(7, dtype=torch.float64),
        "c": torch.randn(1, 501).to(torch.bfloat16),
        "empty": torch.zeros(0, 4),
        "number": torch.tensor(3.0, dtype=torch.float16),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path


def read(folder: Path, part_bytes: int) -> dict[str, Tensor]:
    checkpoint = Checkpoint.open(folder)
    entries = checkpoint.in_file_order(set(checkpoint.entries))
    with DeviceReader(CPU, part_bytes) as reader:
        return {entry.name: tensor.clone() for entry, tensor in reader.tensors(entries)}


@pytest.mark.parametrize("part_bytes", [1 << 20, 999, 64])
@pytest.mark.parametrize("window", [1 << 20, 0])
def test_every_byte_arrives(
    folder: Path, part_bytes: int, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_transfer, "WINDOW_BYTES", window)
    found, expected = read(folder, part_bytes), load_file(folder / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def test_one_thread_reads_where_the_system_starts_no_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = threading.Thread.start, list[threading.Thread]()

    def start_one(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_one)
    found, expected = read(folder, 64), load_file(folder / "model.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_no_file_stays_open(folder: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    read(folder, 999)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_that_is_cut_off_meanwhile_is_an_error(folder: Path) -> None:
    checkpoint = Checkpoint.open(folder)
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(2000)
    entries = checkpoint.in_file_order(set(checkpoint.entries))
    with (
        DeviceReader(CPU, 999) as reader,
        pytest.raises(CheckpointError, match="has become shorter while it was read"),
    ):
        list(reader.tensors(entries))


def test_a_file_that_vanishes_is_an_error(folder: Path) -> None:
    checkpoint = Checkpoint.open(folder)
    (folder / "model.safetensors").unlink()
    with DeviceReader(CPU) as reader, pytest.raises(CheckpointError, match="cannot be opened"):
        list(reader.tensors(checkpoint.in_file_order({"a"})))


def test_a_model_is_filled_by_host_on_other_devices(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = DeviceReader(CPU)
    monkeypatch.setattr(checkpoint_source, "DeviceReader", lambda _device: reader)
    checkpoint = Checkpoint.open(folder)
    found = dict(checkpoint_source.read_tensors(checkpoint, {"a", "c"}, torch.device("cuda")))
    assert {entry.name for entry in found} == {"a", "c"}
