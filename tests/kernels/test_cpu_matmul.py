"""Products with packed weights: any number of rows, few different ones."""

from __future__ import annotations

import pytest
import torch

from quire.kernels.cpu.matmul import linear, padded, prepare_linear


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
    found = linear(x, prepare_linear(weight), bias)
    assert found.shape == (num_rows, 40)
    assert found.is_contiguous()
    torch.testing.assert_close(found, x @ weight.T + bias)
