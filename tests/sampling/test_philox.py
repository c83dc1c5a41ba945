from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.sampling.philox import philox4x32, uniforms

WORD = st.integers(0, 2**32 - 1)
ONES = [0xFFFFFFFF] * 4

# the known answers that the authors publish with Random123
KNOWN_ANSWERS = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    (ONES, ONES[:2], [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


def plain_philox(counter: list[int], key: list[int]) -> list[int]:
    """One block in Python integers, as the paper writes it."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (
            (p1 >> 32) ^ c1 ^ k0,
            p1 & 0xFFFFFFFF,
            (p0 >> 32) ^ c3 ^ k1,
            p0 & 0xFFFFFFFF,
        )
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return [c0, c1, c2, c3]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_known_answers(counter: list[int], key: list[int], expected: list[int]) -> None:
    words = philox4x32(np.array([counter], np.uint64), np.array([key], np.uint64))
    assert words.tolist() == [expected]


@given(st.lists(st.lists(WORD, min_size=6, max_size=6), min_size=1, max_size=5))
def test_rows_equal_the_plain_version(rows: list[list[int]]) -> None:
    table = np.array(rows, np.uint64)
    words = philox4x32(table[:, :4].copy(), table[:, 4:].copy())
    assert words.tolist() == [plain_philox(row[:4], row[4:]) for row in rows]


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**62))
def test_a_uniform_is_made_of_seed_and_position(seed: int, position: int) -> None:
    key = seed % 2**64
    words = plain_philox(
        [position & 0xFFFFFFFF, position >> 32, 0, 0], [key & 0xFFFFFFFF, key >> 32]
    )
    expected = ((words[0] >> 5) * 2**26 + (words[1] >> 6)) / 2**53
    drawn = uniforms(np.array([seed]), np.array([position]))
    assert drawn.tolist() == [expected]
    assert 0.0 <= expected < 1.0


def test_seeds_and_positions_are_independent_streams() -> None:
    seeds, positions = np.meshgrid(np.arange(-500, 500), np.arange(100))
    numbers = uniforms(seeds.ravel(), positions.ravel())
    assert len(np.unique(numbers)) == 100_000
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.02


def test_uniforms_are_uniform(chi_square_p, assert_holm) -> None:
    by_position = uniforms(np.zeros(100_000, np.int64), np.arange(100_000))
    by_seed = uniforms(np.arange(100_000), np.zeros(100_000, np.int64))
    p_values = {}
    for name, numbers in (("positions", by_position), ("seeds", by_seed)):
        for bits in (6, 20):  # the leading bits, and some that follow them
            cells = (numbers * 2**bits).astype(np.int64) % 64
            expected = np.full(64, len(numbers) / 64)
            p_values[f"{name}, bit {bits}"] = chi_square_p(np.bincount(cells), expected)
    assert_holm(p_values)
