"""The numbers from which a token is sampled, computed bit for bit alike on every device.

A token's weight is its probability as a multiple of the most probable token's, in units of 2^-40:
an integer, so that sums are exact in any order. It is computed by float32 subtractions, products
and sums, each rounded by IEEE 754 and none fused, so CPU, GPU and Triton kernels agree bit for bit.
How tokens are drawn with them is in `quire.sampling`, whose host sampler is the twin of the kernels
in `triton/sampling`. No torch.

A weight's relative error is 4e-7 plus 1.3e-7 for each halving, less than that of float32 logits.
Tokens 2^41 times less probable than the best have weight 0.
"""

from __future__ import annotations

import numpy as np

from quire.array_types import Floats, Ints, Singles, Words

WEIGHT_BITS = 40  # the most probable token's weight is 2^40; 2^23 such weights fit in an int64
DEEPEST = 64.0  # halvings are clipped here, where the weight is 0 anyway
# 2^-r = 1 + r · (C0 + r · (C1 + ...)) within 3e-7 for |r| <= 1/2, and exactly 1 at 0
C0, C1, C2 = -0.6931471824645996, 0.2402234822511673, -0.055503569543361664
C3, C4 = 0.009666373953223228, -0.0013390866806730628
ONE = 2.0**WEIGHT_BITS


def slope(temperature: Floats) -> Singles:
    """Halvings of weight for a difference of 1 in the logit: log2(e) / temperature, [N]."""
    return (np.float64(np.log2(np.e)) / temperature).astype(np.float32)


def halvings(logits: Singles, peaks: Singles, slopes: Singles) -> Singles:
    """Halvings of the peak's weight that give each token's: float32 [N, W], >= 0.

    logits [N, W], peaks (the highest logits, finite) and slopes [N, 1]. Monotonic in the logit.
    """
    with np.errstate(over="ignore"):  # the weight is 0 then
        depth = peaks - logits
        depth *= slopes
    return depth


def weights(depth: Singles) -> Singles:
    """2^(40 - depth), rounded down to integers, for each number of halvings; in float32."""
    rest = np.minimum(depth, np.float32(DEEPEST))
    integer = rest + np.float32(0.5)
    np.trunc(integer, out=integer)
    rest -= integer  # at most 1/2, exactly
    value = rest * np.float32(ONE * C4)
    for coefficient in (C3, C2, C1, C0):
        value += np.float32(ONE * coefficient)
        value *= rest
    value += np.float32(ONE)
    halved = integer.astype(np.int32)
    halved <<= 23
    exponents = value.view(np.int32)
    exponents -= halved
    return np.trunc(value, out=value)


def min_p_depth(min_p: Floats) -> Singles:
    """The largest depth that min-p does not filter out, [N]; infinite where min_p is 0."""
    with np.errstate(divide="ignore"):
        return -np.log2(min_p).astype(np.float32)


def share_bits(share: Floats) -> Words:
    """Fractions in [0, 1) in units of 2^-64: uint64 [N], 53 bits exact, 0 only for 0."""
    integer = np.maximum(np.rint(share * 2.0**53), share > 0)
    return integer.astype(np.uint64) << np.uint64(11)


def share_of(total: Ints, bits: Words) -> tuple[Ints, Words]:
    """total · bits / 2^64: its integer part, and its fraction in units of 2^-64; [N], [N].

    The 128-bit product is computed from four products of 32-bit halves.
    """
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    unsigned = total.astype(np.uint64)
    a1, a0, b1, b0 = unsigned >> half, unsigned & low, bits >> half, bits & low
    upper = a1 * b0 + (a0 * b0 >> half)
    lower = a0 * b1 + (upper & low)
    integer = a1 * b1 + (upper >> half) + (lower >> half)
    return integer.astype(np.int64), unsigned * bits
