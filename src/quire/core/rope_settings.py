"""Settings of a rotary position embedding (RoPE). No torch; read from config files in `models/`."""

from __future__ import annotations

import msgspec

ROPE_KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


class RopeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The rotary embedding: its kind, and what that kind needs (the rest keeps its default).

    theta: base of the wavelengths. rotary_dim: number of dimensions of each head that are rotated.
    max_position: the model's context limit; original_max_position: the one it was trained with.
    attention_factor: multiplies cos and sin; None lets the kind derive it.
    """

    kind: str
    theta: float
    rotary_dim: int
    max_position: int
    original_max_position: int
    factor: float | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()

    def takes_long_factors(self, max_model_len: int) -> bool:
        """Whether, of two sets of factors, it takes that for sequences longer than in training."""
        return self.kind == "longrope" and max_model_len > self.original_max_position
