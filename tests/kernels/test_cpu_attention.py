"""How decodes are grouped before they are computed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from twins import attention_case

from quire.kernels import reference
from quire.kernels.cpu import torch_attention


@given(st.lists(st.integers(1, 3000), max_size=80), st.sampled_from([256, 4096, 65536]))
def test_groups_are_short_and_alike(seen: list[int], bytes_per_token: int) -> None:
    groups = torch_attention._grouped(seen, bytes_per_token)
    rows = sorted(row for group in groups for row in group)
    assert rows == [row for row, n in enumerate(seen) if n < torch_attention._LONG]
    for group in groups:
        lengths = [seen[row] for row in group]
        assert lengths[0] == max(lengths) <= 2 * min(lengths)
        copied = len(group) * lengths[0] * bytes_per_token
        assert len(group) == 1 or copied <= torch_attention._LARGEST_COPY


@pytest.mark.parametrize("lengths", [[500] * 40, list(range(1, 1000, 9))])
def test_little_is_padding(lengths: list[int]) -> None:
    groups = torch_attention._grouped(lengths, 1024)
    copied = sum(len(group) * lengths[group[0]] for group in groups)
    assert sum(lengths) / copied > 0.7


@pytest.mark.parametrize("queries", [[1, 1, 1], [5, 40, 9]])
def test_a_cache_in_int8_is_read_as_its_twin_reads_it(queries: list[int]) -> None:
    query, k_cache, v_cache, *rest = attention_case(
        queries, [1100, 40, 41], (4, 2, 20), None, True, torch.float32
    )
    caches = [reference.quantize_heads(cache) for cache in (k_cache, v_cache)]
    expected = reference.attention(query, *caches, *rest)
    torch.testing.assert_close(torch_attention.attention(query, *caches, *rest), expected)
