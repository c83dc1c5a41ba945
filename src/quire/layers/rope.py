"""Rotary position embeddings and RoPE scaling: from a token's position to its angles.

Owns the frequencies of each kind of scaling; applying them is a kernel. A token's angles
depend on its own position alone, never on the batch or on how a prompt was cut into chunks:
otherwise cached keys could not be shared. Two kinds are defined otherwise in transformers:

- dynamic: there, the frequencies follow the length of the sequence at each forward pass. Here a
  token at position p gets those of a sequence that ends with it. Both agree up to the trained
  length, and beyond it when tokens come one at a time; not for one long prefill.
- longrope: there, a sequence changes from short to long factors once it outgrows the trained
  length, and all its keys become stale. Here one set serves for good: the long one if sequences
  may grow beyond the trained length, else the short one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from quire.core.rope_settings import RopeSettings
from quire.kernels.rope_table import table_size
from quire.layers.parameter import LayerOptions
from quire.layers.rope_scale import attention_factor, stretch


class RotaryEmbedding(nn.Module):
    """Angles of a model's rotary embedding, computed once a step and shared by all layers.

    max_model_len: how long sequences may grow; longrope chooses its factors by it.
    """

    inv_freq: Tensor  # float32 [R / 2]

    def __init__(self, rope: RopeSettings, max_model_len: int, options: LayerOptions) -> None:
        super().__init__()
        self.rope = rope
        self.kernels, self.dtype = options.kernels, options.dtype
        self.scale = attention_factor(rope)
        frequencies = inverse_frequencies(rope, max_model_len).to(options.device)
        self.register_buffer("inv_freq", frequencies, persistent=False)
        # On a CPU those of the first positions are cached: a look-up takes a tenth of the time.
        self._cos = self._sin = torch.empty(0, rope.rotary_dim)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions int64 [T] → (cos, sin), each [T, R] in the model's data type.

        In the form of `reference.rotary`: angles twice in a row, sin's first half negated.
        """
        if positions.device.type != "cpu":
            return self._angles(positions)
        end = int(positions.max()) + 1
        if end > len(self._cos):
            self._cos, self._sin = self._angles(torch.arange(table_size(end)))
        return self._cos.index_select(0, positions), self._sin.index_select(0, positions)

    def _angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        inv_freq = self.inv_freq
        if self.rope.kind == "dynamic":
            inv_freq = _dynamic_frequencies(self.rope, positions)  # [T, R/2]
        return self.kernels.rope_angles(positions, inv_freq, self.scale, self.dtype)


def inverse_frequencies(rope: RopeSettings, max_model_len: int) -> Tensor:
    """Radians per position of each pair of dimensions: float32 [R/2]."""
    if rope.kind == "linear":
        assert rope.factor is not None
        return 1.0 / _wavelengths(rope) / rope.factor
    if rope.kind == "llama3":
        return _llama3_frequencies(rope)
    if rope.kind == "yarn":
        return _yarn_frequencies(rope)
    if rope.kind == "longrope":
        long = rope.takes_long_factors(max_model_len)
        factors = torch.tensor(rope.long_factor if long else rope.short_factor)
        return 1.0 / (factors * _wavelengths(rope))
    return 1.0 / _wavelengths(rope)


def _wavelengths(rope: RopeSettings) -> Tensor:
    """theta^(2i / R): positions per radian, float32 [R/2]."""
    exponents = torch.arange(0, rope.rotary_dim, 2, dtype=torch.float32) / rope.rotary_dim
    return rope.theta**exponents


def _dynamic_frequencies(rope: RopeSettings, positions: Tensor) -> Tensor:
    """NTK-aware scaling: the base grows with the length; float32 [T, R/2]."""
    assert rope.factor is not None
    dim, limit = rope.rotary_dim, rope.max_position
    lengths = (positions + 1).clamp(min=limit)  # int64 [T]
    growth = rope.factor * lengths / limit - (rope.factor - 1)
    bases = rope.theta * growth ** (dim / (dim - 2))
    exponents = torch.arange(0, dim, 2, dtype=torch.float32, device=positions.device) / dim
    return 1.0 / bases[:, None] ** exponents


def _llama3_frequencies(rope: RopeSettings) -> Tensor:
    """RoPE scaling of Llama 3: long wavelengths stretched, short ones kept, others interpolated."""
    assert rope.factor is not None
    inv_freq = 1.0 / _wavelengths(rope)
    wavelengths = 2 * math.pi / inv_freq
    low, high = rope.low_freq_factor, rope.high_freq_factor
    # of the unstretched frequency
    share = (rope.original_max_position / wavelengths - low) / (high - low)
    between = (1 - share) * inv_freq / rope.factor + share * inv_freq
    stretched = torch.where(
        wavelengths > rope.original_max_position / low, inv_freq / rope.factor, between
    )
    return torch.where(wavelengths < rope.original_max_position / high, inv_freq, stretched)


def _yarn_frequencies(rope: RopeSettings) -> Tensor:
    """YaRN (Peng et al., 2023): a ramp over dimensions from unchanged to stretched frequencies."""
    wavelengths = _wavelengths(rope)
    low = _yarn_dimension(rope, rope.beta_fast)
    high = _yarn_dimension(rope, rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary_dim - 1)
    if low == high:
        high += 0.001
    steps = torch.arange(rope.rotary_dim // 2, dtype=torch.float32)
    share = 1 - ((steps - low) / (high - low)).clamp(0, 1)
    return (1.0 / (stretch(rope) * wavelengths)) * (1 - share) + (1.0 / wavelengths) * share


def _yarn_dimension(rope: RopeSettings, rotations: float) -> float:
    """The dimension whose angle makes `rotations` turns over the trained context."""
    ratio = rope.original_max_position / (rotations * 2 * math.pi)
    return rope.rotary_dim * math.log(ratio) / (2 * math.log(rope.theta))
