"""Products of some hundred rows in FP8: the kernel against float32, and when it is chosen."""

from __future__ import annotations

import pytest
import torch
from test_triton_kernels import ON_GPU, moved

from quire.kernels.operands import Fp8Rows
from quire.kernels.reference import FP8
from quire.kernels.triton.split_gemm import split_gemm
from quire.kernels.triton.tuning import SplitConfig, split_rule

ON_HOPPER = ON_GPU and torch.cuda.get_device_capability()[0] == 9
pytestmark = [pytest.mark.gpu] if ON_GPU else []
SMALL = [
    (70, 96, 256, SplitConfig(64, 64, 2, 4)),
    (65, 48, 272, SplitConfig(128, 64, 1, 6)),
    (130, 80, 400, SplitConfig(64, 64, 3, 4)),
]
H200 = 132


@pytest.mark.skipif(ON_GPU and not ON_HOPPER, reason="multiplies FP8 by FP8 from shared memory")
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    ("m", "n", "k", "way"),
    SMALL + [(100, 4096, 4096, split_rule(100, 4096, 4096, H200))] * ON_HOPPER,
)
def test_products_equal_float32s(m: int, n: int, k: int, way: SplitConfig, has_bias: bool) -> None:
    torch.manual_seed(m)
    x, weight = torch.randn(m, k).to(FP8), torch.randn(n, k).to(FP8)
    x_scale, scale = torch.rand(m, 1) + 0.5, torch.rand(n) + 0.5
    bias = torch.randn(n).bfloat16() if has_bias else None
    expected = (x.float() * x_scale) @ (weight.float() * scale[:, None]).T
    if bias is not None:
        expected += bias.float()
    rows = Fp8Rows(*map(moved, (x, x_scale)))
    for _ in range(2):  # counters are as they were
        out = split_gemm(rows, moved(weight), moved(scale), moved(bias), way).float().cpu()
        assert (out - expected).norm() / expected.norm() < 5e-3


def test_the_rule_leaves_no_multiprocessor_two_tiles() -> None:
    assert split_rule(128, 4096, 4096, H200) == SplitConfig(128, 64, 2, 6)
    assert split_rule(65, 4096, 14336, H200) == SplitConfig(128, 64, 2, 6)
    assert split_rule(100, 6144, 4096, H200) == SplitConfig(128, 64, 1, 6)
    assert split_rule(100, 28672, 4096, H200) is None
    assert split_rule(64, 4096, 4096, H200) is split_rule(129, 4096, 4096, H200) is None
