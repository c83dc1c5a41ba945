"""`quire.kernels.sampling_math` inside Triton kernels, bit for bit.

Kernels that use it are compiled without fused multiply-adds, which round differently.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quire.kernels import sampling_math

DEEPEST = tl.constexpr(sampling_math.DEEPEST)
ONE = tl.constexpr(sampling_math.ONE)
LEVELS = tl.constexpr(8)  # of depth; the last one takes everything deeper
HALVINGS = tl.constexpr(
    2.5
)  # where the first level ends; the others at 1.5, 2, 3, 4, 6, 8 times that
C0 = tl.constexpr(sampling_math.ONE * sampling_math.C0)
C1 = tl.constexpr(sampling_math.ONE * sampling_math.C1)
C2 = tl.constexpr(sampling_math.ONE * sampling_math.C2)
C3 = tl.constexpr(sampling_math.ONE * sampling_math.C3)
C4 = tl.constexpr(sampling_math.ONE * sampling_math.C4)


@triton.jit
def load_piece(logits_ptr, piece, vocab, PIECE: tl.constexpr):
    """The token ids and float32 logits [PIECE] of a piece; -inf beyond the vocabulary."""
    tokens = piece * PIECE + tl.arange(0, PIECE)
    x = tl.load(logits_ptr + tokens, mask=tokens < vocab, other=float("-inf"))
    return tokens, x.to(tl.float32)


@triton.jit
def cast_key(x):
    """int32 keys in the order of float32 x; -0.0 and 0.0 have one key."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def cast_logit(key):
    """The float32 logit that an int32 key stands for; inverse of `cast_key`."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def pack(key, token):
    """An int64 in the order in which tokens are sampled: by key, of equal ones the lower id."""
    return (key.to(tl.int64) << 32) | (0x7FFFFFFF - token).to(tl.int64)


@triton.jit
def packed_logit(packed):
    """The logit of a packed token."""
    return cast_logit((packed >> 32).to(tl.int32))


@triton.jit
def packed_token(packed):
    """The id of a packed token."""
    return 0x7FFFFFFF - (packed & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def low_float(word):
    """The float32 in the lower half of an int64."""
    return (word & 0xFFFFFFFF).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def depth_of(x, peak, slope):
    """Halvings of weight from the peak to logits x."""
    return (peak - x) * slope


@triton.jit
def bin_of(depth, scale, BINS: tl.constexpr):
    """The bin of a depth; the last bin takes everything deeper."""
    return tl.minimum(depth * scale, BINS - 1).to(tl.int32)


@triton.jit
def weight_of(depth):
    """2^(40 - depth), rounded down: int64."""
    rest = tl.minimum(depth, DEEPEST)
    integer = (rest + 0.5).to(tl.int32)
    rest = rest - integer.to(tl.float32)
    value = rest * C4
    value = (value + C3) * rest
    value = (value + C2) * rest
    value = (value + C1) * rest
    value = (value + C0) * rest
    bits = (value + ONE).to(tl.int32, bitcast=True) - (integer << 23)
    return bits.to(tl.float32, bitcast=True).to(tl.int64)


@triton.jit
def level_of(depth):
    """The level of a depth."""
    return tl.minimum(depth * (1.0 / HALVINGS), LEVELS - 1).to(tl.int32)


@triton.jit
def weight_within(depth, reach, deepest):
    """The weight of a token of level `reach` at most that min-p does not remove; 0 of others."""
    return tl.where((level_of(depth) <= reach) & (depth <= deepest), weight_of(depth), 0)


@triton.jit
def uniform_bits(seed, position):
    """The uniform number of (seed, position) in units of 2^-64: 53 bits of Philox4x32-10."""
    counter = position.to(tl.uint32)
    high, low, _, _ = tl.philox(seed, counter, counter * 0, counter * 0, counter * 0)
    return ((high >> 5).to(tl.uint64) << 37) | ((low >> 6).to(tl.uint64) << 11)


@triton.jit
def share_of(total, bits):
    """total · bits / 2^64, rounded down."""
    return tl.umulhi(total.to(tl.uint64), bits).to(tl.int64)


@triton.jit
def share_up(total, bits):
    """total · bits / 2^64, rounded up."""
    rest = total.to(tl.uint64) * bits
    return share_of(total, bits) + (rest != 0).to(tl.int64)
