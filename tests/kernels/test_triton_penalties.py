"""Penalties by Triton's kernel against their twin, bit for bit."""

from __future__ import annotations

import pytest
import torch

from quire.kernels import reference_step
from quire.kernels.triton.penalties import penalise

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [pytest.mark.gpu] if DEVICE == "cuda" else []


@pytest.mark.parametrize(("num_rows", "vocab"), [(1, 7), (3, 2049), (2, 5000)])
def test_numbers_are_the_twins(num_rows: int, vocab: int) -> None:
    torch.manual_seed(vocab)
    counts = torch.randint(0, 4, (num_rows + 3, vocab), dtype=torch.int16)
    counts[torch.rand(counts.shape) < 0.3] |= -0x8000
    counts[torch.rand(counts.shape) < 0.1] |= reference_step.MOST_COUNTED
    logits = torch.randn(num_rows, vocab).mul_(9)
    logits[0, 3] = -torch.inf
    rows = torch.randperm(num_rows + 3)[:num_rows]
    penalties = torch.rand(num_rows, 3, dtype=torch.float64) * 3 - 1
    penalties[:, 0] = torch.rand(num_rows, dtype=torch.float64) + 0.5
    expected, found = logits.clone().to(DEVICE), logits.clone().to(DEVICE)
    table = rows.to(DEVICE), counts.to(DEVICE), penalties.to(DEVICE)
    reference_step.penalise(expected, *table)
    penalise(found, *table)
    assert torch.equal(found, expected)
    assert not torch.equal(found, logits.to(DEVICE))
