"""Bytes that a model will take in memory, from its config and the headers of its files.

No torch and no look at a weight. model_fleet.py compares them with its limits; a start sizes the
KV cache by the same rules.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from quire.config import EngineConfig
from quire.core.layer_spec import LinearSpec
from quire.dtypes import DTYPES, FP8_CAPABILITY
from quire.engine.startup.device_policy import FP8, choose_dtype, choose_kv_dtype, device_type
from quire.engine.startup.gpu_driver import driver_capability
from quire.engine.startup.machine_limits import available_bytes, most_bytes
from quire.errors import ConfigError
from quire.hub import model_folder
from quire.kernels.formats.fp8 import FP8_A16
from quire.kernels.formats.weight_format import WeightFormat
from quire.kvcache.kv_sizes import block_bytes, layers_with_types
from quire.models.checkpoint_formats.checkpoint_scheme import choose_formats
from quire.models.checkpoints.open_checkpoint import open_checkpoint
from quire.models.config.model_config import ModelConfig
from quire.quantization.scheme import FormatChoice

logger = logging.getLogger(__name__)

# The interpreter, torch and the loop: the most that a process of them shows without a model (RSS).
BASE_BYTES = 256 << 20

# On a CPU the default KV cache takes this share of the free memory, and at most this much.
CPU_KV_SHARE = 0.25
CPU_KV_BYTES = 4 << 30

# Numbers that kernels on a GPU make at a time of weights of four bits, and of a byte: _PIECE of
# int4_linear.py and of byte_linear.py, which import Triton. Of FP8 that is not multiplied as it is,
# how many: of fp8_linear.py.
PIECE_BYTES, BYTE_PIECE_BYTES, FP8_PIECE = 2**28, 2**25, 2**23


class Footprint(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one engine process, where its model runs."""

    weights: int
    kv_cache: int
    base: int = BASE_BYTES

    @property
    def total(self) -> int:
        """The sum of all parts, in bytes."""
        return self.weights + self.kv_cache + self.base

    def __str__(self) -> str:
        parts = f"weights {self.weights:,}, KV cache {self.kv_cache:,}, process {self.base:,}"
        return f"{self.total:,} bytes ({parts})"


def footprint_of(config: EngineConfig, memory_bytes: int | None = None) -> Footprint:
    """The memory of an engine with these settings. Reads files; downloads them if necessary.

    memory_bytes: what all models together may take: a KV cache without a size of its own then gets
    its share of that, not of the free memory. Raises CheckpointError.
    """
    folder = model_folder(config)
    model_config = ModelConfig.from_folder(folder)
    if config.model.load_format == "null":
        return Footprint(weights=0, kv_cache=0)
    block_bytes = block_bytes_of(config, model_config)
    default = default_kv_bytes(memory_bytes or available_bytes())
    return Footprint(
        weights=sum(weights_by_format(config, model_config, folder).values()),
        kv_cache=blocks_within(config, model_config, default, block_bytes) * block_bytes,
    )


def usable_blocks(config: EngineConfig, limit: int) -> int:
    """KV blocks that all running requests of the greatest length would fill. limit: tokens."""
    return config.scheduler.max_num_seqs * -(-limit // config.cache.block_size)


def weights_by_format(
    config: EngineConfig, model_config: ModelConfig, folder: Path | None
) -> dict[str, int]:
    """Bytes of all weights as they stay in memory, by data type or weight format.

    folder: None: its weights are not there yet, and the small ones are left out. Raises ConfigError
    for formats that the device does not run, and CheckpointError.
    """
    spec, dummy = model_config.spec, config.model.load_format == "dummy"
    if folder is None or dummy or model_config.checkpoint_format is not None:
        num_weights = spec.num_parameters
    else:
        num_weights = sum(entry.num_items for entry in open_checkpoint(folder).entries.values())
    dtype = choose_dtype(config, model_config)
    item = DTYPES[dtype].num_bytes
    scheme = _scheme_of(config, model_config)
    tied = spec.head if spec.is_head_tied else None
    if scheme is None:
        return {dtype: num_weights * item}
    of_own = sum(linear.num_weights for linear in spec.linears if linear is not tied)
    found = Counter({dtype: (num_weights - of_own) * item})
    for module, linear in spec.named_linears:
        role, n, k = linear.role, linear.n, linear.k
        chosen = scheme.format_for(module, role, n, k)
        if chosen is None and linear is tied:
            continue  # the embedding has the same weight
        name, size = (chosen.name, chosen.num_bytes(n, k)) if chosen else (dtype, n * k * item)
        found[name] += size
    return dict(found)


def dequantized_bytes(config: EngineConfig, model_config: ModelConfig) -> int:
    """Bytes of the numbers that a GEMM on a GPU makes of a weight whose codes it does not multiply.

    Those are codes beside 16-bit activations, and FP8 where neither the GPU nor the library
    multiplies it. Of a whole weight where results may not depend on the batch, and where a model in
    float32 has weights of a byte each, which the plain twins multiply; else some rows at a time.
    """
    dtype, most = choose_dtype(config, model_config), 0
    item = DTYPES[dtype].num_bytes
    in_fp8 = (driver_capability() or FP8_CAPABILITY) >= FP8_CAPABILITY
    for linear, chosen in _formats_of(config, model_config):
        if chosen.has_groups or chosen.spec == FP8_A16.spec:
            piece = PIECE_BYTES if chosen.codes_per_byte > 1 else BYTE_PIECE_BYTES
            whole = linear.n * linear.k * item
            most = max(most, whole if config.device.batch_invariant else min(whole, piece))
        elif dtype == "float32" and not config.device.batch_invariant:
            most = max(most, linear.n * linear.k * item)
        elif chosen.spec.codes.startswith("fp8") and not config.device.batch_invariant:
            rounds = in_fp8 and chosen.spec.codes == "fp8" and dtype == "bfloat16"
            if not rounds or linear.n % 16 or linear.k % 16:
                most = max(most, min(linear.n * linear.k, FP8_PIECE) * (4 + item))
    return most


def has_half_bytes(config: EngineConfig, model_config: ModelConfig) -> bool:
    """Whether a weight has less than a byte for each number."""
    return any(chosen.codes_per_byte > 1 for _, chosen in _formats_of(config, model_config))


def _formats_of(
    config: EngineConfig, model_config: ModelConfig
) -> Iterator[tuple[LinearSpec, WeightFormat]]:
    """The linear layers whose weights are not in the model's data type."""
    scheme = _scheme_of(config, model_config)
    if scheme is None:
        return
    for module, linear in model_config.spec.named_linears:
        chosen = scheme.format_for(module, linear.role, linear.n, linear.k)
        if chosen is not None:
            yield linear, chosen


def _scheme_of(config: EngineConfig, model_config: ModelConfig) -> FormatChoice | None:
    """The formats of the weights on the settings' device. Raises as `choose_formats` does."""
    device, checkpoint = device_type(config), model_config.checkpoint_format
    capability = driver_capability() if device == "cuda" else None
    dtype, spec = choose_dtype(config, model_config), model_config.spec
    return choose_formats(
        config.model, checkpoint, spec, device, dtype=dtype, capability=capability
    )


def check_weights(config: EngineConfig, model_config: ModelConfig, folder: Path | None) -> None:
    """Refuse weights that this machine cannot hold, and warn of those that it hardly can.

    Linux refuses no allocation for want of memory: it kills a process when pages run out. The
    embedding may stay in its file, and is not counted. folder, errors: as in `weights_by_format`.
    """
    item = DTYPES[choose_dtype(config, model_config)].num_bytes
    embedding = model_config.vocab_size * model_config.hidden_size * item
    found = sum(weights_by_format(config, model_config, folder).values()) - embedding
    fix = "take a smaller model, or set quantization"
    if found > (most := most_bytes()):
        raise ConfigError(f"the weights take {found:,} bytes, but this machine has {most:,}; {fix}")
    if found > (free := available_bytes()):
        text = "the weights take %s bytes, but %s are free, so the system may kill this process; %s"
        logger.warning(text, f"{found:,}", f"{free:,}", f"free memory, {fix}")


def block_bytes_of(config: EngineConfig, model_config: ModelConfig) -> int:
    """Bytes of one KV block in all layers."""
    dtype, name = choose_dtype(config, model_config), choose_kv_dtype(config, model_config)
    if name == FP8 and device_type(config) == "cuda":
        name = choose_kv_dtype(config, model_config, driver_capability())
    skipped = config.cache.kv_cache_dtype_skip_layers
    layers = layers_with_types(model_config.spec.kv_layers, skipped, dtype)
    return block_bytes(layers, config.cache.block_size, name)


def blocks_within(
    config: EngineConfig, model_config: ModelConfig, default_bytes: int, block_bytes: int
) -> int:
    """The number of KV blocks: as set, or as many as the default holds and requests can use.

    A size that was set is not cut: what is more than the running requests use keeps prefixes.
    default_bytes: for the KV cache, unless the settings say how many.
    """
    cache = config.cache
    if cache.num_blocks is not None:
        return cache.num_blocks
    if cache.kv_cache_memory_bytes is not None:
        return cache.kv_cache_memory_bytes // block_bytes
    limit = config.model.max_model_len or model_config.max_position_embeddings
    return max(0, min(default_bytes // block_bytes, usable_blocks(config, limit)))


def default_kv_bytes(available: int) -> int:
    """The KV cache's bytes on a CPU with so much free memory, unless the settings say."""
    return min(int(available * CPU_KV_SHARE), CPU_KV_BYTES)
