"""From a folder to a model that is ready to run.

Owns the match between a checkpoint's names and the model's parameters, and the order of things: the
model is first built without memory (on the meta device) and the load is tried there, so that
whatever does not fit is an error before anything large is allocated.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from quire.config import ModelSettings
from quire.dtypes import CHECKPOINT_DTYPES
from quire.errors import CheckpointError
from quire.kernels.dispatch import Kernels, kernels_for
from quire.layers.linear_layers import LinearBase
from quire.layers.parameter import LayerOptions, Weight, WeightShapeError, keep_at_hand
from quire.models.checkpoints.checkpoint import Checkpoint
from quire.models.checkpoints.gpu_transfer import DeviceReader
from quire.models.checkpoints.safetensors_header import TensorEntry
from quire.models.config.model_config import ModelConfig
from quire.models.families.llama import LlamaForCausalLM
from quire.models.loading.dummy_weights import fill_with_dummies
from quire.models.loading.expected_tensors import expected_tensors
from quire.models.loading.parameter_filling import Filling
from quire.models.prepared.prepared_weights import PreparedWeights, prepared_weights
from quire.quantization.scheme import Scheme, scheme_of

logger = logging.getLogger(__name__)

_PREFIX = "model."  # of all names but the head's
_WORTH_MAPPING = 1 << 20  # bytes
_BIG = 1_000_000_000  # bytes from which on a progress bar is shown

# checkpoint name → the parameter it fills, and which part of it
Targets = dict[str, tuple[Weight, str | None]]


def load_model(
    config: ModelSettings,
    model_config: ModelConfig,
    path: Path,
    device: torch.device,
    dtype: torch.dtype,
    kernels: Kernels | None = None,
) -> LlamaForCausalLM:
    """Build the model of a folder and fill it, converting weights to `dtype`.

    kernels: the operations that it calls; the device's own if None.

    Weights are quantized one by one, as soon as they are loaded.

    A CPU keeps models in their run-time form on disk (prepared_weights.py), and maps that next
    time.

    With load_format "dummy" the weights are random and only the config files are read.
    Raises CheckpointError for whatever is missing, left over, damaged or of the wrong shape.
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
    """The same, with where it is still to be saved: writing takes of what steps have."""
    prepared = None
    if kernels is None and device.type == "cpu":
        prepared = prepared_weights(config, model_config, path, dtype)
    kernels = kernels or kernels_for(device.type)
    if prepared is not None:
        found = prepared.restore(lambda: _build(config, model_config, device, dtype, kernels))
        if found is not None:
            keep_at_hand(found)
            return found.eval(), None
    if config.load_format == "dummy":
        model = _build(config, model_config, device, dtype, kernels)
        fill_with_dummies(model, config.seed)
    else:
        checkpoint = Checkpoint.open(path)
        plan = _build(config, model_config, torch.device("meta"), dtype, kernels_for("meta"))
        names = _warm_up(checkpoint, plan, model_config)
        model = _build(config, model_config, device, dtype, kernels)
        _fill(model, checkpoint, names, device)
    keep_at_hand(model)
    return model.eval(), prepared


def _build(
    config: ModelSettings,
    model_config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    kernels: Kernels,
) -> LlamaForCausalLM:
    max_model_len = config.max_model_len or model_config.max_position_embeddings
    scheme = scheme_of(config.quantization)
    options = LayerOptions(dtype, device, kernels, scheme)
    model = LlamaForCausalLM(model_config.spec, max_model_len, options)
    if scheme is not None and device.type != "meta":
        _log_exceptions(scheme, model)
    return model


def _log_exceptions(scheme: Scheme, model: nn.Module) -> None:
    """Log which weights get another format than their scheme has first, for their size."""
    others: Counter[str] = Counter()
    for module in model.modules():
        if isinstance(module, LinearBase) and module.method.weight_format is not None:
            wanted, found = scheme.formats[module.spec.role][0], module.method.weight_format
            why = f"{found.name} in place of {wanted.name}: their inputs are no multiple of "
            others[f"{why}{wanted.spec.group}"] += found != wanted
    for what, count in (+others).items():
        logger.info("%d weights are stored as %s", count, what)


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


def _targets_in(checkpoint: Checkpoint, model: LlamaForCausalLM) -> Targets:
    """The targets by this checkpoint's names: those saved without a head lack the prefix, too."""
    targets = weight_targets(model)
    if any(name.startswith(_PREFIX) for name in checkpoint.entries):
        return targets
    return {name.removeprefix(_PREFIX): target for name, target in targets.items()}


def _warm_up(checkpoint: Checkpoint, plan: LlamaForCausalLM, model_config: ModelConfig) -> set[str]:
    """Load tensors without content into a model without memory; returns the names to load."""
    targets = _targets_in(checkpoint, plan)
    missing = [name for name in targets if name not in checkpoint.entries]
    left_over = [
        name
        for name in checkpoint.entries
        if name not in targets and not _is_harmless(name, model_config)
    ]
    if missing or left_over:
        raise CheckpointError(
            f"{checkpoint.folder}: its tensors are not those of {model_config.architecture}"
            f"{_listed('missing', missing)}{_listed('left over', left_over)}; check that "
            "config.json and the safetensors files belong together"
        )
    for name, (param, part) in targets.items():
        _check(checkpoint.entries[name], param, part)
    return set(targets)


def _check(entry: TensorEntry, param: Weight, part: str | None) -> None:
    if entry.dtype not in CHECKPOINT_DTYPES:
        known = ", ".join(CHECKPOINT_DTYPES)
        raise entry.wrong(f"its dtype is {entry.dtype}, but weights are one of {known}")
    try:
        param.weight_loader(param, torch.empty(entry.shape, device="meta"), part)
    except WeightShapeError as error:
        raise entry.wrong(str(error)) from error


def _is_harmless(name: str, model_config: ModelConfig) -> bool:
    """Tensors that old checkpoints carry and nothing needs."""
    return name.endswith(".rotary_emb.inv_freq") or (
        name == "lm_head.weight" and (model_config.tie_word_embeddings or not model_config.has_head)
    )


def _listed(what: str, names: list[str], most: int = 8) -> str:
    if not names:
        return ""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"; {what}: {', '.join(names[:most])}{more}"


def _tensors(
    checkpoint: Checkpoint, names: set[str], device: torch.device
) -> Iterator[tuple[TensorEntry, Tensor]]:
    """Mapped files for a CPU; a GPU gets what several threads read ahead."""
    if device.type == "cpu":
        yield from checkpoint.tensors(names)
        return
    with DeviceReader(device) as reader:
        yield from reader.tensors(checkpoint.in_file_order(names))


def _stays_mapped(tensor: Tensor, param: Weight) -> bool:
    """Whether a weight is read where its file is mapped, which spares a copy of it.

    Most are converted from there; a table for look-ups stays there.
    """
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
    model: LlamaForCausalLM, checkpoint: Checkpoint, names: set[str], device: torch.device
) -> None:
    """Copy the weights from the files, each once, converting on the way."""
    begin = time.monotonic()
    targets = _targets_in(checkpoint, model)
    filling = Filling(model, (param for param, _ in targets.values()))
    total = sum(checkpoint.entries[name].num_bytes for name in names)
    with _progress(total) as advance:
        for entry, tensor in _tensors(checkpoint, names, device):
            param, part = targets.pop(entry.name)
            if device.type == "cpu" and part is None and _stays_mapped(tensor, param):
                param.data = tensor
            else:
                param.load(tensor, part)
            filling.filled(param)
            advance(entry.num_bytes)
    filling.end()
    seconds = time.monotonic() - begin
    logger.info("%.2f GB read at %.1f GB/s", total / 1e9, total / 1e9 / max(seconds, 1e-9))
