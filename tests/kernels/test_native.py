"""The compiled kernels of a CPU beside their twins, for each instruction set that runs here."""

from __future__ import annotations

import ctypes
import sys
import threading

import numpy as np
import pytest
import torch
from child_process import run_to_end

from quire.errors import ConfigError
from quire.kernels import reference, reference_arrays
from quire.kernels.cpu import native, row_ops, tensor_ops
from quire.kernels.cpu.tensor_ops import as_array
from quire.kernels.dispatch import kernels_for

pytestmark = pytest.mark.skipif(native.library() is None, reason="the kernels were not built")


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
    assert row_ops.finite_rows(as_array(x)).tolist() == expected
    assert row_ops.finite_rows(as_array(x[:, :0].contiguous())).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_of_tensors_are_those_of_arrays(dtype: torch.dtype) -> None:
    x = torch.randn(3, 77).to(dtype)
    x[1, 76] = torch.nan
    bits = as_array(x)
    for finite_rows in (row_ops.finite_rows, reference_arrays.finite_rows):
        assert finite_rows(bits).tolist() == [True, False, True]
    assert np.array_equal(row_ops.in_float32(bits), x.float().numpy(), equal_nan=True)
    if dtype == torch.bfloat16:
        expected = x.float().numpy()
        for wide in (row_ops.to_float(bits), reference_arrays.to_float(bits)):
            assert np.array_equal(wide, expected, equal_nan=True)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 200, 5000])
@pytest.mark.usefixtures("instruction_set")
def test_highest(size: int) -> None:
    logits = np.random.default_rng(size).normal(scale=3.0, size=(6, size)).astype(np.float32)
    logits = logits.round()  # with equals, of which the first is taken
    logits[1] = -np.inf
    logits[2, size // 2] = np.inf
    for found, expected in zip(
        row_ops.highest(logits), reference_arrays.highest(logits), strict=True
    ):
        assert np.array_equal(found, expected)
    for index in {0, size // 2, size - 1}:  # NaN, wherever it is
        broken = logits.copy()
        broken[:, index] = np.nan
        assert np.isnan(row_ops.highest(broken)[1]).all()
        assert np.isnan(reference_arrays.highest(broken)[1]).all()


@pytest.mark.usefixtures("instruction_set")
def test_blocks_are_those_of_the_twins_to_the_bit() -> None:
    """Sampling is exact: what is drawn must not depend on where the weights were computed."""
    scales = np.array([[0.1], [1], [5], [30], [1e30]])
    logits = (np.random.default_rng(0).normal(size=(5, 64 * 300)) * scales).astype(np.float32)
    logits[:, ::9] = -np.inf
    rows = np.array([4, 0, 3, 2])
    slopes = np.array([1.44, 1.44, 0.2, 90.0], np.float32)
    args = (logits, rows, logits[rows].max(axis=1), slopes)
    masses = row_ops.block_masses(*args)
    assert masses.any(axis=1).all()
    assert np.array_equal(masses, reference_arrays.block_masses(*args))
    logits[3, 70] = np.nan
    found = row_ops.block_maxima(logits, rows)
    assert np.array_equal(found, reference_arrays.block_maxima(logits, rows), equal_nan=True)
    assert np.isnan(found[2, 1])


def test_every_thread_may_call_at_once() -> None:
    """A call that finds the pool in use computes in its own thread; rows are not mixed up."""
    x, weight = torch.randn(999, 64), torch.ones(64)
    expected = tensor_ops.rms_norm(x, weight, 1e-5)
    wrong: list[int] = []

    def call(number: int) -> None:
        found = [tensor_ops.rms_norm(x, weight, 1e-5) for _ in range(200)]
        if not all(torch.equal(one, expected) for one in found):
            wrong.append(number)

    threads = [threading.Thread(target=call, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_a_forked_process_has_threads_of_its_own() -> None:
    code = (
        "import os, numpy as np; from quire.kernels.cpu import native, row_ops\n"
        "native.set_num_threads(3), native.compiled()\n"
        "x, threads = np.ones((512, 4096), 'f4'), lambda: len(os.listdir('/proc/self/task'))\n"
        "before = threads()\n"
        "assert row_ops.finite_rows(x).all() and threads() == before + 2\n"
        "if child := os.fork():\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "elif not (row_ops.finite_rows(x).all() and threads() == 3):\n"
        "    os._exit(1)"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    ran = run_to_end(command)
    assert ran.returncode == 0, ran.stderr


def test_fewer_threads_work_where_the_system_has_no_more() -> None:
    code = (
        "import resource, numpy as np; from quire.kernels.cpu import native, row_ops\n"
        "native.set_num_threads(64), native.compiled()\n"
        "x, pages = np.ones((512, 4096), np.float32), open('/proc/self/statm').read().split()[0]\n"
        "most = int(pages) * resource.getpagesize() + (64 << 20)  # stacks of a few threads\n"
        "resource.setrlimit(resource.RLIMIT_AS, (most, most))\n"
        "assert row_ops.finite_rows(x).all()"
    )
    ran = run_to_end([sys.executable, "-c", code])
    assert ran.returncode == 0, ran.stderr


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
    monkeypatch.setenv(native.VARIABLE, "")  # as if it were not set, also without the library
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda _: None)
        assert native.library() is None
    monkeypatch.setattr(native, "INTERFACE", -1)
    with pytest.raises(ConfigError, match="built for other code; install again"):
        native.library()
