"""One step of a model taken apart: each operation's bytes, FLOPs and time.

The operations are those of the dispatch seam (kernels/dispatch.Kernels): a step runs once with
wrapped ones, which note what each call is given; then calls of one kind are timed together, all
layers' one after the other, so that no weight is found in a cache. What lies between them (the
embedding, views) shows as the difference to the time of the step as a whole.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from quire.config import EngineConfig
from quire.engine.profile.roofline import Call, Roofline, measure_roofline, time_calls
from quire.engine.profile.step_recorder import CallKind, Recorder
from quire.engine.startup.step_tuning import StepTable, is_tiny, measure_steps, thread_candidates
from quire.engine.startup.torch_model import with_cache
from quire.engine.startup.torch_start import requested_kernels, resolve_for_torch
from quire.errors import ConfigError
from quire.kernels.batch_layout import BatchLayout
from quire.kernels.cpu.native import set_num_threads
from quire.kernels.dispatch import kernels_for
from quire.kernels.torch_dtypes import dtype_name, torch_dtype
from quire.kvcache.kv_storage import allocate_kv
from quire.layers.forward_context import ForwardContext
from quire.models.config.model_config import ModelConfig
from quire.models.loading.loader import load_model


@dataclass(frozen=True, slots=True)
class StepShape:
    """Requests of a step, all alike. num_new: tokens each computes; context: in its cache then.

    One new token is a decode step; as many as the context has, the prefill of prompts.
    """

    num_requests: int
    num_new: int
    context: int


@dataclass(frozen=True, slots=True)
class Operation:
    """All calls of one kind in a step. floor: the least seconds by the roofline."""

    name: str
    shape: str
    count: int
    num_bytes: int
    flops: int
    seconds: float
    floor: float
    memory_bound: bool


@dataclass(frozen=True, slots=True)
class Profile:
    """A step, and what the device could do at best. seconds: of the step as a whole.

    table: what an engine measures when it starts, where it does.
    """

    model: str
    device: str
    dtype: str
    step: StepShape
    roofline: Roofline
    operations: list[Operation]
    seconds: float
    table: StepTable | None

    def together(self) -> Operation:
        """The sum of all operations."""
        count, num_bytes, flops = (
            sum(getattr(op, name) for op in self.operations)
            for name in ("count", "num_bytes", "flops")
        )
        seconds = sum(op.seconds for op in self.operations)
        floor = sum(op.floor for op in self.operations)
        bound = self.roofline.is_memory_bound(num_bytes, flops)
        return Operation("all of these", "", count, num_bytes, flops, seconds, floor, bound)

    def as_json(self) -> dict[str, Any]:
        """All of it for machines."""
        return asdict(self)


def profile_step(config: EngineConfig, step: StepShape) -> Profile:
    """Load the model, run the step and time it. Raises CheckpointError or ConfigError."""
    device, resolved = resolve_for_torch(config)
    config, model_config = resolved.config, resolved.model_config
    _check_positions(step, model_config)
    dtype, kv_type = torch_dtype(resolved.dtype), torch_dtype(resolved.kv_dtype)
    threads = thread_candidates(config, model_config)
    set_num_threads(threads[0])
    recorder = Recorder(requested_kernels(config, device) or kernels_for(device.type))
    model = load_model(config.model, model_config, resolved.folder, device, dtype, recorder.kernels)
    table = None
    if device.type == "cpu" and not is_tiny(model_config):
        table = measure_steps(
            partial(with_cache, model, model_config, config.cache.block_size, kv_type),
            model_config,
            config.cache.block_size,
            threads,
        )
    with torch.inference_mode():
        run = _step(model, model_config, step, config.cache.block_size, kv_type, device, recorder)
        recorder.record(run)
        in_fp8 = any(kind.in_fp8 for kind in recorder.kinds.values())
        roofline = measure_roofline(device, dtype, in_fp8=in_fp8)
        operations = [_timed(key, kind, roofline, device) for key, kind in recorder.kinds.items()]
        seconds = time_calls([run], device)
    return Profile(
        config.model.model,
        str(device),
        dtype_name(dtype),
        step,
        roofline,
        sorted(operations, key=lambda operation: -operation.seconds),
        seconds,
        table,
    )


def _check_positions(step: StepShape, model_config: ModelConfig) -> None:
    if step.context > model_config.max_position_embeddings:
        name = "context" if step.num_new == 1 else "prefill"
        raise ConfigError(
            f"{name} is {step.context}, but the model knows positions up to "
            f"{model_config.max_position_embeddings}; lower it"
        )


def _step(
    model: Any,
    model_config: ModelConfig,
    step: StepShape,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
    recorder: Recorder,
) -> Call:
    """A pass over such a batch, to be called again and again."""
    blocks_each = -(-step.context // block_size)
    num_blocks = step.num_requests * blocks_each
    kv_layers = model_config.spec.kv_layers
    kv_caches = allocate_kv(kv_layers, num_blocks, block_size, dtype, device)
    recorder.ignore(kv_caches)
    table = np.arange(num_blocks, dtype=np.int32).reshape(step.num_requests, blocks_each)
    lens, contexts = [step.num_new] * step.num_requests, [step.context] * step.num_requests
    layout = BatchLayout.build(lens, contexts, table, block_size, device)
    context = ForwardContext(layout, kv_caches)
    own = torch.arange(step.context - step.num_new, step.context, device=device)
    positions = own.repeat(step.num_requests)
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
