"""Factors of the angles' cos and sin, by the kind of a rotary embedding. No torch."""

from __future__ import annotations

import math

from quire.core.rope_settings import RopeSettings

# Features of `RopeSettings` that are computed here and in rope.py, which both runtimes take.
ROPE_FEATURES = frozenset(
    f"RopeSettings.{name}"
    for name in (
        "kind=linear", "kind=dynamic", "kind=llama3", "kind=yarn", "kind=longrope", "factor",
        "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "truncate", "mscale",
        "mscale_all_dim", "attention_factor", "short_factor", "long_factor",
    )
)  # fmt: skip


def attention_factor(rope: RopeSettings) -> float:
    """The factor of cos and sin, and so of the attention's temperature. 1 for most kinds."""
    if rope.kind not in ("yarn", "longrope"):
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    factor = stretch(rope)
    if factor <= 1.0:
        return 1.0
    if rope.kind == "longrope":
        return math.sqrt(1 + math.log(factor) / math.log(rope.original_max_position))
    if rope.mscale and rope.mscale_all_dim:
        return _yarn_mscale(factor, rope.mscale) / _yarn_mscale(factor, rope.mscale_all_dim)
    return _yarn_mscale(factor, 1.0)


def stretch(rope: RopeSettings) -> float:
    """The ratio of the longest context to the one of training."""
    return rope.factor or rope.max_position / rope.original_max_position


def _yarn_mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0
