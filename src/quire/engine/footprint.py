"""What a model takes in memory, told before it is loaded: from its config and its files' headers.

No torch and no look at a weight. Owns the arithmetic; what it is compared with is fleet.py's
business. Startup (startup.py) sizes the KV cache by the same rules.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from quire.config import EngineConfig
from quire.hub import resolve_model
from quire.models.architecture import ModelArchitecture
from quire.models.checkpoint import Checkpoint
from quire.quantization.scheme import scheme_of

# The interpreter, torch and the loop, as a process of them shows before it has a model (RSS).
BASE_BYTES = 256 << 20

# On a CPU the default KV cache takes this share of the free memory, and at most this much.
CPU_KV_SHARE = 0.25
CPU_KV_BYTES = 4 << 30

# Below this size of float32 weights, CPUs without 16-bit products run in float32.
SMALL_MODEL_BYTES = 1 << 30

_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, kw_only=True, slots=True)
class Footprint:
    """Bytes of one engine process, where its model runs."""

    weights: int
    kv_cache: int
    base: int = BASE_BYTES

    @property
    def total(self) -> int:
        """All of them."""
        return self.weights + self.kv_cache + self.base


def footprint_of(config: EngineConfig, memory_bytes: int | None = None) -> Footprint:
    """What an engine of these settings takes. Reads files; downloads them if need be.

    memory_bytes: what all models together may take: a KV cache without a size of its own then gets
    its share of that, not of the free memory. Raises CheckpointError.
    """
    folder = resolve_model(config.model.model, config.model.revision)
    shape = ModelArchitecture.from_folder(folder)
    if config.model.load_format == "null":
        return Footprint(weights=0, kv_cache=0)
    item = _item_bytes(config, shape)
    return Footprint(
        weights=_weight_bytes(config, shape, folder, item),
        kv_cache=_kv_bytes(config, shape, item, memory_bytes or available_bytes()),
    )


def available_bytes() -> int:
    """Memory that can be had without swapping; the page cache counts, since it gives way."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def usable_blocks(config: EngineConfig, limit: int) -> int:
    """KV blocks that all running requests of the greatest length would fill. limit: tokens."""
    return config.scheduler.max_num_seqs * -(-limit // config.cache.block_size)


def _weight_bytes(config: EngineConfig, shape: ModelArchitecture, folder: Path, item: int) -> int:
    """All weights as they stay in memory: those of products in their form, others as they are."""
    if config.model.load_format == "dummy":
        num_weights = shape.num_parameters
    else:
        num_weights = sum(entry.num_items for entry in Checkpoint.open(folder).entries.values())
    scheme = scheme_of(config.model.quantization)
    head = [(shape.vocab_size, shape.hidden_size)] if shape.has_head else []
    if scheme is None:
        # tied: CPU products read a copy in blocks
        copied = shape.tie_word_embeddings and not _is_on_gpu(config)
        return (num_weights + sum(n * k for n, k in head if copied)) * item
    layer = shape.layer_products
    in_products = shape.num_layers * sum(n * k for n, k in layer)
    if not shape.tie_word_embeddings:
        in_products += sum(n * k for n, k in head)
    return (
        (num_weights - in_products) * item
        + shape.num_layers * sum(scheme.weight_bytes("layer", n, k, item) for n, k in layer)
        + sum(scheme.weight_bytes("head", n, k, item) for n, k in head)
    )


def _kv_bytes(config: EngineConfig, shape: ModelArchitecture, item: int, available: int) -> int:
    cache = config.cache
    block = 2 * shape.num_layers * cache.block_size * shape.num_kv_heads * shape.head_dim * item
    if cache.num_blocks is not None:
        return cache.num_blocks * block
    budget = cache.kv_cache_memory_bytes or min(int(available * CPU_KV_SHARE), CPU_KV_BYTES)
    limit = config.model.max_model_len or shape.max_position_embeddings
    return min(budget // block, usable_blocks(config, limit)) * block


def _item_bytes(config: EngineConfig, shape: ModelArchitecture) -> int:
    """Bytes of a weight and of a number in the KV cache, by startup's rule for "auto"."""
    wanted = config.model.dtype
    if wanted != "auto":
        return _ITEM_BYTES[wanted]
    is_small = shape.num_parameters * 4 <= SMALL_MODEL_BYTES
    if is_small and not _is_on_gpu(config) and not _has_products_of(shape.dtype):
        return 4
    return _ITEM_BYTES.get(shape.dtype, 4)


def _is_on_gpu(config: EngineConfig) -> bool:
    wanted = config.device.device
    return wanted == "cuda" or (wanted == "auto" and Path("/dev/nvidiactl").exists())


def _has_products_of(dtype: str) -> bool:
    """Whether this processor multiplies numbers of the type, as far as the system tells."""
    if dtype != "bfloat16":
        return dtype == "float32"
    cpuinfo = Path("/proc/cpuinfo")
    words = set(cpuinfo.read_text().split()) if cpuinfo.exists() else set()
    return bool(words & {"avx512_bf16", "amx_tile"})
