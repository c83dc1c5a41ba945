"""Keys that several requests begin with are read once, and the result is as if each read them."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from device import ON_EITHER, ON_GPU
from test_triton_kernels import DTYPES, close, moved
from torch import Tensor
from twins import device_case

from quire.config import EngineConfig
from quire.engine.startup.step_memory import SPLIT_TILES, shared_part_bytes
from quire.kernels import reference
from quire.kernels.batch_layout import SHARED_MEMBERS, SHARED_TOKENS, SharedPrefixes
from quire.kernels.dispatch import kernels_for
from quire.kernels.triton.attention import shared_prefix_attention
from quire.kernels.triton.attention.shared_prefix_attention import shared_attention
from quire.kernels.triton.launch.workspace import workspace
from quire.kernels.triton.ops import paged_attention

pytestmark = ON_EITHER
BLOCK_SIZE = 16
GROUPS = [(list(range(1, 18)), 1), (list(range(20, 24)), 2)]  # rows, and 128s of tokens they share


def shared_case(heads: tuple[int, int, int], dtype: torch.dtype) -> tuple[Any, ...]:
    """25 rows, one of which does not run, one has a part of a prompt, and 21 share prefixes."""
    queries = [1] * 25
    queries[0], queries[19] = 0, 3
    lens = [5 + 7 * row for row in range(25)]
    for rows, length in GROUPS:
        for row in rows:
            lens[row] = length * SHARED_TOKENS + 1 + 3 * row
    query, k_cache, v_cache, layout, *rest = device_case(
        queries, lens, heads, None, dtype, padding=1, block_size=BLOCK_SIZE
    )
    index = torch.full([25], -1, dtype=torch.int32)
    stands = torch.full([5 * SHARED_MEMBERS], -1, dtype=torch.int32)
    tile_lens = torch.zeros(5, dtype=torch.int32)
    tile = 0
    for rows, length in GROUPS:
        num_blocks = length * SHARED_TOKENS // BLOCK_SIZE
        layout.block_table[rows, :num_blocks] = layout.block_table[rows[0], :num_blocks].clone()
        for begin in range(0, len(rows), SHARED_MEMBERS):
            part = torch.tensor(rows[begin : begin + SHARED_MEMBERS], dtype=torch.int32)
            first = tile * SHARED_MEMBERS
            stands[first : first + len(part)] = part
            index[part] = torch.arange(first, first + len(part), dtype=torch.int32)
            tile_lens[tile] = length * SHARED_TOKENS
            tile += 1
    shared = SharedPrefixes(torch.tensor([tile], dtype=torch.int32), index, stands, tile_lens)
    layout = dataclasses.replace(layout, shared=shared, _derived={})
    return query, k_cache, v_cache, layout, *rest


@DTYPES
@pytest.mark.parametrize(
    "heads", [(7, 1, 24)] + ([(4, 2, 16), (32, 8, 128), (32, 8, 64)] * ON_GPU), ids=str
)
def test_attention_equals_its_twin(heads: tuple[int, int, int], dtype: torch.dtype) -> None:
    case = shared_case(heads, dtype)
    mine = kernels_for("cuda").attention(*map(moved, case))
    close(mine[:-1], reference.attention(*case)[:-1])


def test_shared_keys_are_read_where_the_first_of_the_tile_has_them() -> None:
    """The other requests' block tables are not read there and may hold anything."""
    query, k_cache, v_cache, layout, *rest = shared_case((4, 1, 16), torch.float32)
    expected = reference.attention(query, k_cache, v_cache, layout, *rest)
    for rows, length in GROUPS:
        others = [row for n, row in enumerate(rows) if n % SHARED_MEMBERS]
        layout.block_table[others, : length * SHARED_TOKENS // BLOCK_SIZE] = 0
    case = moved(query), moved(k_cache), moved(v_cache), on_device(layout), *rest
    close(kernels_for("cuda").attention(*case)[:-1], expected[:-1])


def test_a_gpu_without_the_memory_for_a_tile_reads_prefixes_for_each_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(paged_attention, "shared_tile", lambda *_: 0)
    monkeypatch.setattr(paged_attention, "shared_attention", None)
    query, k_cache, v_cache, layout, *rest = shared_case((4, 1, 16), torch.float32)
    case = moved(query), moved(k_cache), moved(v_cache), on_device(layout), *rest
    expected = reference.attention(query, k_cache, v_cache, layout, *rest)
    close(kernels_for("cuda").attention(*case)[:-1], expected[:-1])


def on_device(layout: Any) -> Any:
    """Nested dataclasses, too."""
    shared = moved(layout.shared)
    plain = moved(dataclasses.replace(layout, shared=None, _derived={}))
    return dataclasses.replace(plain, shared=shared, _derived={})


def test_a_window_leaves_shared_prefixes_out() -> None:
    query, k_cache, v_cache, layout, params = shared_case((4, 1, 16), torch.float32)
    params = dataclasses.replace(params, window=50)
    mine = kernels_for("cuda").attention(
        *map(moved, (query, k_cache, v_cache)), on_device(layout), params
    )
    twin: Tensor = reference.attention(query, k_cache, v_cache, layout, params)
    close(mine[:-1], twin[:-1])


@pytest.mark.parametrize("heads", [(7, 1, 24), (4, 2, 16)], ids=str)
def test_the_memory_plan_counts_what_is_allocated(
    heads: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the largest GPUs, on which the most programs share the few tiles of a small batch."""
    if not ON_GPU:
        large = dataclasses.replace(workspace(torch.device("cpu")), num_sms=SPLIT_TILES // 2)
        monkeypatch.setattr(shared_prefix_attention, "workspace", lambda _: large)
    query, k_cache, v_cache, layout, *_ = shared_case(heads, torch.float32)
    parts = shared_attention(
        moved(query), moved(k_cache), moved(v_cache), on_device(layout), 1.0, 0.0, "ieee"
    )
    num_heads, num_kv_heads, dim = heads
    attention = SimpleNamespace(num_heads=num_heads, num_kv_heads=num_kv_heads, value_dim=dim)
    model = SimpleNamespace(spec=SimpleNamespace(layers=[SimpleNamespace(attention=attention)]))
    planned = shared_part_bytes(EngineConfig.from_options(max_num_seqs=25), model)  # type: ignore[arg-type]
    assert planned >= parts.sums.nbytes + parts.stats.nbytes
