"""Damaged checkpoints: always a CheckpointError with the file and the byte, never anything else."""

from __future__ import annotations

import json
import random
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import PagedModel, load_folder
from safetensors.torch import load_file, save_file

from quire.errors import CheckpointError
from quire.models.checkpoints.checkpoint import Checkpoint
from quire.models.checkpoints.open_checkpoint import weight_bytes
from quire.models.checkpoints.safetensors_header import TensorEntry, read_header


@pytest.fixture
def folder(checkpoint: Callable, tmp_path: Path) -> Path:
    """A copy of a whole checkpoint, to be damaged."""
    shutil.copytree(checkpoint("qwen2")[0], tmp_path / "model")
    return tmp_path / "model"


def split_header(file: Path) -> tuple[dict[str, Any], bytes]:
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def write(file: Path, header: dict[str, Any] | bytes, data: bytes) -> None:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(len(raw).to_bytes(8, "little") + raw + data)


def refused(folder: Path) -> str:
    """The message with which a folder is refused."""
    with pytest.raises(CheckpointError) as caught:
        load_folder(folder)
    return str(caught.value)


def in_order(header: dict[str, Any]) -> list[str]:
    names = [name for name in header if name != "__metadata__"]
    return sorted(names, key=lambda name: header[name]["data_offsets"])


def test_header_lists_every_tensor_where_it_is(folder: Path) -> None:
    file = folder / "model.safetensors"
    raw = file.read_bytes()
    tensors = load_file(file)
    entries = read_header(file)
    assert {e.name for e in entries} == set(tensors)
    for entry in entries:
        data = raw[entry.offset : entry.offset + entry.num_bytes]
        assert data == tensors[entry.name].numpy().tobytes()


class TestDamagedFile:
    """One damage each, with the words that name it."""

    @pytest.mark.parametrize("size", [0, 5, 8, 100, -1])
    def test_cut_off(self, folder: Path, size: int) -> None:
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:size])
        assert "model.safetensors is damaged at byte" in refused(folder)

    def test_header_longer_than_the_file(self, folder: Path) -> None:
        file = folder / "model.safetensors"
        raw = bytearray(file.read_bytes())
        raw[:8] = (2**63 + 5).to_bytes(8, "little")
        file.write_bytes(raw)
        message = refused(folder)
        assert "damaged at byte 0" in message
        assert str(2**63 + 5) in message

    @pytest.mark.parametrize(
        ("header", "offset"),
        [(b"{'", 9), (b"[]", 8), (b'{"a": 1, "a": 2}', 8), (b"\xff\xfe", 8), (b"[" * 100_000, 8)],
    )
    def test_header_is_not_an_object(self, folder: Path, header: bytes, offset: int) -> None:
        write(folder / "model.safetensors", header, b"")
        assert f"damaged at byte {offset}: the header is not" in refused(folder)

    @pytest.mark.parametrize(
        ("key", "value", "words"),
        [
            ("dtype", "F99", "unknown dtype 'F99'"),
            ("dtype", ["F32"], "unknown dtype"),
            ("shape", [-1, 4], "has the shape [-1, 4]"),
            ("shape", [2**40, 2**40], "does not fit its"),
            ("shape", "wide", "has the shape 'wide'"),
            ("data_offsets", [8, 4], "has the data_offsets [8, 4]"),
            ("data_offsets", [0, 2**70], "has the data_offsets"),
            ("data_offsets", None, "has the data_offsets None"),
        ],
    )
    def test_a_description_is_wrong(self, folder: Path, key: str, value: Any, words: str) -> None:
        file = folder / "model.safetensors"
        header, data = split_header(file)
        name = in_order(header)[3]
        header[name][key] = value
        write(file, header, data)
        offset = file.read_bytes().index(f'"{name}"'.encode())
        message = refused(folder)
        assert f"damaged at byte {offset}: {name}" in message
        assert words in message

    @pytest.mark.parametrize(("shift", "words"), [(-4, "overlaps"), (4, "leaves a gap")])
    def test_tensors_overlap_or_leave_a_gap(self, folder: Path, shift: int, words: str) -> None:
        file = folder / "model.safetensors"
        header, data = split_header(file)
        for name in in_order(header)[3:]:
            header[name]["data_offsets"] = [n + shift for n in header[name]["data_offsets"]]
        write(file, header, data)
        assert words in refused(folder)

    def test_something_follows_the_last_tensor(self, folder: Path) -> None:
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes() + b"\0")
        assert "goes on after its last tensor" in refused(folder)


class TestWrongTensors:
    """Files that are sound but are not this model's."""

    def change(self, folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> str:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")
        return refused(folder)

    def test_missing(self, folder: Path) -> None:
        message = self.change(folder, lambda t: t.pop("model.layers.1.self_attn.k_proj.bias"))
        assert "missing: model.layers.1.self_attn.k_proj.bias;" in message

    def test_left_over(self, folder: Path) -> None:
        extra = {f"model.layers.{i}.mlp.extra": torch.zeros(1) for i in range(10)}
        message = self.change(folder, lambda t: t.update(extra))
        assert "left over: model.layers.0.mlp.extra" in message
        assert "and 2 more" in message

    def test_wrong_shape(self, folder: Path) -> None:
        message = self.change(folder, lambda t: t.update({"model.norm.weight": torch.zeros(47)}))
        assert "model.norm.weight at byte" in message
        assert "shape is [47], but the model needs [48]" in message

    def test_wrong_data_type(self, folder: Path) -> None:
        message = self.change(
            folder, lambda t: t.update({"model.norm.weight": torch.zeros(48, dtype=torch.int8)})
        )
        assert "its dtype is I8" in message

    def test_known_ballast_is_passed_over(self, folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)
        save_file(tensors, folder / "model.safetensors")
        load_folder(folder)


class TestShards:
    """Checkpoints of several files with an index."""

    @pytest.fixture
    def sharded(self, folder: Path) -> Path:
        tensors = load_file(folder / "model.safetensors")
        names = sorted(tensors)
        (folder / "model.safetensors").unlink()
        weight_map = {}
        for i in range(3):
            file = f"model-{i}.safetensors"
            save_file({name: tensors[name] for name in names[i::3]}, folder / file)
            weight_map |= dict.fromkeys(names[i::3], file)
        self.write_index(folder, weight_map)
        return folder

    def write_index(self, folder: Path, weight_map: Any) -> None:
        text = json.dumps({"metadata": {}, "weight_map": weight_map})
        (folder / "model.safetensors.index.json").write_text(text)

    def read_index(self, folder: Path) -> dict[str, str]:
        text = (folder / "model.safetensors.index.json").read_text()
        weight_map: dict[str, str] = json.loads(text)["weight_map"]
        return weight_map

    def test_loads_like_one_file(self, sharded: Path, checkpoint: Callable) -> None:
        prompt = list(range(20))
        ours = PagedModel(*load_folder(sharded)).prefill(prompt)
        whole = PagedModel(*load_folder(checkpoint("qwen2")[0])).prefill(prompt)
        assert torch.equal(ours, whole)

    def test_an_index_of_any_name_will_do(self, sharded: Path) -> None:
        """AutoGPTQ's: gptq_model-4bit-128g.safetensors.index.json."""
        index = sharded / "model.safetensors.index.json"
        index.rename(sharded / "gptq_model-4bit-128g.safetensors.index.json")
        assert len(Checkpoint.open(sharded).entries) > 0
        (sharded / "model-1.safetensors").unlink()
        assert "but gptq_model-4bit-128g.safetensors.index.json names it" in refused(sharded)

    def test_the_size_of_all_files_that_it_names(self, sharded: Path) -> None:
        sizes = [file.stat().st_size for file in sharded.glob("model-*.safetensors")]
        (sharded / "consolidated.safetensors").write_bytes(b"of no tensor")
        assert weight_bytes(sharded) == sum(sizes) > 0

    def test_missing_shard(self, sharded: Path) -> None:
        (sharded / "model-1.safetensors").unlink()
        assert "model-1.safetensors is missing" in refused(sharded)

    def test_index_names_a_tensor_that_is_not_there(self, sharded: Path) -> None:
        self.write_index(sharded, self.read_index(sharded) | {"ghost": "model-0.safetensors"})
        assert "puts ghost into model-0.safetensors" in refused(sharded)

    def test_duplicate_tensor(self, sharded: Path) -> None:
        shard = load_file(sharded / "model-1.safetensors")
        first = load_file(sharded / "model-0.safetensors")
        name = next(iter(first))
        save_file(shard | {name: first[name]}, sharded / "model-1.safetensors")
        assert f"{name} at byte" in refused(sharded)

    @pytest.mark.parametrize("weight_map", [None, [], {}, {"a": 1}, {"a": "../b"}, {"a": "b\0"}])
    def test_index_is_wrong(self, sharded: Path, weight_map: Any) -> None:
        self.write_index(sharded, weight_map)
        assert "index.json: weight_map" in refused(sharded)

    def test_shards_without_an_index(self, sharded: Path) -> None:
        (sharded / "model.safetensors.index.json").unlink()
        assert "but no model.safetensors.index.json" in refused(sharded)


def test_pickles_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "pickle (pytorch_model.bin)" in refused(folder)


def test_a_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert weight_bytes(folder) == 0
    assert "has no safetensors files" in refused(folder)


def test_nothing_large_is_allocated_before_the_check(folder: Path) -> None:
    """The file promises a weight of 4 TB; telling that it does not fit takes no memory."""
    header = {"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}
    write(folder / "model.safetensors", header, b"")
    tracemalloc.start()
    assert "is cut off" in refused(folder)
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()


def mutate(raw: bytes, rng: random.Random) -> bytes:
    """A random damage: bytes flipped, cut, inserted or moved, mostly in the header."""
    changed = bytearray(raw)
    header_end = 8 + int.from_bytes(raw[:8], "little")
    for _ in range(rng.randint(1, 3)):
        offset = rng.randrange(header_end if rng.random() < 0.8 else len(changed))
        kind = rng.randrange(5)
        if kind == 0:
            changed[offset] ^= 1 << rng.randrange(8)
        elif kind == 1:
            changed[offset] = rng.choice(b'0123456789"{}[],:-')
        elif kind == 2:
            del changed[offset : offset + rng.randint(1, 50)]
        elif kind == 3:
            changed[offset:offset] = rng.randbytes(rng.randint(1, 9))
        else:
            del changed[rng.randrange(len(changed)) :]
        if not changed:
            break
    return bytes(changed)


def test_random_damage_never_passes_as_something_else(folder: Path) -> None:
    """Each is refused, unless it changed only weight data or metadata."""
    file = folder / "model.safetensors"
    raw = file.read_bytes()
    shapes = {name: tensor.shape for name, tensor in load_file(file).items()}
    rng, refusals = random.Random(0), 0
    for _ in range(400):
        file.write_bytes(mutate(raw, rng))
        try:
            load_folder(folder)
        except CheckpointError:
            refusals += 1
        else:
            entries = Checkpoint.open(folder).entries
            assert {name: entry.shape for name, entry in entries.items()} == shapes
    assert refusals > 250


@pytest.mark.parametrize("name", ["model.safetensors", "model.gguf"])
def test_a_gguf_files_errors_name_no_config(name: str) -> None:
    """It holds the config, too."""
    text = str(TensorEntry("a", Path(name), "F32", (1,), 0, 4).wrong("it is odd"))
    assert "a at byte 0: it is odd; download the file again" in text
    assert ("config.json" in text) == (name == "model.safetensors")
