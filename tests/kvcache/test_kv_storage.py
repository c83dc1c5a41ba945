"""KV storage: the shape that kernels rely on, and the arithmetic that memory plans rely on."""

from __future__ import annotations

import pytest
import torch

from quire.kvcache.host_kv_cache import HostCache
from quire.kvcache.kv_sizes import block_bytes
from quire.kvcache.kv_storage import allocate_kv


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8])
def test_bytes_are_what_is_allocated(dtype: torch.dtype) -> None:
    kv = allocate_kv(3, 7, 16, 2, 20, dtype, "cpu")
    assert len(kv) == 3
    for k, v in kv:
        assert k.shape == v.shape == (7, 16, 2, 22 if dtype == torch.int8 else 20)
        assert k.dtype == v.dtype == dtype
        assert k.is_contiguous()
        assert not k.float().any()
        assert not v.float().any()
    total = sum(t.numel() * t.element_size() for pair in kv for t in pair)
    name = str(dtype).removeprefix("torch.")
    assert total == 7 * block_bytes(3, 16, 2, 20, name)
    cache = HostCache.allocate(3, 7, 16, 2, 20, name)
    assert [page.ctypes.data for page in cache.pages] == [
        place for kv in cache.layers for place in kv
    ]
    assert sum(page.nbytes for page in cache.pages) == total
    assert not any(page.any() for page in cache.pages)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_int8_holds_nearly_twice_as_much(head_dim: int) -> None:
    wide, narrow = (block_bytes(1, 16, 8, head_dim, name) for name in ("bfloat16", "int8"))
    assert wide / narrow > 1.9


def test_layers_do_not_share_memory() -> None:
    kv = allocate_kv(2, 1, 1, 1, 1, torch.float32, "cpu")
    kv[0][0].fill_(1)
    assert not kv[0][1].any()
    assert not kv[1][0].any()


def test_a_cache_that_memory_does_not_hold_is_told() -> None:
    with pytest.raises(MemoryError):
        HostCache.allocate(1, 2**40, 16, 8, 128, "float32")
