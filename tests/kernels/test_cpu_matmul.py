"""Linear operations that PyTorch serves on a CPU: types that are emulated, weights in FP8."""

from __future__ import annotations

import pytest
import torch

from quire.kernels import reference
from quire.kernels.cpu import torch_matmul
from quire.kernels.operands import Fp8Weight


@pytest.mark.parametrize("num_rows", [0, 1, 63, 65, 257])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_tiles_do_not_show(
    num_rows: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_matmul, "_TILE", 24 * 7)  # seven outputs, of 40
    monkeypatch.setattr(torch_matmul, "is_emulated", lambda _: True)
    torch.manual_seed(num_rows)
    x, weight, bias = (torch.randn(*size).to(dtype) for size in ((num_rows, 24), (40, 24), (40,)))
    close = {"rtol": 0.02, "atol": 0.02} if dtype != torch.float32 else {"rtol": 1e-5, "atol": 1e-5}
    for each in (weight, Fp8Weight(*reference.quantize_fp8(weight))):
        for added in (None, bias):
            found = torch_matmul.linear(x, each, added)
            assert (found.shape, found.dtype) == ((num_rows, 40), dtype)
            torch.testing.assert_close(found, reference.linear(x, each, added), **close)


def test_sums_of_no_inputs_are_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_matmul, "is_emulated", lambda _: True)
    x, weight = torch.empty(70, 0, dtype=torch.bfloat16), torch.empty(40, 0, dtype=torch.bfloat16)
    assert torch.equal(torch_matmul.linear(x, weight, None), x.new_zeros(70, 40))
