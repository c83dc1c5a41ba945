"""Requests that find their prompt computed, so that a level is full of keys from its first step on.

Eighty prompts of 20,000 tokens take half a minute of a GPU that would only prepare the measurement.
The speed of attention does not depend on the values of keys, so the cache is filled with random
numbers, and a request whose name says so gets blocks of its own with a share of them as its prompt:
no two requests share one. All that follows is computed. Owns what stands in for the prefix cache,
which is off here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from quire.core.request import Request
from quire.engine.startup import start_engine
from quire.engine.startup.backend import HostBackend
from quire.engine.startup.gpu_backend import GpuBackend
from quire.kvcache.kv_cache_manager import KVCacheManager
from quire.models.runtimes.compiled_decoder import CompiledDecoder
from workloads.steady import CACHED_PROMPT

CHUNK = 2**24  # numbers that the cache repeats: far more than the GPU's caches hold


class CachedPromptManager(KVCacheManager):
    """Gives such requests their prompt as a prefix-cache hit, in blocks of their own."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        assert not self.enable_prefix_caching, "their blocks would be found by others"
        self._given: dict[str, list[int]] = {}

    def get_computed_blocks(self, request: Request) -> list[int]:
        """All full blocks before the last known token, for a request that has not started."""
        name = request.request_id
        if not name.startswith(CACHED_PROMPT) or request.num_preemptions:
            return super().get_computed_blocks(request)
        if name not in self._given:
            count = (request.num_tokens - 1) // self.block_size
            if count > self.pool.num_available:
                return []
            self._given[name] = self.pool.allocate(count)
        return self._given[name]

    def admit(self, request: Request, hits: list[int], num_tokens: int) -> list[int] | None:
        """The blocks are the request's alone, once it is in."""
        block_ids = super().admit(request, hits, num_tokens)
        if block_ids is not None:
            self.pool.release(self._given.pop(request.request_id, ()))
        return block_ids


@contextmanager
def cached_prompt_requests() -> Iterator[None]:
    """Engines started inside the context know such requests, and have random keys and values."""
    with (
        _filled(GpuBackend),
        _filled(HostBackend),
        mock.patch.object(start_engine, "KVCacheManager", CachedPromptManager),
    ):
        yield


def _filled(kind: Any) -> Any:
    allocate = kind.allocate

    def fill(self: Any, num_blocks: int) -> None:
        allocate(self, num_blocks)
        for cache in _caches(self):
            _fill(cache)

    return mock.patch.object(kind, "allocate", fill)


def _caches(backend: Any) -> list[Tensor]:
    """Keys and values of all layers."""
    model = None if isinstance(backend, GpuBackend) else backend._model
    if isinstance(model, CompiledDecoder):
        dtype = getattr(torch, backend.resolved.kv_dtype)
        return [torch.from_numpy(page).view(dtype) for page in model.cache.pages]
    pairs = backend._kv_caches if model is None else model.kv_caches
    return [cache for pair in pairs for cache in pair]


def _fill(cache: Tensor) -> None:
    flat = cache.view(-1)
    numbers = torch.randn(min(CHUNK, len(flat)), device=cache.device).to(cache.dtype)
    for start in range(0, len(flat), len(numbers)):
        part = flat[start : start + len(numbers)]
        part.copy_(numbers[: len(part)])
