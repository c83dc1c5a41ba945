"""Products whose weight comes through a ring, on a Hopper GPU: Gluon has no interpreter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from twins import normal

from quire.kernels import reference
from quire.kernels.operands import Fp8Weight, ResidualState
from quire.kernels.triton.launch.gemm_config import RingConfig
from quire.kernels.triton.launch.workspace import workspace
from quire.kernels.triton.ops.gpu_linear import FEW
from quire.kernels.triton.ops.skinny_gemm import skinny_gemm, skinny_gemm_norm, skinny_gemm_silu

pytestmark = pytest.mark.gpu("Hopper")
DEVICE = torch.device("cuda", 0)
SHAPES = [(1, 64, 128), (3, 200, 1008), (8, 384, 4096), (17, 100, 528), (64, 130, 1040)]
SHAPES += [(16, 272, 1024), (33, 208, 1040), (64, 512, 2064)]
CONFIGS = [
    RingConfig(64, 4),
    RingConfig(64, 3, split=3, tiles=2),
    RingConfig(128, 3, split=8, warps=8),
    RingConfig(256, 2, split=2, warps=8),
]
# each shape in each way, few rows by turns in FP8: a kernel of this kind takes seconds to compile
CASES = [
    (shape, config, 1 if shape[0] <= FEW and (row + column) % 2 else 2)
    for row, shape in enumerate(SHAPES)
    for column, config in enumerate(CONFIGS)
]


def weight_of(n: int, k: int, itemsize: int) -> tuple[Tensor | Fp8Weight, Tensor]:
    """A weight in its format, and the numbers that it represents."""
    plain = (normal(n, k, dtype=torch.bfloat16, seed=n) / k**0.5).to(DEVICE, torch.bfloat16)
    if itemsize == 2:
        return plain, plain.float()
    codes, scale = reference.quantize_fp8(plain)
    return Fp8Weight(codes, scale), codes.float() * scale[:, None]


def near(ours: Tensor, exact: Tensor) -> None:
    """Equal but for rounding to bfloat16 and the lower precision of FP8 sums."""
    assert (ours.float() - exact).norm() < 1e-2 * exact.norm()


@pytest.mark.parametrize(("shape", "config", "itemsize"), CASES)
def test_a_ring_gives_what_float32_gives(
    shape: tuple[int, int, int], config: RingConfig, itemsize: int
) -> None:
    m, n, k = shape
    x = normal(m, k, dtype=torch.float32).mul(4).round().div(4)  # FP8 holds these
    x = x.clamp(-3.75, 3.75).to(DEVICE, torch.bfloat16)
    residual = normal(m, n, dtype=torch.bfloat16, seed=1).to(DEVICE)
    bias = normal(n, dtype=torch.bfloat16, seed=2).to(DEVICE)
    norm = normal(n, dtype=torch.bfloat16, seed=3).to(DEVICE)
    weight, wide = weight_of(n, k, itemsize)
    exact = x.float() @ wide.T + bias.float() + residual.float()
    near(skinny_gemm(x, weight, bias=bias, residual=residual, config=config), exact)
    normalized = skinny_gemm_norm(x, weight, residual, norm, 1e-5, bias=bias, config=config)
    assert isinstance(normalized.rows, Tensor)
    assert normalized.squares is not None
    near(normalized.residual, exact)
    near(normalized.rows, normalized.residual.float() * norm.float())
    near(normalized.squares.sum(0), normalized.residual.float().square().sum(-1))
    squares = normal(70, m, dtype=torch.float32, seed=4).abs().to(DEVICE)
    pairs, wide = weight_of(2 * n, k, itemsize)
    ours = skinny_gemm_silu(ResidualState(x, x, norm, 1e-5, squares), pairs, config=config)
    divisor = torch.rsqrt(squares.sum(0) / k + 1e-5)[:, None]
    gate, up = (x.float() @ wide.T * divisor).unflatten(-1, (-1, 2)).unbind(-1)
    near(ours, F.silu(gate) * up)
    assert not workspace(DEVICE).counters.any()


@pytest.mark.parametrize("itemsize", [1, 2])
@pytest.mark.parametrize("rows", [3, 16])
def test_gemms_with_programmatic_launch_give_the_same_bits(rows: int, itemsize: int) -> None:
    """Each reads its weight while the previous kernel, whose result it needs, still runs."""
    weight, _ = weight_of(2048, 2048, itemsize)
    first = normal(rows, 2048, dtype=torch.bfloat16).to(DEVICE)
    results: list[Tensor] = []
    for _ in range(20):
        x = first
        for config in CONFIGS * 4:
            x = skinny_gemm(x, weight, config=config)
        results.append(x)
    for config in CONFIGS * 4:
        first = skinny_gemm(first, weight, config=config, pdl=False)
        torch.cuda.synchronize()
    assert first.isfinite().all()
    assert all(torch.equal(result, first) for result in results)
