"""KV storage: the shape that kernels rely on, and the arithmetic that memory plans rely on."""

from __future__ import annotations

import pytest
import torch

from quire.core.layer_spec import KVLayerSpec
from quire.kvcache.host_kv_cache import HostCache
from quire.kvcache.kv_sizes import block_bytes
from quire.kvcache.kv_storage import allocate_kv


def layer(num_heads: int, key_dim: int, value_dim: int | None = None) -> KVLayerSpec:
    return KVLayerSpec(num_heads=num_heads, key_dim=key_dim, value_dim=value_dim or key_dim)


def test_layers_may_differ() -> None:
    layers = [layer(2, 20), layer(1, 32, 16)]
    assert block_bytes(layers, 16, "int8") == 16 * (2 * (22 + 22) + 34 + 18)
    kv = allocate_kv(layers, 7, 16, torch.bfloat16, "cpu")
    assert [tuple(t.shape[2:]) for pair in kv for t in pair] == [(2, 20), (2, 20), (1, 32), (1, 16)]
    sizes = [page.nbytes for page in HostCache.allocate(layers, 7, 16, "float32").pages]
    assert sum(sizes) == 7 * block_bytes(layers, 16, "float32")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8])
def test_bytes_are_what_is_allocated(dtype: torch.dtype) -> None:
    kv = allocate_kv([layer(2, 20)] * 3, 7, 16, dtype, "cpu")
    assert len(kv) == 3
    for k, v in kv:
        assert k.shape == v.shape == (7, 16, 2, 22 if dtype == torch.int8 else 20)
        assert k.dtype == v.dtype == dtype
        assert k.is_contiguous()
        assert not k.float().any()
        assert not v.float().any()
    total = sum(t.numel() * t.element_size() for pair in kv for t in pair)
    name = str(dtype).removeprefix("torch.")
    assert total == 7 * block_bytes([layer(2, 20)] * 3, 16, name)
    cache = HostCache.allocate([layer(2, 20)] * 3, 7, 16, name)
    assert [page.ctypes.data for page in cache.pages] == [
        tensor for kv in cache.layers for tensor in kv
    ]
    assert sum(page.nbytes for page in cache.pages) == total
    assert not any(page.any() for page in cache.pages)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_int8_holds_nearly_twice_as_much(head_dim: int) -> None:
    in_16_bits, in_8_bits = (
        block_bytes([layer(8, head_dim)], 16, name) for name in ("bfloat16", "int8")
    )
    assert in_16_bits / in_8_bits > 1.9


def test_layers_do_not_share_memory() -> None:
    kv = allocate_kv([layer(1, 1)] * 2, 1, 1, torch.float32, "cpu")
    kv[0][0].fill_(1)
    assert not kv[0][1].any()
    assert not kv[1][0].any()


def test_a_cache_that_does_not_fit_memory_is_an_error() -> None:
    with pytest.raises(MemoryError):
        HostCache.allocate([layer(8, 128)], 2**40, 16, "float32")
