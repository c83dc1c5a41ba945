"""A CPU's decoder layers in one call: the bits of the same layers one by one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from harness import PagedModel, PagedRequest, load_folder
from torch import Tensor

from quire.hub import resolve_model
from quire.kernels.cpu import layers, native
from quire.kernels.cpu.layers import JoinedLayers
from quire.kvcache.storage import kv_dtype

pytestmark = pytest.mark.skipif(native.library() is None, reason="the kernels were not built")

FAMILIES = ["llama_biased_d16", "llama_mqa_d80", "llama_d96", "phi3_partial", "qwen3_windows"]
PACES = (1, 1, 9, 20)  # two decodes, and parts of prompts


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each step's layers went in one call."""
    answers = []
    run = JoinedLayers.run

    def noted(*arguments: object) -> bool:
        answers.append(run(*arguments))  # type: ignore[arg-type]
        return answers[-1]

    monkeypatch.setattr(JoinedLayers, "run", noted)
    return answers


def logits(folder: Path, kv: str = "auto", **options: str) -> list[Tensor]:
    """Of three steps of requests that advance together."""
    model, shape = load_folder(folder, **options)
    dtype = kv_dtype(kv, next(model.parameters()).dtype)
    paged = PagedModel(model, shape, dtype=dtype)
    requests = [PagedRequest([(7 * i + 3 * n) % 500 + 3 for i in range(60)]) for n in PACES]
    return [part for _ in range(3) for part in paged.step(list(zip(requests, PACES, strict=True)))]


def assert_same_bits(
    served: list[bool], monkeypatch: pytest.MonkeyPatch, run: Callable[[], list[Tensor]]
) -> None:
    joined = run()
    assert served == [True] * 3
    monkeypatch.setattr(layers, "FEW_TOKENS", 0)
    one_by_one = run()
    assert served[3:] == [False] * 3
    assert all(torch.equal(a, b) for a, b in zip(joined, one_by_one, strict=True))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_families(
    family: str,
    dtype: str,
    checkpoint: Callable,
    served: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, _ = checkpoint(family)
    monkeypatch.setattr(layers, "_TOGETHER", 1)  # so that the second is another call's first
    assert_same_bits(served, monkeypatch, lambda: logits(folder, dtype=dtype))


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("kv", ["auto", "fp8", "int8"])
def test_forms_of_weights_and_cache(
    quantization: str, kv: str, served: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = resolve_model("quire-tiny")
    options = {"quantization": quantization, "dtype": "bfloat16"}
    assert_same_bits(served, monkeypatch, lambda: logits(folder, kv, **options))


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_biases_beside_forms_of_weights(
    quantization: str, checkpoint: Callable, served: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = checkpoint("llama_biased_d16")
    options = {"quantization": quantization, "dtype": "float32"}
    assert_same_bits(served, monkeypatch, lambda: logits(folder, **options))


def test_heads_that_compiled_attention_does_not_serve(
    checkpoint: Callable, served: list[bool]
) -> None:
    folder, _ = checkpoint("llama")  # of 8 numbers
    logits(folder)
    assert served == [False] * 3


def test_weights_in_another_form_are_left_to_the_layers(served: list[bool]) -> None:
    """FP8 has no compiled products on a CPU."""
    logits(resolve_model("quire-tiny"), quantization="fp8")
    assert served == []
