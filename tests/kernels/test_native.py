"""The compiled kernels of a CPU beside their twins, for each instruction set that runs here."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator

import pytest
import torch

from quire.errors import ConfigError
from quire.kernels import reference, reference_step
from quire.kernels.cpu import native, tensors
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 16, 77, 4096])
@pytest.mark.usefixtures("instruction_set")
def test_finite_rows(dtype: torch.dtype, size: int) -> None:
    x = torch.randn(40, size).to(dtype)
    for row, value in enumerate([torch.nan, torch.inf, -torch.inf, torch.finfo(dtype).max]):
        x[10 * row, (7 * row) % size] = value
    expected = [row not in (0, 10, 20) for row in range(40)]
    assert kernels_for("cpu").finite_rows(x).tolist() == expected


@pytest.mark.parametrize("size", [1, 63, 64, 65, 200, 5000])
@pytest.mark.usefixtures("instruction_set")
def test_highest(size: int) -> None:
    logits = (torch.randn(6, size) * 3).round()  # with equals, of which the first is taken
    logits[1] = -torch.inf
    logits[2, size // 2] = torch.inf
    ids, peaks = kernels_for("cpu").highest(logits)
    expected_ids, expected_peaks = reference_step.highest(logits)
    assert ids.tolist() == expected_ids.tolist()
    assert peaks.tolist() == expected_peaks.tolist()
    for place in {0, size // 2, size - 1}:  # NaN, wherever it is
        broken = logits.clone()
        broken[:, place] = torch.nan
        assert kernels_for("cpu").highest(broken)[1].isnan().all()


@pytest.mark.usefixtures("instruction_set")
def test_blocks_are_those_of_the_twins_to_the_bit() -> None:
    """Sampling is exact: what is drawn must not depend on where the weights were computed."""
    logits = torch.randn(5, 64 * 300) * torch.tensor([[0.1], [1], [5], [30], [1e30]])
    logits[:, ::9] = -torch.inf
    places = torch.tensor([4, 0, 3, 2])
    peaks, slopes = logits[places].amax(1), torch.tensor([1.44, 1.44, 0.2, 90.0])
    args = (logits, places, peaks, slopes)
    assert torch.equal(kernels_for("cpu").block_masses(*args), reference_step.block_masses(*args))
    logits[3, 70] = torch.nan
    found = kernels_for("cpu").block_maxima(logits, places)
    expected = reference_step.block_maxima(logits, places)
    assert torch.equal(found.nan_to_num(7e37), expected.nan_to_num(7e37))
    assert found[2, 1].isnan()


def test_every_thread_may_call_at_once() -> None:
    """Whoever comes while the pool is taken works alone; nobody waits for ever or mixes rows."""
    x, weight = torch.randn(999, 64), torch.ones(64)
    expected = tensors.rms_norm(x, weight, 1e-5)
    wrong: list[int] = []

    def call(number: int) -> None:
        found = [tensors.rms_norm(x, weight, 1e-5) for _ in range(200)]
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
    monkeypatch.setattr(native, "INTERFACE", -1)
    with pytest.raises(ConfigError, match="built for other code; install again"):
        native.library()
