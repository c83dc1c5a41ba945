from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.sampling.logit_blocks import BLOCK, Rows
from quire.sampling.ranking import highest, ranked


def plain_ranking(row: np.ndarray, width: int) -> list[int]:
    return sorted(range(len(row)), key=lambda i: (-row[i], i))[:width]


def logits_with_ties(count: int, vocab: int, seed: int, levels: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(count, vocab, generator=generator)
    return (values * levels).round() / levels


def check(logits: torch.Tensor, width: int) -> None:
    rows = Rows.of(logits.numpy())
    ids, values = ranked(rows, width)
    for row, row_ids, row_values in zip(logits.numpy(), ids.tolist(), values, strict=True):
        assert row_ids == plain_ranking(row, width)
        assert np.array_equal(row_values, row[row_ids])
    assert highest(rows).tolist() == [plain_ranking(row, 1)[0] for row in logits.numpy()]


@given(st.integers(1, 700), st.integers(1, 4), st.integers(0, 99), st.integers(1, 20), st.data())
def test_small_vocabularies(vocab: int, count: int, seed: int, levels: int, data) -> None:
    check(logits_with_ties(count, vocab, seed, levels), data.draw(st.integers(1, vocab)))


@pytest.mark.parametrize("levels", [1, 30, 10**6])
@pytest.mark.parametrize(
    ("vocab", "width"),
    [
        (9000, 64),  # chosen blocks
        (9001, 20),
        (9001, 700),  # all at once
        (20_000, 1000),  # one selection, then few
        (20_001, 9000),  # one long sort
        (20_001, 20_001),
    ],
)
def test_every_search_strategy(vocab: int, width: int, levels: int) -> None:
    check(logits_with_ties(3, vocab, seed=vocab + width, levels=levels), width)


def test_signed_zeros_and_infinities() -> None:
    row = torch.tensor([[-0.0, 0.0, -torch.inf, 3e38, -3e38, 1e-45, -1e-45, -torch.inf]])
    assert ranked(Rows.of(row.numpy()), 8)[0].tolist() == [[3, 5, 0, 1, 6, 4, 2, 7]]


def test_equal_logits_are_ranked_by_id() -> None:
    flat = Rows.of(np.zeros((2, 50 * BLOCK), np.float32))
    assert ranked(flat, 20)[0].tolist() == [list(range(20))] * 2
    assert highest(flat).tolist() == [0, 0]


def test_selected_rows_are_those_of_the_whole() -> None:
    logits = logits_with_ties(6, 9000, seed=3, levels=50)
    rows = Rows.of(logits.numpy()).select(np.array([4, 1]))
    assert np.array_equal(rows.logits[rows.samples, :9000], logits[[4, 1]].numpy())
    assert np.array_equal(ranked(rows, 30)[0], ranked(Rows.of(logits[[4, 1]].numpy()), 30)[0])
