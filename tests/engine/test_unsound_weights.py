"""Weights with NaN or infinity: a failed request's error names the tensor."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch
from prepared_files import wait_for_prepared_files
from safetensors.torch import load_file, save_file

from quire import LLM, SamplingParams
from quire.errors import EngineError
from quire.model_folder import BUNDLED_FOLDER
from quire.models.checkpoints.safetensors_header import read_header
from quire.models.checkpoints.unsound_weights import describe_unsound
from quire.models.prepared import prepared_reader

NAME = "model.layers.0.mlp.down_proj.weight"


def copied_model(folder: Path) -> Path:
    shutil.copytree(BUNDLED_FOLDER / "quire-tiny", folder)
    return folder


def damage(folder: Path, value: float, dtype: torch.dtype) -> None:
    file = folder / "model.safetensors"
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(file).items()}
    tensors[NAME][-1, -1] = value
    save_file(tensors, file)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_tensor_is_found(tmp_path: Path, value: float, dtype: torch.dtype) -> None:
    folder = copied_model(tmp_path / "model")
    assert describe_unsound(folder) == ""
    damage(folder, value, dtype)
    assert f"the weight {NAME} in model.safetensors" in describe_unsound(folder)
    (folder / "model.safetensors").unlink()
    assert describe_unsound(folder) == ""


def test_the_first_failed_request_names_the_weight(tmp_path: Path) -> None:
    folder = copied_model(tmp_path / "model")
    damage(folder, float("nan"), torch.float32)
    with LLM(model=folder, device="cpu", dtype="float32") as llm:
        for _ in range(2):
            with pytest.raises(EngineError, match=f"because the weight {NAME} .*download"):
                llm.generate("Hello", SamplingParams(max_tokens=2))


def test_a_start_finds_damaged_codes_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No number of theirs is NaN, so no request fails by them."""

    def start() -> LLM:
        return LLM(device="cpu", quantization="int8", prepared_weights=str(tmp_path))

    def errors_once_checked() -> list[str]:
        for thread in threading.enumerate():
            if thread.name == "quire-check":
                thread.join()
        return [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]

    monkeypatch.setattr(prepared_reader, "_CHECK_DELAY", 0.0)
    monkeypatch.setattr(prepared_reader, "faults", {})
    start().close()
    wait_for_prepared_files()
    start().close()
    assert errors_once_checked() == []
    (file,) = tmp_path.iterdir()
    (packed,) = (e for e in read_header(file) if e.name.endswith("layers.0.mlp.down_proj.packed"))
    with file.open("r+b") as stream:
        stream.seek(packed.offset + packed.num_bytes // 4)
        stream.write(b"\x05")
    with start() as llm:
        (error,) = errors_once_checked()
        assert llm.stats.weight_fault == error  # which /health shows
        assert "answers may be wrong, because the weight " in error
        assert packed.name in error
        assert not file.exists()
        llm.sleep()
        llm.wake_up()  # which prepares them anew
        assert not llm.stats.weight_fault
    wait_for_prepared_files()


def test_a_failed_request_ends_where_no_thread_can_search(
    tmp_path: Path, no_thread_left: Callable[[], AbstractContextManager[None]]
) -> None:
    folder = copied_model(tmp_path / "model")
    damage(folder, float("nan"), torch.float32)
    with (
        LLM(model=folder, device="cpu", dtype="float32") as llm,
        no_thread_left(),
        pytest.raises(EngineError, match="non-finite"),
    ):
        llm.generate("Hello", SamplingParams(max_tokens=2))


def test_prepared_weights_are_damaged_once(tmp_path: Path) -> None:
    """A start checks a part of them; the first failed request finds the rest."""

    def start() -> LLM:
        return LLM(device="cpu", prepared_weights=str(tmp_path))

    params = SamplingParams(max_tokens=8, temperature=0)
    with start() as llm:
        right = llm.generate("Hello", params)[0].outputs[0].text
    wait_for_prepared_files()
    (file,) = tmp_path.iterdir()
    (packed,) = (e for e in read_header(file) if e.name.endswith("layers.0.mlp.down_proj.packed"))
    with file.open("r+b") as stream:
        stream.seek(packed.offset + packed.num_bytes // 4)
        stream.write(b"\xff" * 8192)  # NaN
    with start() as llm, pytest.raises(EngineError, match=r"down_proj.packed .* start again"):
        llm.generate("Hello", params)
    assert not file.exists()
    with start() as llm:
        assert llm.generate("Hello", params)[0].outputs[0].text == right
