"""A model on a GPU, with all that its start measures and records there."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

import torch

from quire.core.request_limits import RequestLimits
from quire.engine.core.executor import Executor, OverlappedExecutor, UniprocExecutor
from quire.engine.core.model_runner import ModelRunner
from quire.engine.core.running_requests import RunningRequests
from quire.engine.gpu.device_runner import DeviceRunner
from quire.engine.gpu.kv_cache_profiling import measured_bytes
from quire.engine.gpu.step_work import layers_of_all_kinds
from quire.engine.startup.backend import Task
from quire.engine.startup.step_tuning import StepTable
from quire.engine.startup.torch_model import CausalLM, KVCaches, TorchModel
from quire.kernels.dispatch import compiling_ahead, has_triton, kernels_for
from quire.kvcache.kv_storage import allocate_kv
from quire.layers.forward_context import Heartbeat
from quire.sampling.structured_mask import Matcher


class DeviceBackend:
    """See `Backend`.

    Steps overlap where Triton's kernels serve the device. The plain twins of the operations wait
    for it within a step, so there each step runs to its end.
    """

    def __init__(
        self,
        task: Task,
        model: CausalLM,
        device: torch.device,
        dtype: torch.dtype,
        kv_dtype: torch.dtype,
    ) -> None:
        self.task, self.config = task, task.config
        self.device, self.dtype, self.kv_type = str(device), name_of(dtype), name_of(kv_dtype)
        self.table: StepTable | None = None
        self._model, self._on, self._dtype, self._kv_dtype = model, device, dtype, kv_dtype
        self._kv_caches: KVCaches = []

    def compiling(self) -> AbstractContextManager[None]:
        """Kernels are compiled side by side."""
        return compiling_ahead(self._on.type)

    def kv_budget(self) -> int:
        """What the largest step leaves."""
        return measured_bytes(
            self.config, self.task.model_config, self._model, self._dtype, self._on
        )

    def allocate(self, num_blocks: int) -> None:
        """Tensors of all layers."""
        model_config, block_size = self.task.model_config, self.config.cache.block_size
        sizes = (
            model_config.num_layers,
            num_blocks,
            block_size,
            model_config.num_kv_heads,
            model_config.head_dim,
        )
        self._kv_caches = allocate_kv(*sizes, self._kv_dtype, self._on)

    def make_executor(
        self, limits: RequestLimits, matchers: Mapping[str, Matcher], heartbeat: Heartbeat
    ) -> Executor:
        """Which overlaps steps, if it can."""
        running = RunningRequests(limits, self.config.cache.block_size, matchers, heartbeat)
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
            self.config.scheduler.max_num_batched_tokens,
            self._on,
            num_warmed_up=layers_of_all_kinds(self._model.attention_params),
            record=None if self.config.device.enforce_eager else cuda_graphs(),
            shares_prefixes=self.config.shares_prefixes,
        )
        runner.warm_up()
        return OverlappedExecutor(runner, runner.step_sizes)

    def has_started(self) -> None:
        """Nothing is left over."""


def name_of(dtype: torch.dtype) -> str:
    """PyTorch's own."""
    return str(dtype).removeprefix("torch.")
