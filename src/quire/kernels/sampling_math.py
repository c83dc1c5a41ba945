"""What a draw is made of, in numbers that every device computes alike.

A token's weight is its probability as a multiple of the most probable token's, in units of 2^-40:
an integer, so that sums are exact whatever their order. It is made of float32 subtractions,
products and sums, each rounded as IEEE 754 says and none fused, so that a CPU, a GPU and Triton's
kernels agree on every bit. Owns these numbers; does not own what is drawn with them: see the
sampling room, whose host sampler is the twin of the kernels in `triton/sampling.py`. No torch.

A weight is off by a relative 4e-7 and 1.3e-7 for each halving, less than float32 logits are worth;
tokens 2^41 times less probable than the best have none.
"""

from __future__ import annotations

import numpy as np

from quire.array_types import Floats, Ints, Singles, Words

WEIGHT_BITS = 40  # of the most probable token's weight; 2^23 such weights fit in an int64
DEEPEST = 64.0  # halvings; all that is further away is as far, and weighs nothing
# 2^-r = 1 + r · (C0 + r · (C1 + ...)) within 3e-7 for |r| <= 1/2, and exactly 1 at 0
C0, C1, C2 = -0.6931471824645996, 0.2402234822511673, -0.055503569543361664
C3, C4 = 0.009666373953223228, -0.0013390866806730628
ONE = 2.0**WEIGHT_BITS


def slope(temperature: Floats) -> Singles:
    """The halvings that a logit's unit is worth: log2(e) / temperature, [N]."""
    return (np.float64(np.log2(np.e)) / temperature).astype(np.float32)


def halvings(logits: Singles, peaks: Singles, slopes: Singles) -> Singles:
    """How often the peak's weight is halved to get each token's: at least 0.

    logits [N, W], peaks and slopes [N, 1], peaks finite. A higher logit never has more.
    """
    with np.errstate(over="ignore"):  # so far away that it weighs nothing
        depth = peaks - logits
        depth *= slopes
    return depth


def weights(depth: Singles) -> Singles:
    """2^(40 - depth) for each number of halvings, rounded down: whole numbers in float32."""
    rest = np.minimum(depth, np.float32(DEEPEST))
    whole = rest + np.float32(0.5)
    np.trunc(whole, out=whole)
    rest -= whole  # at most 1/2, exactly
    value = rest * np.float32(ONE * C4)
    for coefficient in (C3, C2, C1, C0):
        value += np.float32(ONE * coefficient)
        value *= rest
    value += np.float32(ONE)
    halved = whole.astype(np.int32)
    halved <<= 23
    exponents = value.view(np.int32)
    exponents -= halved
    return np.trunc(value, out=value)


def min_p_depth(min_p: Floats) -> Singles:
    """The most halvings at which min-p keeps a token: infinite where min_p is 0; [N]."""
    with np.errstate(divide="ignore"):
        return -np.log2(min_p).astype(np.float32)


def share_bits(share: Floats) -> Words:
    """Shares in [0, 1) in units of 2^-64, to 53 bits and above 0 unless they are 0: uint64 [N]."""
    whole = np.maximum(np.rint(share * 2.0**53), share > 0)
    return whole.astype(np.uint64) << np.uint64(11)


def share_of(total: Ints, bits: Words) -> tuple[Ints, Words]:
    """total · bits / 2^64 in whole, rounded down, and the rest in units of 2^-64: [N], [N].

    The product has 128 bits and is put together of four products of halves.
    """
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    unsigned = total.astype(np.uint64)
    a1, a0, b1, b0 = unsigned >> half, unsigned & low, bits >> half, bits & low
    upper = a1 * b0 + (a0 * b0 >> half)
    lower = a0 * b1 + (upper & low)
    whole = a1 * b1 + (upper >> half) + (lower >> half)
    return whole.astype(np.int64), unsigned * bits
