"""Checkpoints of NVIDIA's ModelOpt in FP8, with a scale per tensor or output. No torch."""

from __future__ import annotations

import re
from fnmatch import translate

from quire.models.checkpoint_formats.module_rules import ModuleRules
from quire.models.checkpoint_formats.stored_fp8 import Fp8Linear
from quire.models.checkpoints.config_file import ConfigFile

_PER = {"FP8": "tensor", "FP8_PER_CHANNEL_PER_TOKEN": "channel"}  # what has a scale


def read_modelopt(config: ConfigFile) -> ModuleRules:
    """The format of a quantization_config, or of hf_quant_config.json. Raises CheckpointError."""
    algorithm = config.text("quant_algo")
    if algorithm not in _PER:
        raise config.wrong(
            "quant_algo", f"is {algorithm!r}; take a checkpoint in {' or '.join(_PER)}"
        )
    ignored = config.texts("ignore") + config.texts("exclude_modules")
    linear = Fp8Linear(config.location, "weight_scale", per=_PER[algorithm])
    rules = tuple((re.compile(translate(pattern)), None) for pattern in ignored)
    return ModuleRules(
        name="modelopt",
        linear=linear,
        rules=rules,
        ignored=frozenset(ignored),
        has_head=True,
        choice=f"ignore and exclude_modules of {config.location}",
    )
