"""The weights of a checkpoint, by the names that a model knows, checked before any is read."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Collection, Iterator

import torch
from torch import Tensor

from quire.dtypes import CHECKPOINT_DTYPES
from quire.kernels.formats.table import format_of
from quire.kernels.operands import LoadedWeight
from quire.layers.parameter import Weight, WeightShapeError
from quire.models.checkpoint_formats.kv_cache_scheme import kv_scale_name
from quire.models.checkpoints.checkpoint import Checkpoint
from quire.models.checkpoints.gpu_transfer import DeviceReader
from quire.models.checkpoints.safetensors_header import TensorEntry
from quire.models.config.model_config import ModelConfig
from quire.models.loading.kv_scales import folding_factors, read_kv_scales
from quire.models.loading.mismatch import mismatch
from quire.models.loading.quantized_source import check_orders, quantized_sources
from quire.models.loading.tied_head import check_tied_head
from quire.quantization.canonical_rows import scale_rows
from quire.quantization.scheme import FormatChoice

logger = logging.getLogger(__name__)

# scales of activations follow from each token, so that stored ones have no use
_OF_ACTIVATIONS = re.compile(
    r".*\.(?:input|output|activation)_(?:(?:global_)?scale(?:_ub|_inv)?|zero_point)"
)

_LOOKED_AT = 1 << 14  # numbers of a tensor, before it is used

# name of a weight → the parameter it fills, and which part of it
Targets = dict[str, tuple[Weight, str | None]]


class CheckpointSource:
    """A checkpoint's weights. Several tensors of a quantized one become a weight.

    scheme: which formats the model has. Raises CheckpointError.
    """

    def __init__(
        self, checkpoint: Checkpoint, model_config: ModelConfig, scheme: FormatChoice | None
    ) -> None:
        self._checkpoint, self._model_config = checkpoint, model_config
        self._prefix = checkpoint.missing_prefix
        sources = quantized_sources(model_config, scheme, self._prefix)
        self._quantized = {source.weight: source for source in sources}
        self._owners = {
            name: source
            for source in self._quantized.values()
            for name in source.tensors(checkpoint.entries.keys())
        }
        self._names: set[str] = set()
        self._log_numbers()

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors that are read."""
        return sum(self._checkpoint.entries[name].num_bytes for name in self._names)

    def named(self, targets: Targets) -> Targets:
        """Targets by the names of this checkpoint."""
        return {name.removeprefix(self._prefix): target for name, target in targets.items()}

    def check(self, targets: Targets) -> None:
        """Compare names, shapes and data types with a model that has no memory.

        targets: by the names of this checkpoint. Raises CheckpointError for whatever is missing,
        left over or different.
        """
        entries, quantized = self._checkpoint.entries, self._quantized
        names = (targets.keys() - quantized.keys()) | self._owners.keys()
        missing = sorted(names - entries.keys())
        left_over = [name for name in entries if name not in names and not self._is_harmless(name)]
        left_over = self._without_zero_biases(left_over, targets.keys())
        if missing or left_over:
            raise mismatch(self._checkpoint, self._model_config, self._owners, missing, left_over)
        for name in sorted(names):  # so that the same one is told each time
            if name in self._owners:
                self._owners[name].check(entries[name])
            else:
                _check(entries[name], *targets[name])
        check_orders(self._checkpoint, quantized.values())
        check_tied_head(self._checkpoint, self._model_config.spec, self._prefix)
        self._names = names

    def weights(
        self, device: torch.device, dtype: torch.dtype
    ) -> Iterator[tuple[str, LoadedWeight, int]]:
        """Each weight with its name and the bytes that were read for it, in order of the files.

        Scales of an FP8 KV cache are folded in. dtype: of the model.
        """
        factors = self._folding_factors(dtype)
        for name, weight, num_bytes in self._stored_weights(device, dtype):
            own = factors.get(self._prefix + name)
            yield name, weight if own is None else scale_rows(weight, own), num_bytes

    def _folding_factors(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """The factors of weights that stand for the scales of an FP8 KV cache."""
        scales = read_kv_scales(self._checkpoint, self._prefix)
        sources = self._quantized.values()
        specs = ((source, source.stored.spec(source.k)) for source in sources)
        halves = [s.fused for s, spec in specs if spec and format_of(spec).has_float16_scales]
        in_float16 = {
            layer
            for layer in scales
            if dtype == torch.float16 or any(name.startswith(f"{layer}.") for name in halves)
        }
        return folding_factors(self._model_config.spec, scales, in_float16)

    def _stored_weights(
        self, device: torch.device, dtype: torch.dtype
    ) -> Iterator[tuple[str, LoadedWeight, int]]:
        waiting: dict[str, dict[str, Tensor]] = {}
        are_finite: list[tuple[TensorEntry, Tensor]] = []
        for entry, tensor in read_tensors(self._checkpoint, self._names, device):
            source = self._owners.get(entry.name)
            if source is None:
                are_finite.append((entry, _looks_finite(tensor)))
                yield entry.name, tensor, entry.num_bytes
                continue
            own = waiting.setdefault(source.weight, {})
            own[entry.name] = tensor
            if len(own) == len(source.tensors(self._names)):
                num_bytes = sum(each.nbytes for each in own.values())
                yield source.weight, source.load(waiting.pop(source.weight), dtype), num_bytes
        _check_finite(are_finite)

    def _log_numbers(self) -> None:
        """Log how many weights become numbers, which take more memory than their codes."""
        stored, numbers = self._model_config.checkpoint_format, Counter[str]()
        for source in self._quantized.values():
            numbers[source.stored.settings] += not source.keeps_codes
        for settings, count in (+numbers).items():
            assert stored is not None
            logger.info(
                "%d weights that %s has quantized%s are dequantized while they are loaded",
                count, stored.name, settings,
            )  # fmt: skip

    def _without_zero_biases(self, names: list[str], weights: Collection[str]) -> list[str]:
        """These names without biases of zeros, which packers of GPTQ give each layer."""
        biases = {name for name in names if name.endswith(".bias")}
        biases = {name for name in biases if f"{name.removesuffix('.bias')}.weight" in weights}
        tensors = self._checkpoint.tensors(biases)
        zeros = {entry.name for entry, tensor in tensors if not bool(tensor.any())}
        return [name for name in names if name not in zeros]

    def _is_harmless(self, name: str) -> bool:
        """Tensors that old checkpoints carry and nothing needs."""
        config = self._model_config
        if name.endswith(".rotary_emb.inv_freq") or kv_scale_name(name) is not None:
            return True
        if config.checkpoint_format is not None and _OF_ACTIVATIONS.fullmatch(name):
            return True
        if not config.has_head:
            return name.startswith("lm_head.")
        return name == "lm_head.weight" and config.tie_word_embeddings


def read_tensors(
    checkpoint: Checkpoint, names: set[str], device: torch.device
) -> Iterator[tuple[TensorEntry, Tensor]]:
    """Mapped files for a CPU; a GPU gets what several threads read ahead, if nothing is changed."""
    if device.type == "cpu" or not checkpoint.is_as_stored:
        for entry, tensor in checkpoint.tensors(names):
            yield entry, tensor.to(device)
        return
    with DeviceReader(device) as reader:
        yield from reader.tensors(checkpoint.in_file_order(names))


def _looks_finite(tensor: Tensor) -> Tensor:
    """Whether numbers are finite, a bool on the tensor's device: all of norms, some of large ones.

    What is not seen here is found when it has made logits that are not finite.
    """
    rows = tensor if tensor.dim() else tensor[None]
    return rows[:: max(1, tensor.numel() // _LOOKED_AT)].isfinite().all()


def _check_finite(found: list[tuple[TensorEntry, Tensor]]) -> None:
    """Raise CheckpointError for the first tensor with NaN or infinity. Waits for a GPU once."""
    flags = torch.stack([is_finite for _, is_finite in found]).tolist() if found else []
    for (entry, _), is_finite in zip(found, flags, strict=True):
        if not is_finite:
            raise entry.wrong("it has numbers that are not finite (NaN or infinity)")


def _check(entry: TensorEntry, param: Weight, part: str | None) -> None:
    if entry.dtype not in CHECKPOINT_DTYPES:
        known = ", ".join(CHECKPOINT_DTYPES)
        raise entry.wrong(f"its dtype is {entry.dtype}, but weights are one of {known}")
    try:
        param.weight_loader(param, torch.empty(entry.shape, device="meta"), part)
    except WeightShapeError as error:
        raise entry.wrong(str(error)) from error
