"""Checkpoints of ModelOpt: FP8, MXFP8, INT8, MXFP4 and NVFP4, also several in one. No torch."""

from __future__ import annotations

import re
from collections import defaultdict
from fnmatch import translate

from quire.config_file import ConfigFile
from quire.models.checkpoint_formats.checkpoint_format import StoredLinear
from quire.models.checkpoint_formats.module_rules import ModuleRules, Names
from quire.models.checkpoint_formats.stored_fp4 import (
    MXFP4_GROUP,
    NVFP4_GROUP,
    Mxfp4Linear,
    Nvfp4Linear,
)
from quire.models.checkpoint_formats.stored_fp8 import Fp8Linear
from quire.models.checkpoint_formats.stored_int8 import Int8Linear

_MIXED = "MIXED_PRECISION"  # each module has an algorithm of its own
_SCALE = "weight_scale"


def read_modelopt(config: ConfigFile) -> ModuleRules:
    """The format of ModelOpt's quantization_config, or hf_quant_config.json.

    Raises CheckpointError.
    """
    ignored = config.texts("ignore") + config.texts("exclude_modules")
    own = defaultdict[StoredLinear | None, list[str]](list)
    is_mixed = config.text("quant_algo", "") == _MIXED
    layers = config.section("quantized_layers") if is_mixed else None
    for module in layers.values if layers is not None else ():
        assert layers is not None
        if (section := layers.section(module)) is not None:
            own[_stored(section, config.location)].append(module)
    return ModuleRules(
        name="modelopt",
        linear=None if is_mixed else _stored(config, config.location),
        rules=(
            *((Names(modules), stored) for stored, modules in own.items()),
            *((re.compile(translate(pattern)), None) for pattern in ignored),
        ),
        ignored=frozenset(ignored),
        has_head=True,
        choice=f"ignore, exclude_modules and quantized_layers of {config.location}",
    )


def _stored(config: ConfigFile, where: str) -> StoredLinear | None:
    """The storage of weights by an entry with an algorithm. Raises CheckpointError.

    None without one, where only the KV cache is quantized.
    """
    if (algorithm := config.text("quant_algo", "").upper()) == "":
        return None
    group = _weights(config).integer("group_size", NVFP4_GROUP)
    layouts: dict[str, StoredLinear] = {
        "FP8": Fp8Linear(where, _SCALE, per="tensor"),
        "FP8_PER_CHANNEL_PER_TOKEN": Fp8Linear(where, _SCALE, per="channel"),
        "FP8_PB_WO": Fp8Linear(where, _SCALE, (128, 128), rounds=False),
        "MXFP8": Fp8Linear(where, _SCALE, (1, MXFP4_GROUP)),
        "MXFP4": Mxfp4Linear(where, "weight", _SCALE),
        "NVFP4": Nvfp4Linear(where, "weight", "weight_scale_2", group, divides=False),
        "W8A16": Int8Linear(where, rounds=False, per="channel"),
        "W8A8_SQ_PER_CHANNEL": Int8Linear(where, rounds=True, per="channel"),
    }
    layouts["W4A16_NVFP4"] = layouts["NVFP4"]
    if algorithm not in layouts:
        raise config.wrong(
            "quant_algo", f"is {algorithm!r}; take a checkpoint in {', '.join(layouts)} or {_MIXED}"
        )
    return layouts[algorithm]


def _weights(config: ConfigFile) -> ConfigFile:
    """The entry that has a group size: hf_quant_config.json's, or the weights' in config.json."""
    groups = config.section("config_groups")
    group = groups.section("group_0") if groups is not None else None
    return (group.section("weights") if group is not None else None) or config
