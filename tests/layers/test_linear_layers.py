"""Linear layers: which rows a tensor fills, and what is left after loading."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from quire.core.layer_spec import EmbeddingSpec, LinearPart, LinearSpec, UnsupportedModelError
from quire.kernels.dispatch import kernels_for
from quire.layers.embedding import ParallelLMHead, VocabParallelEmbedding
from quire.layers.linear_layers import (
    GateUpParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from quire.layers.parameter import LayerOptions, Weight, WeightShapeError

OPTIONS = LayerOptions(torch.float32, torch.device("cpu"), kernels_for("cpu"))
SQUARE = LinearSpec(module="square", n=4, k=4, role="layer")


def fused(size: int, *, bias: bool = False, **rows: int) -> LinearSpec:
    """A weight [rows, size] of these parts."""
    parts = tuple(LinearPart(name=name, rows=n, module=name) for name, n in rows.items())
    n = sum(rows.values())
    return LinearSpec(module="fused", n=n, k=size, role="layer", bias=bias, parts=parts)


def head_spec(size: int) -> LinearSpec:
    return LinearSpec(module="lm_head", n=size, k=4, role="head")


def load(param: object, tensor: Tensor, part: str | None = None) -> None:
    assert isinstance(param, Weight)
    param.weight_loader(param, tensor, part)


def test_parts_stand_one_below_the_other() -> None:
    layer = QKVParallelLinear(fused(12, bias=True, q=12, k=4, v=4), OPTIONS)
    weights = {"q": torch.randn(12, 12), "k": torch.randn(4, 12), "v": torch.randn(4, 12)}
    biases = {"q": torch.randn(12), "k": torch.randn(4), "v": torch.randn(4)}
    for part in ("v", "q", "k"):  # in any order
        load(layer.weight, weights[part], part)
        load(layer.bias, biases[part], part)
    layer.process_after_load()
    x = torch.randn(5, 12)
    expected = [F.linear(x, weights[part], biases[part]) for part in "qkv"]
    torch.testing.assert_close(layer(x), torch.cat(expected, -1), atol=1e-5, rtol=0)


def test_a_fused_tensor_fills_all_parts() -> None:
    layer = MergedColumnParallelLinear(fused(6, gate=4, up=4), OPTIONS)
    whole = torch.randn(8, 6)
    load(layer.weight, whole)
    layer.process_after_load()
    x = torch.randn(3, 6)
    torch.testing.assert_close(layer(x), F.linear(x, whole), atol=1e-5, rtol=0)


@pytest.mark.parametrize("shape", [(4, 5), (1, 6), (4,), (4, 6, 1), ()])
def test_a_wrong_shape_is_an_error_and_nothing_is_broadcast(shape: tuple[int, ...]) -> None:
    layer = MergedColumnParallelLinear(fused(6, gate=4, up=4), OPTIONS)
    with pytest.raises(WeightShapeError, match=r"the model needs \[4, 6\]"):
        load(layer.weight, torch.zeros(shape), "up")


def test_loading_converts_the_data_type() -> None:
    layer = RowParallelLinear(SQUARE, OPTIONS)
    load(layer.weight, torch.eye(4, dtype=torch.bfloat16))
    layer.process_after_load()
    torch.testing.assert_close(layer(torch.ones(1, 4)), torch.ones(1, 4))


def test_only_one_format_of_a_weight_stays() -> None:
    layer = RowParallelLinear(SQUARE, OPTIONS)
    load(layer.weight, torch.eye(4))
    layer.process_after_load()
    assert [name for name, _ in layer.named_parameters()] == []
    assert [name for name, _ in layer.named_buffers()] in (["weight"], ["packed"])


@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("size", [11, 32])
def test_a_tied_head_multiplies_with_the_embedding(rows: int, size: int) -> None:
    spec = EmbeddingSpec(module="", vocab_size=size, hidden_size=4)
    embedding = VocabParallelEmbedding(spec, OPTIONS)
    head = ParallelLMHead(head_spec(size), OPTIONS, embedding)
    table = torch.randn(size, 4)
    load(embedding.weight, table)
    head.process_after_load()
    hidden = torch.randn(rows, 4)
    torch.testing.assert_close(head(hidden), hidden @ table.T)
    assert torch.equal(embedding(torch.tensor([3, 0])), table[[3, 0]])
    assert embedding.table is head.method.operand


def test_logits_come_in_the_type_of_the_model() -> None:
    options = LayerOptions(torch.bfloat16, torch.device("cpu"), kernels_for("cpu"))
    head = ParallelLMHead(head_spec(11), options, None)
    load(head.weight, torch.randn(11, 4))
    head.process_after_load()
    assert head(torch.randn(2, 4).bfloat16()).dtype == torch.bfloat16


def test_an_activation_that_is_not_computed_is_refused_by_name() -> None:
    activation: Any = "relu2"
    with pytest.raises(UnsupportedModelError, match=r"^activation relu2"):
        GateUpParallelLinear(fused(6, gate=4, up=4), OPTIONS, activation)
