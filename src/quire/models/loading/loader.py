"""From a folder to a model that is ready to run.

Owns the order of things: the model is first built without memory (on the meta device) and compared
with the checkpoint, so that whatever does not fit is an error before anything large is allocated.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeGuard

import torch
from torch import Tensor, nn

from quire.config import ModelSettings
from quire.kernels.dispatch import Kernels, kernels_for
from quire.kernels.operands import LoadedWeight
from quire.kernels.torch_dtypes import dtype_name
from quire.layers.linear_layers import LinearBase
from quire.layers.parameter import LayerOptions, Weight, keep_at_hand
from quire.models.checkpoint_formats.checkpoint_scheme import choose_formats
from quire.models.checkpoints.open_checkpoint import open_checkpoint
from quire.models.config.model_config import ModelConfig
from quire.models.families.llama import LlamaForCausalLM
from quire.models.loading.checkpoint_source import CheckpointSource, Targets
from quire.models.loading.dummy_weights import fill_with_dummies
from quire.models.loading.expected_tensors import expected_tensors
from quire.models.loading.parameter_filling import Filling
from quire.models.prepared.prepared_weights import PreparedWeights, prepared_weights
from quire.quantization.scheme import FormatChoice, Scheme

logger = logging.getLogger(__name__)

_WORTH_MAPPING = 1 << 20  # bytes
_BIG = 1_000_000_000  # bytes from which on a progress bar is shown
_META = torch.device("meta")


def load_model(
    config: ModelSettings,
    model_config: ModelConfig,
    path: Path,
    device: torch.device,
    dtype: torch.dtype,
    kernels: Kernels | None = None,
) -> LlamaForCausalLM:
    """Build the model of a folder and fill it, converting weights to `dtype`.

    Weights are quantized one by one, as soon as they are loaded. A CPU stores models in their
    run-time format on disk (prepared_weights.py), and maps that next time. With load_format "dummy"
    the weights are random and only the config files are read. kernels: the operations that the
    model calls; the device's own if None. Raises CheckpointError for whatever is missing, left
    over, damaged or of the wrong shape.
    """
    model, prepared = load_unsaved(config, model_config, path, device, dtype, kernels)
    if prepared is not None:
        prepared.save_beside(model)
    return model


def load_unsaved(
    config: ModelSettings,
    model_config: ModelConfig,
    path: Path,
    device: torch.device,
    dtype: torch.dtype,
    kernels: Kernels | None = None,
) -> tuple[LlamaForCausalLM, PreparedWeights | None]:
    """The model as `load_model` makes it, and the prepared weights that are still to be written.

    None in place of these where there is nothing to write. The caller writes them when it likes,
    since that takes processor time from steps.
    """
    prepared = None
    if kernels is None and device.type == "cpu":
        prepared = prepared_weights(config, model_config, path, dtype)
    kernels = kernels or kernels_for(device.type)
    scheme = choose_formats(
        config, model_config.checkpoint_format, model_config.spec, device.type,
        dtype=dtype_name(dtype),
        capability=torch.cuda.get_device_capability(device) if device.type == "cuda" else None,
    )  # fmt: skip
    build = partial(_build, config, model_config, dtype=dtype, scheme=scheme)
    if prepared is not None:
        found = prepared.restore(lambda: build(device, kernels))
        if found is not None:
            keep_at_hand(found)
            return found.eval(), None
    if config.load_format == "dummy":
        model = build(device, kernels)
        fill_with_dummies(model, config.seed)
    else:
        source = CheckpointSource(open_checkpoint(path), model_config, scheme)
        source.check(source.named(weight_targets(build(_META, kernels_for("meta")))))
        model = build(device, kernels)
        _fill(model, source, device, dtype)
    keep_at_hand(model)
    return model.eval(), prepared


def check_tensors(path: Path, model_config: ModelConfig) -> None:
    """Compare a folder's tensors with its config as `load_model` does. Raises CheckpointError."""
    source = CheckpointSource(open_checkpoint(path), model_config, None)
    options = LayerOptions(torch.float32, _META, kernels_for("meta"))
    plan = LlamaForCausalLM(model_config.spec, model_config.max_position_embeddings, options)
    source.check(source.named(weight_targets(plan)))


def _build(
    config: ModelSettings,
    model_config: ModelConfig,
    device: torch.device,
    kernels: Kernels,
    *,
    dtype: torch.dtype,
    scheme: FormatChoice | None,
) -> LlamaForCausalLM:
    max_model_len = config.max_model_len or model_config.max_position_embeddings
    options = LayerOptions(dtype, device, kernels, scheme)
    model = LlamaForCausalLM(model_config.spec, max_model_len, options)
    if isinstance(scheme, Scheme) and device.type != "meta":
        _log_exceptions(scheme, model)
    return model


def _log_exceptions(scheme: Scheme, model: nn.Module) -> None:
    """Log which weights get another format than their scheme has first, for their size."""
    others: Counter[str] = Counter()
    for name, module in model.named_modules():
        own = scheme.applying_to(name)
        if own and isinstance(module, LinearBase) and module.method.weight_format is not None:
            wanted, found = own.formats[module.spec.role][0], module.method.weight_format
            why = f"{found.name} in place of {wanted.name}: their inputs are not a multiple of "
            others[f"{why}{wanted.spec.group}"] += found != wanted
    for what, count in (+others).items():
        logger.warning("%d weights are stored as %s", count, what)


def weight_targets(model: LlamaForCausalLM) -> Targets:
    """Every name that a checkpoint must have. Fused parameters are known by their parts' names."""
    parameters = dict(model.named_parameters())
    targets: Targets = {}
    for tensor in expected_tensors(model.spec):
        param = parameters[tensor.parameter]
        assert isinstance(param, Weight)
        targets[tensor.name] = (param, tensor.part)
    unfilled = parameters.keys() - {tensor.parameter for tensor in expected_tensors(model.spec)}
    assert not unfilled, f"parameters that no tensor fills: {sorted(unfilled)}"
    return targets


def _stays_mapped(tensor: LoadedWeight, param: Weight) -> TypeGuard[Tensor]:
    """Whether a weight is read where its file is mapped, which spares a copy of it.

    Most are converted from there; a table for look-ups stays there.
    """
    if not isinstance(tensor, Tensor):
        return False
    return tensor.dtype == param.dtype and tensor.nbytes >= _WORTH_MAPPING


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal for big checkpoints; yields a function that adds bytes read."""
    if total < _BIG or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # a tenth of a second, which most starts save
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("Loading weights", total=total)
        yield lambda num_bytes: progress.advance(task, num_bytes)


def _fill(
    model: LlamaForCausalLM, source: CheckpointSource, device: torch.device, dtype: torch.dtype
) -> None:
    """Copy the weights from the files, each once, converting on the way."""
    begin = time.monotonic()
    targets = source.named(weight_targets(model))
    filling = Filling(model, (param for param, _ in targets.values()))
    total = source.num_bytes
    with _progress(total) as advance:
        for name, weight, num_bytes in source.weights(device, dtype):
            param, part = targets.pop(name)
            if device.type == "cpu" and part is None and _stays_mapped(weight, param):
                param.data = weight
            else:
                param.load(weight, part)
            filling.filled(param)
            advance(num_bytes)
    filling.end()
    seconds = time.monotonic() - begin
    logger.info("%.2f GB read at %.1f GB/s", total / 1e9, total / 1e9 / max(seconds, 1e-9))
