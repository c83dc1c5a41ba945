"""Weights stored on disk packed and quantized: found again, made again, never half a file."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from quire.config import ModelSettings
from quire.core.layer_spec import LinearSpec
from quire.errors import CheckpointError
from quire.hub import resolve_model
from quire.kernels.cpu.native import set_num_threads
from quire.kernels.dispatch import kernels_for
from quire.last_use import last_use
from quire.layers.linear_layers import LinearBase
from quire.layers.parameter import LayerOptions
from quire.models.checkpoints.checkpoint import Checkpoint
from quire.models.checkpoints.mapped_file import MappedFile
from quire.models.checkpoints.safetensors_header import read_header
from quire.models.config.model_config import ModelConfig
from quire.models.config.quality_report import QUALITY_FILE
from quire.models.families.llama import LlamaForCausalLM
from quire.models.loading import loader
from quire.models.prepared import prepared_weights as prepared
from quire.models.prepared import safetensors_writer
from quire.models.prepared.prepared_files import (
    checkpoint_key,
    free_space,
    newest_file,
    note_use,
    prepared_file,
    step_bytes,
)
from quire.models.prepared.prepared_reader import Formats, open_prepared
from quire.models.prepared.prepared_weights import PreparedWeights, _ProcessEnd, prepared_weights
from quire.models.prepared.safetensors_writer import write_tensors
from quire.models.prepared.unfinished_file import unfinished_file
from quire.processes import interrupted
from quire.quantization.scheme import scheme_of

PATH = resolve_model("quire-tiny-draft")
MODEL_CONFIG = ModelConfig.from_folder(PATH)


@pytest.fixture(autouse=True)
def _all_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models are stored, too, and the thread that writes is joined."""
    set_num_threads(1)
    monkeypatch.setattr(prepared, "WORTH_BYTES", 0)
    save_beside = PreparedWeights.save_beside

    def save_now(self: PreparedWeights, model: torch.nn.Module) -> None:
        thread = save_beside(self, model)
        if thread is not None:
            thread.join()

    monkeypatch.setattr(PreparedWeights, "save_beside", save_now)


def load(folder: Path, scheme: str = "int4", model: str = "quire-tiny-draft") -> LlamaForCausalLM:
    path = resolve_model(model)
    config = ModelSettings(model=str(path), quantization=scheme, prepared_weights=str(folder))  # type: ignore[arg-type]
    model_config = ModelConfig.from_folder(path)
    return loader.load_model(config, model_config, path, torch.device("cpu"), torch.float32)


def outputs(model: LlamaForCausalLM) -> list[Tensor]:
    x = torch.linspace(-1, 1, model.lm_head.spec.k)[None]
    layer = model.model.layers[0]
    return [model.lm_head(x), layer.mlp.gate_up_proj(x), model.model.embed_tokens(torch.arange(9))]


@pytest.mark.parametrize("scheme", ["none", "fp8", "int8", "int4"])
def test_the_second_start_maps_what_the_first_one_made(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load(tmp_path, scheme)
    monkeypatch.setattr(loader, "_fill", None)  # nothing is read from the checkpoint
    for ours, theirs in zip(outputs(load(tmp_path, scheme)), outputs(first), strict=True):
        assert torch.equal(ours, theirs)


def test_where_no_thread_is_left_a_later_start_stores_them(
    tmp_path: Path, no_thread_left: Callable[[], AbstractContextManager[None]]
) -> None:
    with no_thread_left():
        first = load(tmp_path)
    assert not list(tmp_path.rglob("*.safetensors"))
    for ours, theirs in zip(outputs(load(tmp_path)), outputs(first), strict=True):
        assert torch.equal(ours, theirs)
    assert list(tmp_path.rglob("*.safetensors"))


class CountedNames(dict[str, Tensor]):
    """looked_at: names that loops have gone through."""

    looked_at = 0

    def __iter__(self) -> Iterator[str]:
        self.looked_at += len(self)
        return super().__iter__()


def test_a_start_does_not_look_at_all_names_for_each_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mixture of experts has ten thousands of both, which took 13 s."""
    load(tmp_path)
    give, found = prepared._load_processed, list[CountedNames]()

    def give_counted(model: LlamaForCausalLM, tensors: dict[str, Tensor], formats: Formats) -> None:
        found.append(CountedNames(tensors))
        give(model, found[0], formats)

    monkeypatch.setattr(prepared, "_load_processed", give_counted)
    load(tmp_path)
    assert found[0].looked_at <= len(found[0])


def test_each_choice_has_a_file_of_its_own() -> None:
    files = {
        found.file
        for scheme in ("none", "int8", "int4")
        for dtype in (torch.float32, torch.bfloat16)
        if (
            found := prepared_weights(ModelSettings(quantization=scheme), MODEL_CONFIG, PATH, dtype)
        )  # type: ignore[arg-type]
    }
    assert len(files) == 6
    for config in (ModelSettings(prepared_weights="none"), ModelSettings(load_format="dummy")):
        assert prepared_weights(config, MODEL_CONFIG, PATH, torch.float32) is None


def test_factors_of_long_sequences_have_a_file_of_their_own() -> None:
    """The frequencies of RoPE are stored with the weights."""
    rope = msgspec.structs.replace(MODEL_CONFIG.rope, kind="longrope", original_max_position=64)
    model_config = msgspec.structs.replace(MODEL_CONFIG, rope=rope)
    files = [
        prepared_file(ModelSettings(max_model_len=length), model_config, PATH, "float32")
        for length in (50, 64, 65, None)
    ]
    assert files[0] == files[1] != files[2] == files[3]


def test_what_a_model_computes_has_a_file_of_its_own() -> None:
    """A family that is described otherwise may store other numbers."""
    other = msgspec.structs.replace(MODEL_CONFIG, rms_norm_eps=2 * MODEL_CONFIG.rms_norm_eps)
    again = msgspec.structs.replace(MODEL_CONFIG)
    files = [
        prepared_file(ModelSettings(), model_config, PATH, "float32")
        for model_config in (MODEL_CONFIG, again, other)
    ]
    assert files[0] == files[1] != files[2]


def test_a_file_is_found_without_torch(tmp_path: Path) -> None:
    load(tmp_path)
    path = resolve_model("quire-tiny-draft")
    config = ModelSettings(quantization="int4", prepared_weights=str(tmp_path))
    assert newest_file(config, path) == next(tmp_path.glob("*.safetensors"))
    assert newest_file(ModelSettings(prepared_weights=str(tmp_path)), path) is None


def test_a_changed_checkpoint_is_another(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"1")
    before = prepared_weights(ModelSettings(), MODEL_CONFIG, tmp_path, torch.float32)
    os.utime(weights, ns=(1, 1))
    after = prepared_weights(ModelSettings(), MODEL_CONFIG, tmp_path, torch.float32)
    assert before is not None
    assert after is not None
    assert before.file != after.file


def test_a_quality_report_leaves_the_prepared_weights(tmp_path: Path) -> None:
    """`quire quantize` stores it after it has measured the speed, and `quire verify` later on."""
    (tmp_path / "config.json").write_text("{}")
    before = checkpoint_key(ModelSettings(), tmp_path)
    (tmp_path / QUALITY_FILE).write_text("{}")
    assert checkpoint_key(ModelSettings(), tmp_path) == before
    (tmp_path / "config.json").write_text("{ }")
    assert checkpoint_key(ModelSettings(), tmp_path) != before


def test_the_users_cache_folder_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = prepared_weights(ModelSettings(), MODEL_CONFIG, PATH, torch.float32)
    assert found is not None
    assert found.file.parent == tmp_path / "quire" / "prepared"


HARMS = (
    "cut", "header", "names", "formats", "kernel", "sizes", "entry", "empty", "zeros", "type",
    "shape", "flag",
)  # fmt: skip


@pytest.mark.parametrize("harm", HARMS)
def test_a_broken_file_is_made_again(
    harm: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    right = outputs(load(tmp_path))
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    broken = {
        "cut": whole[:-100],
        "header": whole[:9] + b"}" + whole[10:],
        "names": whole.replace(b"layers.1.mlp", b"layers.9.mlp"),
        "formats": whole.replace(b"layout", b"LAYOUT"),
        "kernel": whole.replace(b"INT4_HADAMARD", b"INT8_HADAMARD"),
        "sizes": re.sub(rb'outputs\\": \d', rb'outputs\\": 9', whole),
        "entry": re.sub(rb'{\\"layout[^}]*}', lambda found: b"5".ljust(len(found[0])), whole),
        "empty": b"",
        "type": whole.replace(b'"F32", "shape": [', b'"I32", "shape": [', 1),
        "shape": re.sub(rb'"shape": \[(\d+), (\d+)\]', rb'"shape": [\2, \1]', whole, count=1),
        "flag": whole.replace(rb"permuted\": false", rb"permuted\": true ", 1),
        "zeros": whole[: len(whole) // 2] + bytes(len(whole) - len(whole) // 2),
    }
    assert broken[harm] != whole
    file.write_bytes(broken[harm])
    for ours, theirs in zip(outputs(load(tmp_path)), right, strict=True):
        assert torch.equal(ours, theirs)
    (line,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert line == f"{file} is damaged, so its weights are prepared anew from the checkpoint"
    assert file.read_bytes() == whole


def test_a_folder_that_cannot_be_written_costs_no_more_than_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    load(tmp_path / "file" / "folder")
    assert "prepared weights cannot be stored" in caplog.text


def test_a_folder_of_another_user_is_without_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after `sudo quire serve`: nothing in it may be looked at, which root always may."""
    look_at = os.stat

    def denied(path: Any, *rest: Any, **options: Any) -> os.stat_result:
        if str(path).startswith(f"{tmp_path}/"):
            raise PermissionError(13, "Permission denied", str(path))
        return look_at(path, *rest, **options)

    monkeypatch.setattr(os, "stat", denied)
    load(tmp_path / "theirs")


def test_a_file_that_may_not_be_read_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    load(tmp_path)
    (file,) = tmp_path.iterdir()
    inode = file.stat().st_ino

    def denied(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    assert open_prepared(file) is None
    (line,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert line == f"{file} cannot be used (Permission denied)"
    assert file.stat().st_ino == inode


def test_the_oldest_leave(tmp_path: Path) -> None:
    for age, name in enumerate(("old", "older", "oldest")):
        file = tmp_path / f"{name}.safetensors"
        file.write_bytes(bytes(1000))
        os.utime(file, (1000 - age, 1000 - age))
    (tmp_path / "half.123.tmp").write_bytes(bytes(1000))
    free_space(tmp_path, 2500)
    assert {file.stem for file in tmp_path.iterdir()} == {"old", "older"}
    free_space(tmp_path, -1)
    assert not list(tmp_path.iterdir())


def test_tensors_are_written_as_they_are(tmp_path: Path) -> None:
    """Tensors with a multiple of 64 bytes are aligned so, and can be multiplied where they lie."""
    tensors = {
        "odd": torch.arange(3, dtype=torch.int8),
        "empty": torch.empty(5, 0),
        "bytes": torch.arange(64, dtype=torch.uint8).view(4, 16),
        "numbers": torch.randn(32, dtype=torch.bfloat16),
        "transposed": torch.randn(4, 8).T,
    }
    write_tensors(tmp_path / "file", tensors)
    entries = read_header(tmp_path / "file")
    mapped = MappedFile(tmp_path / "file")
    assert {entry.name for entry in entries} == set(tensors)
    for entry in entries:
        assert torch.equal(mapped.tensor(entry), tensors[entry.name])
        assert entry.num_bytes % 64 or entry.offset % 64 == 0
        mapped.forget(entry)
        assert torch.equal(mapped.tensor(entry), tensors[entry.name])


def test_weights_that_do_not_fit_a_schemes_format_are_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            options = LayerOptions(torch.float32, torch.device("cpu"), kernels_for("cpu"), scheme)
            self.short, self.long = (
                LinearBase(LinearSpec(module="", n=8, k=k, role="layer"), options) for k in (48, 64)
            )

    scheme = scheme_of("int4", "cpu")
    assert scheme is not None
    loader._log_exceptions(scheme, Odd())
    assert "1 weights are stored as int8 in place of int4: their inputs are no" in caplog.text


@pytest.mark.parametrize("time_of_clock", [1.0, None, 4e9], ids=["past", "now", "future"])
def test_an_unfinished_file_is_removed_once_its_writer_is_gone(
    tmp_path: Path, time_of_clock: float | None
) -> None:
    """Whatever the clock says, and in whatever container the writer is."""
    text = (
        "import sys\nfrom pathlib import Path\n"
        "from quire.models.prepared.unfinished_file import unfinished_file\n"
        "with unfinished_file(Path(sys.argv[1])) as file:\n"
        "    print(file, flush=True)\n    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", text, str(tmp_path / "other.tmp")]
    with (
        subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as writer,
        unfinished_file(tmp_path / "mine.tmp") as mine,
    ):
        assert writer.stdout is not None
        others = Path(writer.stdout.readline().strip())
        (tmp_path / "tmpleft.tmp").touch()
        for file in tmp_path.iterdir():
            os.utime(file, None if time_of_clock is None else (time_of_clock, time_of_clock))
        free_space(tmp_path, 0)
        assert set(tmp_path.iterdir()) == {mine, others}
        writer.kill()
        writer.wait()
        free_space(tmp_path, 0)
        assert set(tmp_path.iterdir()) == {mine}
    assert not list(tmp_path.iterdir())


def test_what_was_used_last_stays_though_the_clock_was_set_back(tmp_path: Path) -> None:
    old, older = (tmp_path / f"{name}.safetensors" for name in ("old", "older"))
    for file in (old, older):  # written while the clock was ahead by years
        file.write_bytes(bytes(1000))
        os.utime(file, (4e9, 4e9))
    new = file_of(tmp_path)
    new._save({"weight": torch.ones(4)}, {}, set(), _ProcessEnd())
    free_space(tmp_path, new.file.stat().st_size)
    assert list(tmp_path.iterdir()) == [new.file]
    old.write_bytes(bytes(1000))
    note_use(old)
    note_use(new.file)  # as each start does that maps it
    assert stored_order(tmp_path) == [new.file, old]


def stored_order(folder: Path) -> list[Path]:
    """The last used first."""
    return sorted(folder.iterdir(), key=last_use, reverse=True)


def file_of(folder: Path) -> PreparedWeights:
    return PreparedWeights(folder / f"{'f' * 32}.safetensors")


def test_a_process_that_ends_makes_a_file_whole_or_leaves_nothing(
    tmp_path: Path,
) -> None:
    tensors, nobody = {"weight": torch.ones(4)}, threading.Thread(target=int)
    nobody.start()
    cut, hurried = _ProcessEnd(), _ProcessEnd()
    interrupted.set()
    cut.wait_for(nobody)
    interrupted.clear()
    file_of(tmp_path)._save(tensors, {}, set(), cut)
    assert not list(tmp_path.iterdir())
    hurried.wait_for(nobody)
    file_of(tmp_path)._save(tensors, {}, set(), hurried)
    assert list(tmp_path.iterdir()) == [file_of(tmp_path).file]


def test_what_each_step_reads_is_written_in_whole_large_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table comes behind, so that a row of it brings no large page into memory."""
    tensors = {
        "table": torch.zeros(3, 64),
        "odd": torch.zeros(7, dtype=torch.int8),
        "first": torch.zeros(1000, 64),
        "second": torch.zeros(1000, 64),
    }
    file, sizes, writev = tmp_path / "file", list[int](), os.writev
    monkeypatch.setattr(safetensors_writer, "_PIECE_BYTES", 1 << 17)
    monkeypatch.setattr(safetensors_writer, "_SMALL_BYTES", 1 << 9)

    def noted(fd: int, parts: list[memoryview]) -> int:
        sizes.append(sum(map(len, parts)))
        return writev(fd, parts)

    monkeypatch.setattr(os, "writev", noted)
    assert write_tensors(file, tensors, {"table"})
    entries = read_header(file)
    assert [entry.name for entry in entries] == ["first", "second", "table", "odd"]
    assert step_bytes(file) == entries[2].offset
    whole = step_bytes(file) // (1 << 17)
    assert sizes == [1 << 17] * whole + [step_bytes(file) % (1 << 17), 512, 256 + 7]
    assert step_bytes(tmp_path / "none") == 0


def test_a_full_disk_raises_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "writev", lambda *_: 3)
    with pytest.raises(OSError, match="No space"):
        write_tensors(tmp_path / "file", {"weight": torch.ones(4)})


def test_each_choice_of_formats_has_a_file_of_its_own(tmp_path: Path) -> None:
    choices = ("none", None), ("int4", None), ("int4", "lm_head=none"), ("int4", "lm_head=nf4")
    keys = {
        checkpoint_key(ModelSettings(quantization=name, quantization_overrides=rules), tmp_path)
        for name, rules in choices
    }
    assert len(keys) == len(choices)


def test_links_that_lead_nowhere_are_left_to_those_who_read_them(tmp_path: Path) -> None:
    shutil.copytree(resolve_model("quire-tiny"), tmp_path, dirs_exist_ok=True)
    (tmp_path / "extra.json").symlink_to(tmp_path / "gone")
    assert checkpoint_key(ModelSettings(), tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.unlink()
    weights.symlink_to(weights)
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read"):
        Checkpoint.open(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a file is brought to disk whole")
def test_a_file_is_brought_to_disk_by_pieces_until_that_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, whole = [], []
    monkeypatch.setattr(safetensors_writer, "_PIECE_BYTES", 10)
    monkeypatch.setattr(safetensors_writer, "_write_piece", lambda _, begin: synced.append(begin))
    monkeypatch.setattr(os, "fsync", whole.append)
    (tmp_path / "file").write_bytes(b"x" * 25)
    safetensors_writer.bring_to_disk(tmp_path / "file", lambda: len(synced) == 2)
    assert (synced, whole) == ([0, 10], [])
    synced.clear()
    safetensors_writer.bring_to_disk(tmp_path / "file", lambda: False)
    assert (synced, len(whole)) == ([0, 10, 20], 1)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a file is brought to disk whole")
def test_a_piece_that_is_not_written_is_an_error_and_a_file_without_pieces_none() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        safetensors_writer._write_piece(-1, 0)
    for end in (ends := os.pipe()):
        safetensors_writer._write_piece(end, 0)
    for end in ends:
        os.close(end)
