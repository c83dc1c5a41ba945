"""The compiled kernels of a CPU beside their twins, for each instruction set that runs here."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator

import pytest
import torch

from quire.errors import ConfigError
from quire.kernels import reference
from quire.kernels.cpu import native
from quire.kernels.dispatch import kernels_for

pytestmark = pytest.mark.skipif(native.library() is None, reason="the kernels were not built")

SETS = ["avx2", "avx512"]


@pytest.fixture(params=SETS)
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    lib = native.library()
    assert lib is not None
    if lib.quire_cpu_choose(request.param.encode()) is None:
        pytest.skip(f"this processor does not run {request.param}")
    yield request.param
    lib.quire_cpu_choose(None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 16), (3, 77), (2, 5, 64), (300, 128)])
@pytest.mark.usefixtures("instruction_set")
def test_rms_norm(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, weight = torch.randn(shape).to(dtype), torch.randn(shape[-1]).to(dtype)
    expected = reference.rms_norm(x.float(), weight.float(), 1e-5)
    found = kernels_for("cpu").rms_norm(x, weight, 1e-5)
    assert found.dtype == dtype
    rounding = 2**-8 if dtype == torch.bfloat16 else 1e-6
    torch.testing.assert_close(found.float(), expected, rtol=rounding, atol=1e-6)


def test_every_thread_may_call_at_once() -> None:
    """Whoever comes while the pool is taken works alone; nobody waits for ever or mixes rows."""
    x, weight = torch.randn(999, 64), torch.ones(64)
    expected = native.rms_norm(x, weight, 1e-5)
    wrong: list[int] = []

    def call(number: int) -> None:
        found = [native.rms_norm(x, weight, 1e-5) for _ in range(200)]
        if not all(torch.equal(one, expected) for one in found):
            wrong.append(number)

    threads = [threading.Thread(target=call, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "library", native.library.__wrapped__)
    monkeypatch.setenv(native.VARIABLE, "torch")
    assert native.library() is None
    monkeypatch.setenv(native.VARIABLE, "avx2")
    assert isinstance(native.library(), ctypes.CDLL)
    monkeypatch.setenv(native.VARIABLE, "sse")
    with pytest.raises(ConfigError, match="'sse', which this processor does not run"):
        native.library()
    monkeypatch.delenv(native.VARIABLE)
    assert native.library() is not None
