"""Layers with FP8 weights where products are fused with norm, SiLU and residual, as on a GPU.

The kernels run in Triton's interpreter, whose rounding to FP8 is not the GPU's, so they widen here.
"""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # told before any kernel is imported

from quire.kernels.dispatch import kernels_for
from quire.layers.linear import FusedQuantizedLinear, GateUpParallelLinear, RowParallelLinear
from quire.layers.norm import RMSNorm
from quire.layers.parameter import LayerOptions, Weight
from quire.quantization.scheme import SCHEMES


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU activations are rounded, too")
@pytest.mark.parametrize("tokens", [3, 70])
def test_a_layer_with_all_that_is_fused_equals_one_without(
    tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr("quire.kernels.triton.skinny_gemm.multiplies_fp8", lambda _: False)
    monkeypatch.setattr("quire.kernels.triton.fp8.multiplies_fp8", lambda _: False)
    x = torch.randn(tokens, 64, generator=torch.Generator().manual_seed(0)).half()
    ours, plain = (mlp(x.clone(), device) for device in ("cuda", "cpu"))
    assert F.cosine_similarity(ours.float().flatten(), plain.float().flatten(), dim=0) > 0.9999


def mlp(x: Tensor, kernels: str) -> Tensor:
    """The stream x behind an MLP, by the kernels of a device."""
    options = LayerOptions(torch.float16, torch.device("cpu"), kernels_for(kernels), SCHEMES["fp8"])
    first = RowParallelLinear(64, 64, options)
    gate_up = GateUpParallelLinear(64, 48, options, bias=False)
    down = RowParallelLinear(48, 64, options)
    norm = RMSNorm(64, 1e-5, options)
    norm.weight.fill_(1.0)
    for seed, layer in enumerate((first, gate_up, down)):
        assert isinstance(layer.weight, Weight)
        layer.weight.allocate()
        generator = torch.Generator().manual_seed(seed)
        layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator) / 8)
        layer.process_after_load()
        assert isinstance(layer.method, FusedQuantizedLinear) == (kernels == "cuda")
    stream = first.method.add_norm(first, x, x.clone(), norm)
    hidden = gate_up.method.apply_silu(gate_up, stream)
    return down.method.add_norm(down, hidden, stream.residual, norm).residual
