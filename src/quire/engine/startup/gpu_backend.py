"""The backend of a GPU: GPU memory is measured, the executor is made.

The KV cache gets what is left of `gpu_memory_utilization`, a share of the GPU's memory, beside the
weights and the largest step, which is run once, without requests. Tensors are what is measured, so
kernels need not be compiled yet; their code, and that of kernels first launched by a request much
later, has a part of the share set aside.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

import numpy as np
import torch

from quire.core.layer_spec import KVLayerSpec
from quire.core.request_limits import RequestLimits
from quire.dtypes import DTYPES
from quire.engine.core.executor import Executor, OverlappedExecutor, UniprocExecutor
from quire.engine.core.model_runner import ModelRunner
from quire.engine.core.running_requests import RunningRequests
from quire.engine.gpu.device_runner import DeviceRunner
from quire.engine.gpu.step_work import hidden_states, layers_of_all_kinds, run_layers
from quire.engine.startup.resolved_config import ResolvedConfig
from quire.engine.startup.step_memory import CODE_BYTES, graph_bytes, token_count_bytes
from quire.engine.startup.step_tuning import StepTable
from quire.kernels.batch_layout import BatchLayout
from quire.kernels.dispatch import compiling_ahead, has_triton, kernels_for
from quire.kernels.ragged_batch import FlatTokens
from quire.kernels.torch_dtypes import torch_dtype
from quire.kvcache.kv_storage import allocate_kv
from quire.layers.forward_context import ForwardContext, Heartbeat
from quire.models.families.llama import LlamaForCausalLM
from quire.models.runtimes.torch_model import KVCaches, TorchModel
from quire.sampling.structured_mask import Matcher

logger = logging.getLogger(__name__)


class GpuBackend:
    """A loaded model on a GPU; see `Backend`.

    Steps overlap where Triton's kernels serve the device. The plain twins of the operations wait
    for it within a step, so there each step runs to its end.
    """

    def __init__(
        self, resolved: ResolvedConfig, model: LlamaForCausalLM, device: torch.device
    ) -> None:
        self.resolved, self.device = resolved, str(device)
        self.table: StepTable | None = None
        self._model, self._on = model, device
        self._kv_caches: KVCaches = []

    def compiling(self) -> AbstractContextManager[None]:
        """A context that compiles kernels in several processes."""
        return compiling_ahead(self._on.type)

    def kv_budget(self) -> int:
        """Default size of the KV cache in bytes: what the largest step leaves."""
        return measured_bytes(self.resolved, self._model, self._on)

    def allocate(self, num_blocks: int) -> None:
        """Allocate the KV cache of all layers."""
        self._kv_caches = _allocate(self.resolved, self.resolved.kv_layers, num_blocks, self._on)

    def make_executor(
        self, limits: RequestLimits, matchers: Mapping[str, Matcher], heartbeat: Heartbeat
    ) -> Executor:
        """Return an executor that overlaps steps, where Triton's kernels serve."""
        config = self.resolved.config
        running = RunningRequests(limits, config.cache.block_size, matchers, heartbeat)
        if not has_triton():
            model = TorchModel(self._model, self._kv_caches, self._on)
            return UniprocExecutor(ModelRunner(model, running))
        from quire.engine.gpu.cuda_graph import cuda_graphs
        from quire.sampling.device_sampler import DeviceSampler  # which imports Triton

        runner = DeviceRunner(
            self._model,
            self._kv_caches,
            limits,
            running,
            DeviceSampler(running.sampling, limits.max_num_seqs, limits.vocab_size, self._on),
            kernels_for(self._on.type),
            config.scheduler.max_num_batched_tokens,
            self._on,
            num_warmed_up=layers_of_all_kinds(self.resolved.kinds_of_layers),
            record=None if config.device.enforce_eager else cuda_graphs(),
            shares_prefixes=config.shares_prefixes,
        )
        runner.warm_up()
        return OverlappedExecutor(runner, runner.step_sizes)

    def has_started(self) -> None:
        """Do nothing: a GPU's start leaves nothing behind."""


def measured_bytes(resolved: ResolvedConfig, model: LlamaForCausalLM, device: torch.device) -> int:
    """Memory profiling: GPU bytes left for the KV cache by gpu_memory_utilization; may be < 0."""
    config, model_config = resolved.config, resolved.model_config
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    run_largest_step(resolved, model, device)
    peak = torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    item = DTYPES[resolved.dtype].num_bytes
    graphs = graph_bytes(config, model_config, item) + token_count_bytes(config, model_config)
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
    resolved: ResolvedConfig, model: LlamaForCausalLM, device: torch.device
) -> None:
    """Run prompts of all tokens that a step may have, and logits of all requests it may have.

    It goes through as many layers as there are kinds, since a layer leaves nothing but what the
    next one takes. The prompts' keys all go to one block, over each other.
    """
    config, model_config = resolved.config, resolved.model_config
    block_size = config.cache.block_size
    longest = config.model.max_model_len or model_config.max_position_embeddings
    left, lens = config.scheduler.max_num_batched_tokens, list[int]()
    while left > 0:
        lens.insert(0, min(left, longest))  # the shortest comes first: it may be a single token
        left -= lens[0]
    table = np.zeros((len(lens), -(-max(lens) // block_size)), np.int32)
    layout = BatchLayout.build(lens, lens, table, block_size, device)
    context = ForwardContext(layout, _allocate(resolved, resolved.kv_layers, 1, device))
    num_layers = layers_of_all_kinds(resolved.kinds_of_layers)
    counts = np.array(lens)
    positions = torch.from_numpy(FlatTokens.of(counts, counts).positions).to(device)
    tokens = run_layers(
        model, torch.zeros_like(positions), positions, context, num_layers,
        splits=model_config.has_head,
    )  # fmt: skip
    if model_config.has_head:
        sampled = tokens.map(lambda rows: rows[: config.scheduler.max_num_seqs].clone())
        logits = model.compute_logits(hidden_states(model, sampled)).float()
        copies = [logits.clone() for _ in range(2)]  # as many as samplers make
        del copies


def _allocate(
    resolved: ResolvedConfig, layers: Sequence[KVLayerSpec], num_blocks: int, device: torch.device
) -> KVCaches:
    block_size, dtype = resolved.config.cache.block_size, torch_dtype(resolved.kv_dtype)
    return allocate_kv(layers, num_blocks, block_size, dtype, device)
