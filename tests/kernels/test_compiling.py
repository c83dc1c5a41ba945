"""Kernels compiled side by side: none is launched meanwhile, and all are there afterwards."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from child_process import run_to_end

from quire.kernels import reference
from quire.kernels.triton.compile import precompile
from quire.kernels.triton.step import elementwise


def test_other_processes_leave_what_this_one_would_compile(tmp_path: Path) -> None:
    script = Path(__file__).with_name("note_kernels.py")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = run_to_end(
        [sys.executable, script], env=environment | {"TRITON_CACHE_DIR": str(tmp_path)}
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"noted": 3, "on_disk": 3, "launchers": 2}


@pytest.mark.gpu
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
    with precompile.only_compiling():
        assert not elementwise.rms_norm(x, weight, 1e-5).any()
        compiled.append(elementwise.norm_kernel.device_caches[0][0])
    assert written
    before = len(compiled[0])
    result = elementwise.rms_norm(x, weight, 1e-5)
    assert len(compiled[0]) == before  # it was there
    torch.testing.assert_close(result, reference.rms_norm(x, weight, 1e-5))
