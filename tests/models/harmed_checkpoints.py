"""Changes that harm a quantized checkpoint before it is saved, and the check that it is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import load_folder
from quantized_checkpoints import Change, write_quantized
from torch import Tensor

from quire.errors import CheckpointError


def drop(leaf: str) -> Change:
    def change(tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
        del tensors[f"model.layers.0.mlp.up_proj.{leaf}"]

    return change


def cast(leaf: str, dtype: torch.dtype) -> Change:
    def change(tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
        name = f"model.layers.0.mlp.up_proj.{leaf}"
        tensors[name] = tensors[name].to(dtype)

    return change


def spoil(leaf: str, value: float = float("nan")) -> Change:
    """One scale is NaN, or another value."""

    def change(tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
        tensors[f"model.layers.0.mlp.up_proj.{leaf}"].flatten()[-1] = value

    return change


def only_one_scale(tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
    """The scale of the first output for all."""
    name = "model.layers.0.mlp.up_proj.weight_scale"
    tensors[name] = tensors[name].flatten()[:1].clone()


def configure(**changes: Any) -> Change:
    def change(_: dict[str, Tensor], config: dict[str, Any]) -> None:
        config["quantization_config"] |= changes

    return change


def check_refused(name: str, change: Change, message: str, folder: Path) -> None:
    """The named checkpoint, changed, is refused with a message that matches."""
    write_quantized(name, folder, change)
    with pytest.raises(CheckpointError, match=message):
        load_folder(folder, prepared_weights="none")


def case_id(value: object) -> str:
    """A test's id: texts as they are, changes by their names."""
    return value if isinstance(value, str) else value.__qualname__  # type: ignore[attr-defined]


def refusals(*cases: tuple[str, Change, str]) -> Callable[..., None]:
    """A test that each of these is refused: name, change and message of `check_refused`."""

    @pytest.mark.parametrize(("name", "change", "message"), cases, ids=case_id)
    def run(name: str, change: Change, message: str, tmp_path: Path) -> None:
        check_refused(name, change, message, tmp_path)

    return run
