"""The twins themselves, against PyTorch's own functions or a value worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from twins import attention_case, device_case, normal

from quire.kernels import reference
from quire.kernels.batch_layout import BatchLayout


def test_rms_norm_equals_pytorch() -> None:
    x, weight = normal(5, 96, dtype=torch.float32), normal(96, dtype=torch.float32, seed=1)
    torch.testing.assert_close(
        reference.rms_norm(x, weight, 1e-5), F.rms_norm(x, (96,), weight, 1e-5)
    )


def test_residual_is_the_sum() -> None:
    x, residual = normal(2, 5, 96, dtype=torch.float32)
    normalized, total = reference.rms_norm_residual(x, residual, torch.ones(96), 1e-5)
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(normalized, F.rms_norm(x + residual, (96,), None, 1e-5))


def test_rotary_rotates_pairs_by_their_angle() -> None:
    """RoPE rotates pairs (i, i + R/2) as complex numbers and leaves dimensions beyond R."""
    x = normal(3, 2, 10, dtype=torch.float32)
    angles = normal(3, 4, dtype=torch.float32, seed=1)
    cos = torch.cat([angles.cos(), angles.cos()], -1)
    sin = torch.cat([-angles.sin(), angles.sin()], -1)
    rotated = reference.rotary(x, cos, sin)
    pairs = torch.complex(x[..., :4], x[..., 4:8])
    expected = pairs * torch.polar(torch.ones(3, 1, 4), angles[:, None])
    torch.testing.assert_close(rotated[..., :4], expected.real)
    torch.testing.assert_close(rotated[..., 4:8], expected.imag)
    assert torch.equal(rotated[..., 8:], x[..., 8:])


@pytest.mark.parametrize("window", [None, 1, 5])
def test_attention_equals_attention_written_out(window: int | None) -> None:
    """One query at a time, one head at a time, over keys read slot by slot."""
    case = attention_case([1, 4, 9], [12, 10, 9], (4, 2, 8), window, True, torch.float32)
    query, k_cache, v_cache, layout, params = case
    out, token = reference.attention(*case), 0
    for row, (n, length) in enumerate(
        zip(layout.query_lens_host, layout.seq_lens_host, strict=True)
    ):
        for position in range(length - n, length):
            oldest = 0 if window is None else max(0, position + 1 - window)
            rows = [
                (int(layout.block_table[row, p // 8]), p % 8) for p in range(oldest, position + 1)
            ]
            for head in range(4):
                keys = torch.stack([k_cache[b, o, head // 2] for b, o in rows])
                values = torch.stack([v_cache[b, o, head // 2] for b, o in rows])
                probs = (keys @ query[token, head] * params.scale).softmax(0)
                torch.testing.assert_close(out[token, head], probs @ values)
            token += 1


def test_slots_that_are_not_the_requests_own_do_not_matter() -> None:
    """The rest of the last block, and other requests' blocks, may hold anything, NaN included."""
    case = attention_case([1, 3], [9, 3], (2, 1, 8), None, False, torch.float32)
    _query, k_cache, v_cache, layout, _params = case
    clean = reference.attention(*case)
    used = torch.zeros(k_cache.shape[:2], dtype=torch.bool)
    for row, length in enumerate(layout.seq_lens_host):
        for p in range(length):
            used[int(layout.block_table[row, p // 8]), p % 8] = True
    k_cache[~used], v_cache[~used] = float("nan"), float("nan")
    assert torch.equal(reference.attention(*case), clean)
    from quire.kernels.cpu import torch_attention

    torch.testing.assert_close(torch_attention.attention(*case), clean)


def test_write_kv_fills_only_its_slots() -> None:
    k_cache, v_cache = torch.zeros(2, 3, 4, 1, 2)
    key, value = normal(2, 2, 1, 2, dtype=torch.float32)
    layout = BatchLayout.build([1, 1], [6, 1], np.array([[2, 0], [1, 0]], dtype=np.int32), 4)
    reference.write_kv(key, value, k_cache, v_cache, layout.slot_mapping)
    assert torch.equal(k_cache[0, 1], key[0])
    assert torch.equal(v_cache[1, 0], value[1])
    assert k_cache.count_nonzero() == v_cache.count_nonzero() == 4


def test_a_device_layout_gives_what_its_requests_give_alone() -> None:
    """Rows in any order, rows without queries, and padding at the end."""
    queries, lens = [3, 0, 1, 7, 1, 0], [9, 40, 12, 7, 1, 0]
    query, *caches, layout, params = device_case(
        queries, lens, (4, 2, 8), 5, torch.float32, padding=3
    )
    out = reference.attention(query, *caches, layout, params)
    assert not out[sum(queries) :].any()
    table, starts = layout.block_table.numpy(), layout.query_start_loc.tolist()
    for row, (n, length) in enumerate(zip(queries, lens, strict=True)):
        if n:
            tokens = slice(starts[row], starts[row + 1])
            alone = BatchLayout.build([n], [length], table[row : row + 1], 8)
            assert torch.equal(
                out[tokens], reference.attention(query[tokens], *caches, alone, params)
            )


def test_write_kv_leaves_padding_out() -> None:
    k_cache, v_cache = torch.zeros(2, 3, 4, 1, 2)
    key, value = normal(2, 3, 1, 2, dtype=torch.float32)
    reference.write_kv(key, value, k_cache, v_cache, torch.tensor([7, -1, -1]))
    assert torch.equal(k_cache[1, 3], key[0])
    assert torch.equal(v_cache[1, 3], value[0])
    assert k_cache.count_nonzero() == v_cache.count_nonzero() == 2
