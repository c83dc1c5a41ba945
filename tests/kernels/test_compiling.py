"""Kernels compiled side by side: none is launched meanwhile, and all are there afterwards."""

from __future__ import annotations

import pytest
import torch

from quire.kernels import reference
from quire.kernels.triton import compiling, elementwise

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_launches_compile_and_write_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(3, 1, 72, device="cuda")  # float32 heads of 72: nobody else's shape
    weight = torch.randn(72, device="cuda")
    written: list[torch.Tensor] = []
    empty = torch.empty

    def zeros(*args: object, **options: object) -> torch.Tensor:
        written.append(empty(*args, **options).zero_())
        return written[-1]

    monkeypatch.setattr(torch, "empty", zeros)
    compiled = []
    with compiling.only_compiling():
        assert not elementwise.rms_norm(x, weight, 1e-5).any()
        compiled.append(elementwise.norm_kernel.device_caches[0][0])
    assert written
    before = len(compiled[0])
    result = elementwise.rms_norm(x, weight, 1e-5)
    assert len(compiled[0]) == before  # it was there
    torch.testing.assert_close(result, reference.rms_norm(x, weight, 1e-5))
