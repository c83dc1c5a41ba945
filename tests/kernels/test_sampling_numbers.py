"""The weights and shares of a draw against what they should be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.kernels import sampling_math

WORD = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize("temperature", [1e-3, 0.3, 1.0, 7.0, 100.0])
def test_weights_are_probabilities_relative_to_the_best(temperature: float) -> None:
    logits = np.random.default_rng(3).normal(scale=4.0, size=(1, 5000)).astype(np.float32)
    peaks = logits.max(axis=1, keepdims=True)
    slopes = sampling_math.slope(np.array([temperature]))
    depth = sampling_math.halvings(logits, peaks, slopes[:, None])
    found = sampling_math.weights(depth).astype(np.float64) / 2**sampling_math.WEIGHT_BITS
    exact = np.exp((logits.astype(np.float64) - peaks) / temperature)
    slack = exact * (4e-7 + 1.3e-7 * depth) + 2.0**-sampling_math.WEIGHT_BITS
    assert (np.abs(found - exact) <= slack).all()
    assert found.max() == 1.0


def test_what_is_far_away_weighs_nothing() -> None:
    depth = np.array([0.0, 1.0, 39.0, 40.0, 41.5, 64.0, 1e30, np.inf], np.float32)
    assert sampling_math.weights(depth).tolist() == [2**40, 2**39, 2, 1, 0, 0, 0, 0]


@given(st.lists(st.tuples(st.integers(0, 2**62), WORD), min_size=1, max_size=9))
def test_shares_are_computed_in_128_bits(pairs: list[tuple[int, int]]) -> None:
    totals = np.array([total for total, _ in pairs])
    whole, rest = sampling_math.share_of(totals, np.array([bits for _, bits in pairs], np.uint64))
    wide = [total * bits for total, bits in pairs]
    assert whole.tolist() == [value >> 64 for value in wide]
    assert rest.tolist() == [value % 2**64 for value in wide]


@given(st.floats(0, 1, exclude_max=True))
def test_the_bits_of_a_share_are_those_of_the_number(share: float) -> None:
    bits = int(sampling_math.share_bits(np.array([share]))[0])
    assert abs(bits / 2**64 - share) <= 2.0**-53
    assert (bits > 0) == (share > 0)
