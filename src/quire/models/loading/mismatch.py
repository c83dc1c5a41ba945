"""The error for a checkpoint whose tensors are not those of its model: which, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from quire.dtypes import CHECKPOINT_DTYPES
from quire.errors import CheckpointError
from quire.models.checkpoints.checkpoint import Checkpoint
from quire.models.config.model_config import ModelConfig

if TYPE_CHECKING:
    from quire.models.loading.quantized_source import QuantizedSource

_OF_CODES = (
    ".weight_scale", ".weight_scale_inv", ".qweight", ".weight_packed", ".weight.absmax", ".SCB",
)  # fmt: skip
_PRE_SCALE = ".pre_quant_scale"  # ModelOpt's, where no norm takes it up


def mismatch(
    checkpoint: Checkpoint,
    config: ModelConfig,
    owners: Mapping[str, QuantizedSource],
    missing: list[str],
    left_over: list[str],
) -> CheckpointError:
    """The error. missing, left_over: names of tensors; owners: the quantized weights of tensors."""
    quantized = config.checkpoint_format
    method = "" if quantized is None else f" quantized by {quantized.name}"
    fix = _fix(checkpoint, config, owners, missing, left_over)
    missing, left_over = (
        [checkpoint.stored_name(name) for name in names] for names in (missing, left_over)
    )
    return CheckpointError(
        f"{checkpoint.origin}: its tensors are not those of {config.architecture}{method}"
        f"{_listed('missing', missing)}{_listed('left over', left_over)}; {fix}"
    )


def _fix(
    checkpoint: Checkpoint,
    config: ModelConfig,
    owners: Mapping[str, QuantizedSource],
    missing: list[str],
    left_over: list[str],
) -> str:
    """The end of the message: the settings to correct, where they are of other weights."""
    quantized = config.checkpoint_format
    coded = [
        name.removesuffix(end) for name in left_over for end in _OF_CODES if name.endswith(end)
    ]
    plain = [
        source.module
        for name in missing
        if (source := owners.get(name)) is not None
        and (weight := checkpoint.entries.get(source.weight)) is not None
        and weight.dtype in CHECKPOINT_DTYPES
    ]
    if quantized is None and coded:
        return "config.json has no quantization_config: take the one of the quantized model"
    if set(coded) == {"lm_head"} and config.tie_word_embeddings:
        return (
            "lm_head has codes of its own, but config.json ties it to the embedding: set its "
            "tie_word_embeddings to false"
        )
    if missing and all(name.endswith(".g_idx") for name in missing):
        return (
            "g_idx says which inputs share a scale: take a checkpoint that has it, or set desc_act "
            "of its config file to false if groups are in the order of inputs"
        )
    if any(name.endswith(_PRE_SCALE) for name in left_over):
        return (
            f"activations are multiplied by {_PRE_SCALE[1:]}, which is not computed: take a "
            "checkpoint without it"
        )
    if plain and f"{plain[0]}.weight_scale" in checkpoint.entries:
        return (
            f"the files have 16-bit numbers of {plain[0]} and their scales: save the checkpoint "
            "compressed"
        )
    if quantized is None or not quantized.choice or not (coded or plain):
        return checkpoint.mismatch_fix
    module, has = (coded[0], "codes of") if coded else (plain[0], "16-bit numbers of")
    return f"the files have {has} {module}, unlike {quantized.choice}: correct that"


def _listed(what: str, names: list[str], most: int = 8) -> str:
    if not names:
        return ""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"; {what}: {', '.join(names[:most])}{more}"
