"""Checkpoints of NVIDIA's ModelOpt in FP8, with a scale per tensor. No torch."""

from __future__ import annotations

import re
from fnmatch import translate

from quire.models.checkpoint_formats.module_rules import ModuleRules
from quire.models.checkpoint_formats.stored_fp8 import Fp8Linear
from quire.models.checkpoints.config_file import ConfigFile


def read_modelopt(config: ConfigFile) -> ModuleRules:
    """The format of a quantization_config, or of hf_quant_config.json. Raises CheckpointError."""
    algorithm = config.text("quant_algo")
    if algorithm != "FP8":
        raise config.wrong("quant_algo", f"is {algorithm!r}; take a checkpoint in FP8")
    ignored = config.texts("ignore") + config.texts("exclude_modules")
    linear = Fp8Linear(f"{config.path.name}: {config.where}".rstrip("."), "weight_scale")
    rules = tuple((re.compile(translate(pattern)), None) for pattern in ignored)
    return ModuleRules(name="modelopt", linear=linear, rules=rules, has_head=True)
