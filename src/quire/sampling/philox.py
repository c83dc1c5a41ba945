"""Counter-based random numbers: a pure function of (seed, position), without state.

Owns Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3",
SC'11) and the uniforms made from it; does not own what they are used for. A request therefore
draws the same numbers alone, in a batch, after a preemption and after a restart. It is numpy, on
the host: seeds and positions are known before the logits are, and there are few rows.
"""

from __future__ import annotations

import numpy as np

from quire.array_types import Floats, Ints, Words

_ROUNDS = 10
_LOW = 0xFFFFFFFF
_MASK = np.uint64(_LOW)
_SHIFT = np.uint64(32)
_MULTIPLIERS = np.array([0xCD9E8D57, 0xD2511F53], np.uint64)  # of words 2 and 0
_WEYL = np.array([0x9E3779B9, 0xBB67AE85], np.uint64)  # golden ratio, sqrt(3) - 1
_KEY_STEPS = np.arange(_ROUNDS, dtype=np.uint64)[:, None, None] * _WEYL  # [rounds, 1, 2]


def philox4x32(counter: Words, key: Words) -> Words:
    """Encrypt 128-bit counters [S, 4] under 64-bit keys [S, 2]: 32-bit words [S, 4]."""
    even, odd = counter[:, 0::2], counter[:, 1::2]  # [S, 2]: words 0, 2 and words 1, 3
    for round_key in (key + _KEY_STEPS) & _MASK:
        wide = even[:, ::-1] * _MULTIPLIERS
        even, odd = (wide >> _SHIFT) ^ odd ^ round_key, wide & _MASK
    words = np.empty_like(counter)
    words[:, 0::2], words[:, 1::2] = even, odd
    return words


def uniforms(seeds: Ints, positions: Ints) -> Floats:
    """One number in [0, 1) for each row, a multiple of 2^-53. seeds, positions: [S]."""
    counter = np.zeros((len(seeds), 4), np.uint64)
    counter[:, 0], counter[:, 1] = positions & _LOW, positions >> 32
    key = np.empty((len(seeds), 2), np.uint64)
    key[:, 0], key[:, 1] = seeds & _LOW, (seeds >> 32) & _LOW
    words = philox4x32(counter, key)
    high, low = words[:, 0] >> np.uint64(5), words[:, 1] >> np.uint64(6)  # 27 and 26 bits
    return (high * np.float64(2.0**26) + low) * np.float64(2.0**-53)
