"""Plain PyTorch versions of all operations: oracle in tests, documentation and fallback.

They are written to be read, not to be fast. They run on every device, and synchronise with it
where they need a tensor's values on the host. A faster version elsewhere is called the twin of the
function here.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.kernels.batch_layout import BatchLayout
from quire.kernels.formats.table import format_of
from quire.kernels.operands import (
    AttentionParams,
    HeadNorms,
    KVScales,
    LinearWeight,
    QuantizedWeight,
    QuantSpec,
    ResidualState,
    RopeWriteKV,
)
from quire.kernels.reference_fp8 import FP8 as FP8
from quire.kernels.reference_fp8 import FP8_MAX as FP8_MAX
from quire.kernels.reference_fp8 import linear_fp8 as linear_fp8
from quire.kernels.reference_fp8 import quantize_fp8 as quantize_fp8
from quire.kernels.reference_fp8 import quantize_rows as quantize_rows


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last dimension, computed in float32.

    x [..., H], weight [H]; the result has x's shape and dtype. (Zhang & Sennrich, 2019)
    """
    x32 = x.float()
    normalized = x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps)
    return weight * normalized.to(x.dtype)


def rms_norm_residual(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Add x to the residual stream and normalise the sum: (normalized, new residual), all [T, H].

    The residual passed in may be overwritten: faster versions add to it in place.
    """
    residual = residual + x
    return rms_norm(residual, weight, eps), residual


def silu_and_mul(x: Tensor) -> Tensor:
    """silu(gate) · up for x [T, 2I] = (gate, up); the result is [T, I]. (Shazeer, 2020)"""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def gelu_and_mul(x: Tensor) -> Tensor:
    """gelu(gate) * up, with GELU's approximation by tanh, for x [T, 2I] = (gate, up): [T, I]."""
    gate, up = x.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE: rotate pairs (i, i + R/2) of the first R dimensions by their token's angles.

    x [T, heads, D]; cos, sin [T, R] in x's dtype, R <= D; dimensions from R on are copied. Both
    halves of a row hold the same angles, and sin's first half is negated. (Su et al., 2021; the
    half layout is GPT-NeoX's)
    """
    dim = cos.shape[-1]
    rotated, rest = x[..., :dim], x[..., dim:]
    swapped = torch.cat([rotated[..., dim // 2 :], rotated[..., : dim // 2]], dim=-1)
    rotated = rotated * cos[:, None] + swapped * sin[:, None]
    return torch.cat([rotated, rest], dim=-1)


def write_kv(
    key: Tensor,
    value: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    scales: KVScales | None = None,
) -> None:
    """Write keys and values [T, Hkv, D] to slots [T] of the caches [blocks, size, Hkv, D].

    Tokens with a negative slot are not written. Rounding to FP8 or int8: see `write_cache`.
    """
    written = slot_mapping >= 0
    both = (None, None) if scales is None else (scales.keys, scales.values)
    for x, cache, own in zip((key, value), (k_cache, v_cache), both, strict=True):
        write_cache(x[written], cache, slot_mapping[written], own)


def write_cache(x: Tensor, cache: Tensor, slots: Tensor, scales: Tensor | None = None) -> None:
    """Write x [T, Hkv, D] to slots [T] of a cache [blocks, size, Hkv, D].

    A cache in FP8 saturates: values beyond ±448 become ±448, NaN stays NaN. One in int8 has rows as
    `quantize_heads` makes them, or codes alone, whose scales go to a tensor [blocks, size, Hkv].
    """
    flat = cache.flatten(0, 1)
    if cache.dtype == torch.int8:
        x = quantize_heads(x)
    if scales is not None:
        own = x[..., -2:].contiguous().view(torch.bfloat16)
        scales.flatten(0, 1).index_copy_(0, slots, own.squeeze(-1))
        x = x[..., :-2]
    if cache.dtype == FP8:  # PyTorch has index_copy_ for FP8 as bytes only
        x = x.clamp(-FP8_MAX, FP8_MAX).to(FP8).view(torch.uint8)
        flat = flat.view(torch.uint8)
    flat.index_copy_(0, slots, x)


def quantize_heads(x: Tensor) -> Tensor:
    """Heads [..., D] as int8 [..., D + 2]: codes from -127 to 127, then their scale in bfloat16.

    The scale is the head's largest magnitude / 127; NaN if a value is NaN or infinite.
    """
    x = x.float()
    scale = x.abs().amax(-1, keepdim=True) / 127.0 + (x * 0.0).sum(-1, keepdim=True)
    scale = scale.bfloat16()
    codes = torch.where(scale > 0.0, x / scale.float(), 0.0).round_().clamp_(-127.0, 127.0)
    return torch.cat([codes.to(torch.int8), scale.view(torch.int8)], dim=-1)


def dequantize_kv(rows: Tensor, dtype: torch.dtype, scales: Tensor | None = None) -> Tensor:
    """Rows of a cache, [..., D] or in int8 [..., D + 2], as numbers of a dtype [..., D].

    scales: of codes in int8 without scales [..., D], bfloat16 [...].
    """
    if rows.dtype != torch.int8:
        return rows.to(dtype)
    if scales is not None:
        return (rows.float() * scales.float()[..., None]).to(dtype)
    scale = rows[..., -2:].contiguous().view(torch.bfloat16)
    return (rows[..., :-2].float() * scale.float()).to(dtype)


def rope_angles(
    positions: Tensor, inv_freq: Tensor, scale: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """(cos, sin) · scale of the angles at positions int64 [T], each [T, R], as `rotary` reads them.

    inv_freq: float32 [R/2], radians per position of each pair, or [T, R/2] for each token its own.
    """
    angles = positions[:, None].float() * inv_freq
    cos, sin = angles.cos() * scale, angles.sin() * scale
    return torch.cat([cos, cos], dim=-1).to(dtype), torch.cat([-sin, sin], dim=-1).to(dtype)


def rope_write_kv(
    heads: Tensor,
    norms: HeadNorms | None,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    scales: KVScales | None = None,
) -> Tensor:
    """RoPE of queries and keys, after their norms if given; then write keys and values.

    heads [T, Hq + 2 Hkv, D]: queries, keys, values. Returns the rotated queries [T, Hq, D]. The
    other arguments are those of `rotary` and `write_kv`.
    """
    num_kv_heads = k_cache.shape[2]
    query, key, value = heads.tensor_split((-2 * num_kv_heads, -num_kv_heads), dim=1)
    if norms is not None:
        query = rms_norm(query, norms.query, norms.eps)
        key = rms_norm(key, norms.key, norms.eps)
    write_kv(rotary(key, cos, sin), value, k_cache, v_cache, slot_mapping, scales)
    return rotary(query, cos, sin)


def embedding(input_ids: Tensor, weight: Tensor) -> Tensor:
    """Rows of a weight [V, H], plain or as `pack` left it, by input_ids [T]: [T, H]."""
    return F.embedding(input_ids, weight)


def attention(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    layout: BatchLayout,
    params: AttentionParams,
    scales: KVScales | None = None,
) -> Tensor:
    """Causal attention of each request's queries over its own blocks, softmax in float32.

    query [T, Hq, D]; caches [blocks, size, Hkv, D], in the query's type or in FP8, or in int8 with
    rows as `quantize_heads` makes them or with scales of their own; Hq a multiple of Hkv. The
    result is [T, Hq, D].
    The query at position p sees keys (p - window, p], or [0, p] without a window. Rows of
    padding tokens become zeros.
    """
    block_size, num_kv_heads = k_cache.shape[1:3]
    group = query.shape[1] // num_kv_heads
    query_lens = layout.query_lens_host or layout.query_start_loc.diff().tolist()
    seq_lens = layout.seq_lens_host or layout.seq_lens.tolist()
    *queries, padding = torch.split(query, [*query_lens, len(query) - sum(query_lens)])
    parts = []
    for row, (q, seq_len) in enumerate(zip(queries, seq_lens, strict=True)):
        if len(q) == 0:
            continue
        blocks = layout.block_table[row, : -(-seq_len // block_size)].long()
        both = (None, None) if scales is None else (scales.keys, scales.values)
        k, v = (
            _numbers(cache, own, blocks)[:seq_len].repeat_interleave(group, dim=1)
            for cache, own in zip((k_cache, v_cache), both, strict=True)
        )
        scores = torch.einsum("qhd,khd->hqk", q.float(), k) * params.scale
        if params.soft_cap is not None:
            scores = soft_capped(scores, params.soft_cap)
        hidden = ~visible(len(q), seq_len, params.window, query.device)
        probs = _softmax(scores.masked_fill_(hidden, float("-inf")), params.sinks)
        parts.append(torch.einsum("hqk,khd->qhd", probs, v).to(query.dtype))
    return torch.cat([*parts, torch.zeros_like(padding)])


def _numbers(cache: Tensor, scales: Tensor | None, blocks: Tensor) -> Tensor:
    """The keys or values of some blocks, one after the other: float32 [slots, Hkv, D]."""
    own = None if scales is None else scales[blocks].flatten(0, 1)
    return dequantize_kv(cache[blocks].flatten(0, 1), torch.float32, own)


def soft_capped(scores: Tensor, cap: float) -> Tensor:
    """cap · tanh(scores / cap): scores bounded smoothly. (Bello et al., 2016; Gemma 2 uses it)"""
    return torch.tanh(scores / cap) * cap


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Softmax over the last dimension of scores [Hq, Q, K], whose denominators include the sinks.

    (Xiao et al., 2023; one learned logit for each head, as in gpt-oss)
    """
    if sinks is None:
        return scores.softmax(-1)
    column = sinks.float()[:, None, None].expand(-1, scores.shape[1], 1)
    return torch.cat([scores, column], dim=-1).softmax(-1)[..., :-1]


def visible(
    num_queries: int, seq_len: int, sliding_window: int | None, device: torch.device
) -> Tensor:
    """Mask of the keys that the last num_queries positions see: bool [num_queries, seq_len]."""
    keys = torch.arange(seq_len, device=device)[None]
    positions = torch.arange(seq_len - num_queries, seq_len, device=device)[:, None]
    seen = keys <= positions
    return seen if sliding_window is None else seen & (keys > positions - sliding_window)


def quantize(weight: Tensor, spec: QuantSpec) -> QuantizedWeight:
    """A weight [N, K], or a view of its rows in blocks, rounded to the nearest and then packed.

    Here: in canonical rows.
    """
    return format_of(spec).round_rows(weight.flatten(0, -2))


def pack(weight: LinearWeight) -> LinearWeight:
    """A weight in the layout that `linear` reads fastest; here: as it is."""
    return weight


def linear(x: Tensor, weight: LinearWeight, bias: Tensor | None) -> Tensor:
    """x · weightᵀ + bias: x [T, K], weight [N, K] of any format, bias [N] → [T, N]."""
    if isinstance(weight, Tensor):
        return F.linear(x, weight, bias)
    assert isinstance(weight, QuantizedWeight)  # others are packed for a device's own kernels
    return format_of(weight.spec).linear(x, weight, bias)


def pad_rows(weight: Tensor) -> Tensor:
    """A weight [N, K] followed by as many rows of zeros as its packed format needs; here none."""
    return weight


def order_gate_up(weight: Tensor, _: torch.dtype) -> Tensor:
    """W [2I, ...] of all gate rows, then all up rows, in the order that `linear_silu` reads.

    The second argument is the data type of activations, as the weight may be codes. The result may
    be a view of rows in blocks.
    """
    return weight


def rms_norm_linear(x: ResidualState, weight: LinearWeight, bias: Tensor | None) -> Tensor:
    """`linear` of the normalized residual stream: [T, H] → [T, N]."""
    return linear(normalized_rows(x), weight, bias)


def qkv_rope_write_kv(
    x: ResidualState,
    weight: LinearWeight,
    bias: Tensor | None,
    rope: RopeWriteKV,
) -> Tensor:
    """QKV projection of the normalized stream, then `rope_write_kv`: queries [T, Hq, D]."""
    return rope_write_kv(*rope.operands(rms_norm_linear(x, weight, bias)))


def linear_silu(
    x: ResidualState,
    weight: LinearWeight,
    bias: Tensor | None,
    rounds: bool = True,  # noqa: ARG001
) -> Tensor:
    """silu(gate) · up, both projections of the normalized stream: [T, H] → [T, I].

    weight [2I, H] and bias [2I] as `order_gate_up` left them, and the weight then `pack`. rounds:
    whether the result may be rounded as this weight's inputs are, for a next weight of its format.
    """
    return silu_and_mul(rms_norm_linear(x, weight, bias))


def linear_gelu(x: ResidualState, weight: LinearWeight, bias: Tensor | None) -> Tensor:
    """`linear_silu` with `gelu_and_mul` in place of `silu_and_mul`."""
    return gelu_and_mul(rms_norm_linear(x, weight, bias))


def linear_add_norm(
    x: Tensor,
    weight: LinearWeight,
    bias: Tensor | None,
    residual: Tensor,
    norm_weight: Tensor,
    eps: float,
) -> ResidualState:
    """residual + `linear` of x, with the norm that follows: the next linear layer's input.

    x [T, K], residual [T, N], norm_weight [N]. The residual passed in may be overwritten.
    """
    rows, residual = rms_norm_residual(linear(x, weight, bias), residual, norm_weight, eps)
    return ResidualState(residual, rows, norm_weight, eps)


def normalized_rows(x: ResidualState) -> Tensor:
    """RMSNorm of the residual, [T, H]."""
    if x.squares is None and isinstance(x.rows, Tensor):
        return x.rows
    return rms_norm(x.residual, x.weight, x.eps)


def skinny_gemm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    norm_weight: Tensor | None,
    eps: float,
    silu: bool,
) -> Tensor:
    """All that may be fused into a linear layer, in order: norm, matmul, bias, SiLU, residual.

    x [T, K], normalised first if norm_weight [K] is given; weight [N, K], whose gate and up
    rows are interleaved with silu; residual as the result, [T, N] or [T, N / 2].
    """
    if norm_weight is not None:
        x = rms_norm(x, norm_weight, eps)
    out = F.linear(x, weight, bias)
    if silu:
        out = silu_and_mul(torch.cat([out[:, 0::2], out[:, 1::2]], dim=-1))
    return out if residual is None else residual + out
