"""Products with packed weights: any number of rows, few different ones."""

from __future__ import annotations

import pytest
import torch

from quire.kernels import reference_quantized
from quire.kernels.cpu.torch_matmul import linear, pack, padded


def test_a_product_is_made_with_few_numbers_of_rows() -> None:
    """oneDNN keeps what it compiles for each of them."""
    numbers = {rows: padded(rows) for rows in range(1, 4097)}
    assert len(set(numbers.values())) <= 80
    assert all(rows <= more <= rows * 9 / 8 for rows, more in numbers.items())
    assert all(numbers[rows] == rows for rows in range(1, 17))


@pytest.mark.parametrize("num_rows", [0, 1, 2, 16, 17, 63, 65, 257])
def test_padding_does_not_show(num_rows: int) -> None:
    torch.manual_seed(num_rows)
    x, weight, bias = torch.randn(num_rows, 24), torch.randn(40, 24), torch.randn(40)
    found = linear(x, pack(weight), bias)
    assert found.shape == (num_rows, 40)
    assert found.is_contiguous()
    torch.testing.assert_close(found, x @ weight.T + bias)


@pytest.mark.parametrize("num_inputs", [332, 513, 520, 528])
@pytest.mark.parametrize("num_rows", [1, 8, 15, 17])
def test_products_of_bytes_read_no_more_than_a_row(num_inputs: int, num_rows: int) -> None:
    torch.manual_seed(num_rows)
    x, weight = torch.randn(num_rows, num_inputs).bfloat16(), torch.randn(48, num_inputs)
    found = linear(x, reference_quantized.quantize_int8(weight), None)
    expected = x.float() @ weight.T
    assert torch.cosine_similarity(found.float().flatten(), expected.flatten(), 0) > 0.999
