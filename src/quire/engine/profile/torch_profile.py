"""The profile of a step that PyTorch runs: on a GPU, and what the compiled decoder does not serve.

The operations are those of the dispatch seam (kernels/dispatch.Kernels): a step runs once with
wrapped ones, which note what each call is given; then calls of one kind are timed together, all
layers' one after the other, so that no weight is found in a cache. What lies between them (the
embedding, views) shows as the difference to the time of the step as a whole.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from quire.config import EngineConfig
from quire.core.layer_spec import UnsupportedModelError
from quire.engine.profile.compiled_profile import profile_compiled
from quire.engine.profile.profile_result import Operation, Profile, StepShape
from quire.engine.profile.roofline import Call, Roofline
from quire.engine.profile.step_recorder import CallKind, Recorder
from quire.engine.profile.torch_roofline import measure_roofline, time_calls
from quire.engine.startup.device_policy import torch_reason
from quire.engine.startup.resolved_config import ResolvedConfig
from quire.engine.startup.step_tuning import is_tiny, measure_steps, thread_candidates
from quire.engine.startup.torch_start import (
    compiled_weights_of,
    requested_kernels,
    resolve_for_torch,
)
from quire.kernels.batch_layout import BatchLayout
from quire.kernels.cpu.native import set_num_threads
from quire.kernels.dispatch import kernels_for
from quire.kernels.torch_dtypes import torch_dtype
from quire.kvcache.kv_storage import allocate_kv
from quire.layers.forward_context import ForwardContext
from quire.models.loading.loader import load_model, load_unsaved
from quire.models.runtimes.torch_model import with_cache


def profile_with_torch(config: EngineConfig, step: StepShape) -> Profile:
    """Load the model with PyTorch, and profile a step of whatever would serve it then.

    Raises CheckpointError or ConfigError.
    """
    device, resolved = resolve_for_torch(config)
    step.check(resolved.model_config)
    if device.type == "cpu" and torch_reason(resolved.config) is None:
        try:
            return _profile_first_start(resolved, step)
        except UnsupportedModelError:
            pass
    return _profile_modules(resolved, device, step)


def _profile_first_start(resolved: ResolvedConfig, step: StepShape) -> Profile:
    """The compiled decoder over weights that are prepared now. Raises UnsupportedModelError."""
    dtype = torch_dtype(resolved.dtype)
    model, unsaved = load_unsaved(
        resolved.config.model, resolved.model_config, resolved.folder, torch.device("cpu"), dtype
    )
    profile = profile_compiled(resolved, compiled_weights_of(model), step)
    if unsaved is not None:
        unsaved.save_beside(model)
    return profile


def _profile_modules(resolved: ResolvedConfig, device: torch.device, step: StepShape) -> Profile:
    config, model_config = resolved.config, resolved.model_config
    dtype, kv_dtype = torch_dtype(resolved.dtype), torch_dtype(resolved.kv_dtype)
    threads = thread_candidates(config, model_config)
    set_num_threads(threads[0])
    recorder = Recorder(requested_kernels(config, device) or kernels_for(device.type))
    model = load_model(config.model, model_config, resolved.folder, device, dtype, recorder.kernels)
    table, block_size = None, config.cache.block_size
    if device.type == "cpu" and not is_tiny(model_config):
        ready = partial(with_cache, model, resolved.kv_layers, block_size, kv_dtype)
        table = measure_steps(ready, model_config, block_size, threads)
    with torch.inference_mode():
        run = _step(model, resolved, step, device, recorder)
        recorder.record(run)
        in_fp8 = any(kind.in_fp8 for kind in recorder.kinds.values())
        roofline = measure_roofline(device, dtype, in_fp8=in_fp8)
        operations = [_timed(key, kind, roofline, device) for key, kind in recorder.kinds.items()]
        seconds = time_calls([run], device)
    return Profile(
        config.model.model,
        str(device),
        resolved.dtype,
        "PyTorch modules",
        step,
        roofline,
        sorted(operations, key=lambda operation: -operation.seconds),
        seconds,
        table,
    )


def _step(
    model: Any,
    resolved: ResolvedConfig,
    step: StepShape,
    device: torch.device,
    recorder: Recorder,
) -> Call:
    """A pass over such a batch, to be called again and again."""
    model_config, block_size = resolved.model_config, resolved.config.cache.block_size
    dtype = torch_dtype(resolved.kv_dtype)
    batch = step.batch(block_size)
    kv_caches = allocate_kv(resolved.kv_layers, batch.block_table.size, block_size, dtype, device)
    recorder.ignore(kv_caches)
    layout = BatchLayout.of(batch, device)
    context = ForwardContext(layout, kv_caches)
    positions = torch.from_numpy(batch.flat.positions).to(device)
    input_ids = positions % model_config.vocab_size
    last = layout.query_start_loc[1:].long() - 1

    def run() -> None:
        hidden = model.forward(input_ids, positions, context)
        if model_config.has_head:
            model.compute_logits(hidden.index_select(0, last))

    return run


def _timed(
    key: tuple[str, str], kind: CallKind, roofline: Roofline, device: torch.device
) -> Operation:
    count = len(kind.calls)
    num_bytes, flops = kind.num_bytes * count, kind.flops * count
    return Operation(
        *key,
        count,
        num_bytes,
        flops,
        time_calls(kind.calls, device),
        roofline.floor(num_bytes, flops, in_fp8=kind.in_fp8),
        roofline.is_memory_bound(num_bytes, flops, in_fp8=kind.in_fp8),
    )
