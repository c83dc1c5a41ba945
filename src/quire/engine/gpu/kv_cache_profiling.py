"""What a GPU has left for a KV cache, by running the largest step once, without requests.

The KV cache gets what is then left of the share of the memory that the settings give. Tensors are
what is measured, so kernels need not be compiled yet; their code, and that of kernels first
launched by a request much later, has a part of the share set aside.
"""

from __future__ import annotations

import logging

import numpy as np
import torch

from quire.config import EngineConfig
from quire.engine.gpu.step_work import layers_of_all_kinds
from quire.engine.startup.memory_plan import CODE_BYTES, graph_bytes, token_count_bytes
from quire.engine.startup.torch_model import CausalLM
from quire.kernels.batch_layout import BatchLayout
from quire.kvcache.kv_storage import allocate_kv, kv_dtype
from quire.layers.forward_context import ForwardContext
from quire.models.config.model_config import ModelConfig

logger = logging.getLogger(__name__)


def measured_bytes(
    config: EngineConfig,
    model_config: ModelConfig,
    model: CausalLM,
    dtype: torch.dtype,
    device: torch.device,
) -> int:
    """What is left for the KV cache of the share of the GPU's memory; may be negative."""
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    run_largest_step(config, model_config, model, dtype, device)
    peak = torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    graphs = graph_bytes(config, model_config, dtype.itemsize) + token_count_bytes(
        config, model_config
    )
    share = int(total * config.cache.gpu_memory_utilization)
    budget = share - (total - free) - peak - graphs - CODE_BYTES
    logger.info(
        "GPU memory: %.2f GiB, %.2f free with the weights loaded; %.2f for the largest step, %.2f "
        "for graphs, %.2f for kernels, %.2f for the KV cache",
        *(size / 2**30 for size in (total, free, peak, graphs, CODE_BYTES, budget)),
    )
    return budget


@torch.inference_mode()
def run_largest_step(
    config: EngineConfig,
    model_config: ModelConfig,
    model: CausalLM,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Prompts of all the tokens that a step may have, and logits for all requests that may run.

    It goes through as many layers as there are kinds, since a layer leaves nothing but what the
    next one takes. The prompts' keys all go to one block, over each other.
    """
    block_size = config.cache.block_size
    longest = config.model.max_model_len or model_config.max_position_embeddings
    left, lens = config.scheduler.max_num_batched_tokens, list[int]()
    while left > 0:
        lens.insert(0, min(left, longest))  # the shortest comes first: it may be a single token
        left -= lens[0]
    table = np.zeros((len(lens), -(-max(lens) // block_size)), np.int32)
    layout = BatchLayout.build(lens, lens, table, block_size, device)
    num_layers = layers_of_all_kinds(model.attention_params)
    kv_shape = (num_layers, 1, block_size, model_config.num_kv_heads, model_config.head_dim)
    kept = kv_dtype(config.cache.kv_cache_dtype, dtype)
    context = ForwardContext(layout, allocate_kv(*kv_shape, kept, device))
    positions = torch.cat([torch.arange(count, device=device) for count in lens])
    hidden = model.forward(torch.zeros_like(positions), positions, context)
    if model_config.has_head:
        logits = model.compute_logits(hidden[: config.scheduler.max_num_seqs]).float()
        copies = [logits.clone() for _ in range(2)]  # as many as samplers make
        del copies
