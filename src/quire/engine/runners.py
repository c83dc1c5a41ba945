"""Which runner and executor serve a device, and the compiling before. Owns the choice."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from quire.config import EngineConfig
from quire.core.request import RequestLimits
from quire.engine.device_runner import DeviceRunner
from quire.engine.executor import Executor, OverlappedExecutor, UniprocExecutor
from quire.engine.kv_size import run_largest_step
from quire.engine.model_runner import CausalLM, KVCaches, ModelRunner
from quire.engine.running import RunningRequests
from quire.engine.step_work import layers_of_all_kinds
from quire.kernels.dispatch import compiling_ahead, has_triton, kernels_for
from quire.kvcache.storage import allocate_kv, kv_dtype
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
    """A runner for the device, ready to run, behind its executor. beat: called in long steps.

    Steps overlap where Triton's kernels serve the device. The plain twins of the operations wait
    for it within a step, so there each step runs to its end.
    """
    running = RunningRequests(limits, config.cache.block_size, device, matchers, beat)
    if not overlaps(device):
        return UniprocExecutor(ModelRunner(model, kv_caches, running))
    runner = _device_runner(config, shape, model, kv_caches, limits, running, device)
    runner.prepare()
    return OverlappedExecutor(runner, runner.step_sizes)


def overlaps(device: torch.device) -> bool:
    """Whether its steps overlap."""
    return device.type == "cuda" and has_triton()


def compile_kernels(
    config: EngineConfig,
    shape: ModelArchitecture,
    model: CausalLM,
    limits: RequestLimits,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Compile what the largest step and all recorded ones launch, side by side, where that is late.

    They are launched by a runner that is thrown away, since how many blocks there will be is not
    known before the largest step has been run.
    """
    if not overlaps(device):
        return
    block_size, kept = config.cache.block_size, kv_dtype(config.cache.kv_cache_dtype, dtype)
    kv_shape = (shape.num_layers, 1, block_size, shape.num_kv_heads, shape.head_dim)
    kv_caches = allocate_kv(*kv_shape, kept, device)
    with compiling_ahead(device.type):
        run_largest_step(config, shape, model, dtype, device)
        running = RunningRequests(limits, block_size, device, {})
        _device_runner(config, shape, model, kv_caches, limits, running, device).rehearse()


def _device_runner(
    config: EngineConfig,
    shape: ModelArchitecture,
    model: CausalLM,
    kv_caches: KVCaches,
    limits: RequestLimits,
    running: RunningRequests,
    device: torch.device,
) -> DeviceRunner:
    from quire.engine.cuda_graph import cuda_graphs
    from quire.sampling.device import DeviceSampler  # which imports Triton

    return DeviceRunner(
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
