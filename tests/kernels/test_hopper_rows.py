"""Products of many rows in FP8 on a Hopper GPU: Gluon has no interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from twins import normal

from quire.kernels.operands import Fp8Rows, Fp8Weight
from quire.kernels.reference import FP8
from quire.kernels.triton.hopper import hopper_fp8_gemm
from quire.kernels.triton.hopper.hopper_fp8_gemm import multiply_rows
from quire.kernels.triton.launch.gemm_config import RingConfig
from quire.kernels.triton.launch.workspace import workspace
from quire.kernels.triton.ops.fp8_linear import FP8 as FP8_LINEAR
from quire.kernels.triton.step import elementwise
from quire.kernels.triton.step.elementwise import quantize_rows

pytestmark = pytest.mark.gpu("Hopper")
DEVICE = torch.device("cuda", 0)
CONFIGS = [
    RingConfig(64, 2, tiles=2),
    RingConfig(64, 3, split=2),
    RingConfig(64, 3, split=3),
    RingConfig(64, 2, split=4, tiles=2),
    RingConfig(128, 4, split=8, warps=8),
]
SHAPES = [(96, 272), (208, 1040), (4096, 2064)]
NAN = float("nan")


def nan_behind(rows: int, columns: int, seed: int) -> Tensor:
    """Codes followed in memory by rows of NaN."""
    codes = normal(rows + 3, columns, dtype=torch.float32, seed=seed).to(DEVICE, FP8)
    codes[rows:] = NAN
    return codes[:rows]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("m", [17, 40, 65, 100, 127, 128, 129, 200, 256])
@torch.inference_mode()  # as scratch memory is made where an engine ran before
def test_gemms_equal_float32(m: int, config: RingConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = torch.empty
    monkeypatch.setattr(hopper_fp8_gemm.torch, "empty", lambda *a, **kw: empty(*a, **kw).fill_(NAN))
    space = workspace(DEVICE)
    for n, k in SHAPES:
        codes, weight = nan_behind(m, k, seed=m), nan_behind(n, k, seed=n)
        x_scale, scale = torch.rand(m, 1, device=DEVICE) + 0.5, torch.rand(n, device=DEVICE) + 0.5
        bias = torch.randn(n, device=DEVICE).bfloat16() if m % 2 else None
        exact = (codes.float() * x_scale) @ (weight.float() * scale[:, None]).T
        if bias is not None:
            exact += bias.float()
        space.partials.fill_(NAN)
        outs = [
            multiply_rows(Fp8Rows(codes, x_scale), weight, scale, bias, config) for _ in range(2)
        ]
        assert torch.equal(*outs)
        assert (outs[0].float() - exact).norm() < 5e-3 * exact.norm()
        assert not (space.arrivals % 256).any()


@pytest.mark.parametrize("m", [40, 64, 100, 128, 200, 256])
@pytest.mark.parametrize("split", [2, 4, 8])
def test_shared_sums_are_those_that_the_last_program_adds_up(
    m: int, split: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit, in launches of other splits and of other kernels behind each other."""
    x = quantize_rows(normal(m, 4096, dtype=torch.bfloat16).to(DEVICE))
    weight = normal(1000, 4096, dtype=torch.float32).to(DEVICE, FP8)
    scale, config = torch.rand(1000, device=DEVICE), RingConfig(64, 2, split=split)
    others = [RingConfig(64, 2, split=each) for each in (2, 3, 4, 8)]
    shared = []
    for other in 5 * others:
        multiply_rows(x, weight, scale, None, other)
        shared.append(multiply_rows(x, weight, scale, None, config))
    monkeypatch.setattr(hopper_fp8_gemm, "shares_of", lambda *_: 1)
    alone = multiply_rows(x, weight, scale, None, config)
    assert all(torch.equal(each, alone) for each in shared)


@pytest.mark.parametrize("rows", [1, 16, 17, 64, 128])
def test_long_sums_of_one_sign_keep_their_digits(rows: int) -> None:
    """Tensor cores keep some 14 bits of a sum: added up there alone it loses a fifth."""
    x = normal(rows, 14336, dtype=torch.bfloat16).to(DEVICE).abs()
    weight = normal(4096, 14336, dtype=torch.float32).to(DEVICE).abs()
    codes, scale = weight.to(FP8), torch.full([4096], 1 / 64, device=DEVICE)
    exact = x.double() @ (codes.double() / 64).T
    out = FP8_LINEAR.linear(x, Fp8Weight(codes, scale), None)
    assert (out - exact).norm() < 2e-2 * exact.norm()


@pytest.mark.parametrize("rows", [65, 200])
def test_launched_ahead_of_each_other_they_give_the_same_bits(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reads its weight while the kernel that rounds its x is still waiting."""
    weight = normal(2048, 2048, dtype=torch.float32).to(DEVICE, FP8)
    scale = torch.full([2048], 1 / 64, device=DEVICE)
    first = normal(rows, 2048, dtype=torch.bfloat16).to(DEVICE)

    def chain() -> Tensor:
        x = first
        for config in CONFIGS * 8:
            x = multiply_rows(quantize_rows(x), weight, scale, None, config)
            if not early:
                torch.cuda.synchronize()
        return x

    early = True
    results = [chain() for _ in range(20)]
    early = False
    monkeypatch.setattr(elementwise, "launches_early", lambda _: False)
    alone = chain()
    assert alone.isfinite().all()
    assert all(torch.equal(result, alone) for result in results)
