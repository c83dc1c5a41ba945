"""The rules of many rows by weights of a byte each, against what was measured on one H200."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from quire.kernels.triton.gemm.block_config import block_config
from quire.kernels.triton.gemm.block_config import expected_us as blocks_us
from quire.kernels.triton.gemm.byte_rows_config import byte_rows_config
from quire.kernels.triton.gemm.byte_rows_config import expected_us as rows_us
from quire.kernels.triton.ops.byte_linear import stays_exact

RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "gpu_weights_bytes.json"
SMS = 132
US = {
    (row["n"], row["k"], row["m"], row["format"]): row["us"]
    for row in json.loads(RESULT.read_text())["rows"]
}
SHAPES = sorted({(n, k, m) for n, k, m, _ in US if m >= 128})
EACH = pytest.mark.parametrize("shape", SHAPES, ids=str)


def expected(n: int, k: int, m: int) -> dict[str, float]:
    """Microseconds by the rules: rounded in blocks, or not."""
    blocks, rows = block_config(m, n, k, SMS), byte_rows_config(m, n, k, SMS)
    assert blocks is not None
    return {
        "fp8_block": blocks_us(m, n, k, SMS, blocks),
        "int8_group:exact": rows_us(m, n, k, SMS, rows),
    }


@EACH
def test_expected_times_are_about_those_measured(shape: tuple[int, int, int]) -> None:
    for name, us in expected(*shape).items():
        assert 0.72 < us / US[*shape, name] < 1.15, (name, us, US[*shape, name])


@EACH
def test_expected_times_are_in_the_order_of_those_measured(shape: tuple[int, int, int]) -> None:
    """Where two are more than 15 % apart."""
    found = expected(*shape)
    for one, other in itertools.permutations(found, 2):
        if 1.15 * US[*shape, one] < US[*shape, other]:
            assert found[one] < found[other], (one, other)


@EACH
def test_rows_are_rounded_where_that_is_faster(shape: tuple[int, int, int]) -> None:
    """Few rows stay exact at hardly any price beyond bfloat16's time."""
    _, k, m = shape
    exact = stays_exact("s8", m, k)
    taken = US[*shape, "int8_group:exact" if exact else "int8_group"]
    other = US[*shape, "bf16" if m <= 128 else "int8_group" if exact else "int8_group:exact"]
    assert taken <= 1.09 * other


def test_a_layer_of_few_rows_takes_no_longer_than_in_bfloat16() -> None:
    few = [shape for shape in SHAPES if stays_exact("s8", shape[2], shape[1]) and shape[2] <= 128]
    taken = sum(US[*shape, "int8_group:exact"] for shape in few)
    assert len(few) == 4
    assert taken <= sum(US[*shape, "bf16"] for shape in few)
