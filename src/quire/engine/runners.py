"""Which runner and executor serve a device. Owns the choice."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from quire.config import EngineConfig
from quire.core.limits import RequestLimits
from quire.engine.device_runner import DeviceRunner
from quire.engine.executor import Executor, OverlappedExecutor, UniprocExecutor
from quire.engine.model_runner import CausalLM, KVCaches, ModelRunner
from quire.engine.running import RunningRequests
from quire.engine.step_work import layers_of_all_kinds
from quire.kernels.dispatch import has_triton, kernels_for
from quire.layers.context import Beat
from quire.models.architecture import ModelArchitecture
from quire.sampling.structured import Matcher


def make_executor(
    config: EngineConfig,
    shape: ModelArchitecture,
    model: CausalLM,
    kv_caches: KVCaches,
    limits: RequestLimits,
    device: torch.device,
    matchers: Mapping[str, Matcher],
    beat: Beat,
) -> Executor:
    """A runner for the device behind its executor, which has still to `get_ready`.

    beat: called in long steps.
    Steps overlap where Triton's kernels serve the device. The plain twins of the operations wait
    for it within a step, so there each step runs to its end.
    """
    running = RunningRequests(limits, config.cache.block_size, device, matchers, beat)
    if device.type != "cuda" or not has_triton():
        return UniprocExecutor(ModelRunner(model, kv_caches, running))
    from quire.engine.cuda_graph import cuda_graphs
    from quire.sampling.device import DeviceSampler  # which imports Triton

    runner = DeviceRunner(
        model,
        kv_caches,
        limits,
        running,
        DeviceSampler(running.sampling, limits.max_num_seqs, limits.vocab_size, device),
        kernels_for(device.type),
        config.scheduler.max_num_batched_tokens,
        device,
        num_rehearsed=layers_of_all_kinds(shape.sliding_windows),
        record=None if config.device.enforce_eager else cuda_graphs(),
        shares_prefixes=config.shares_prefixes,
    )
    runner.rehearse()
    return OverlappedExecutor(runner, runner.step_sizes)
