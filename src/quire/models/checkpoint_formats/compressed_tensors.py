"""Checkpoints of compressed-tensors (llm-compressor): integers and FP8. No torch at import.

`pack-quantized`: see `PackedLinear`. `int-quantized` and `float-quantized`: weight [N, K] and
weight_scale.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from quire.config_file import ConfigFile
from quire.models.checkpoint_formats.checkpoint_format import StoredLinear
from quire.models.checkpoint_formats.fp8_checkpoint import read_block
from quire.models.checkpoint_formats.module_rules import ModuleRules, Names, Rule, check_patterns
from quire.models.checkpoint_formats.stored_fp4 import MXFP4_GROUP, Mxfp4Linear, Nvfp4Linear
from quire.models.checkpoint_formats.stored_fp8 import Fp8Linear
from quire.models.checkpoint_formats.stored_int8 import GroupedBytesLinear, Int8Linear
from quire.models.checkpoint_formats.stored_packed import PackedLinear
from quire.models.checkpoints.checkpoint import has_numbers

_HEAD = "lm_head"
_REGEX = "re:"
_LINEAR, _EMBEDDING = "Linear", "Embedding"  # classes of modules
_BITS = range(2, 9)  # of integers
_IN_BYTES = ("int-quantized", "naive-quantized")
_ORDERED = (True, "group", "dynamic")  # values of actorder that change which inputs share a scale
_FOLDED = ("weight_input", "weight_output")  # where a transform is part of the stored weights


def read_compressed_tensors(config: ConfigFile) -> ModuleRules:
    """The format of a quantization_config. Raises CheckpointError.

    `quantization_status` is not looked at: some that say "frozen" have codes, and tensors tell.
    """
    _check_transforms(config.section("transform_config"))
    sparsity = config.section("sparsity_config")
    if sparsity is not None and (stored_as := sparsity.text("format", "dense")) != "dense":
        raise sparsity.wrong(
            "format", f"is {stored_as!r}; save the checkpoint without compressing zeros"
        )
    section = config.section("config_groups")  # none where only the KV cache is quantized
    targets = dict[str, StoredLinear | None]()
    for name in section.values if section is not None else ():
        assert section is not None
        group = section.section(name)
        if group is None:
            raise section.wrong(name, "is empty; take the config file of the checkpoint")
        layout = _layout(group, group.text("format", config.text("format", "")))
        targets |= dict.fromkeys(_targets(group, "targets"), layout)
    ignored = dict.fromkeys(_targets(config, "ignore"))
    found = ModuleRules(
        name="compressed-tensors",
        linear=None,
        rules=_rules(ignored, _LINEAR) + _rules(targets, _LINEAR),
        table_rules=_rules(ignored, _EMBEDDING) + _rules(targets, _EMBEDDING),
        has_head=True,
        choice=f"config_groups and ignore of {config.location}",
    )
    # AutoRound names no head in `ignore`, of which it quantizes none
    if found.stored_linear(_HEAD) and has_numbers(config.path.parent, f"{_HEAD}.weight"):
        return replace(found, has_head=False)
    return found


def _check_transforms(config: ConfigFile | None) -> None:
    """Raise CheckpointError for transforms of activations (QuIP, SpinQuant's R3 and R4)."""
    groups = None if config is None else config.section("config_groups")
    if groups is None:
        return
    for name in groups.values:
        group = groups.section(name)
        applied: Any = [] if group is None else group.get("apply") or []
        if isinstance(applied, list) and all(
            isinstance(each, dict) and each.get("location") in _FOLDED for each in applied
        ):
            continue
        raise groups.wrong(
            name,
            "transforms activations, which is not computed; take a checkpoint without transforms, "
            "or whose transforms are in its weights",
        )


def _targets(config: ConfigFile, key: str) -> tuple[str, ...]:
    found = config.texts(key)
    patterns = [target.removeprefix(_REGEX) for target in found if target.startswith(_REGEX)]
    check_patterns(config, key, patterns)
    return found


def _rules(targets: Mapping[str, StoredLinear | None], kind: str) -> tuple[Rule, ...]:
    """Rules for names, then for patterns in alphabetical order, then for all of a class.

    kind: the class of the modules that the rules are for.
    """
    names = defaultdict[StoredLinear | None, list[str]](list)
    for target, linear in targets.items():
        if target != kind and not target.startswith(_REGEX):
            names[linear].append(target)
    found: list[Rule] = [(Names(own), linear) for linear, own in names.items()]
    patterns = sorted(target for target in targets if target.startswith(_REGEX))
    found += [(re.compile(target.removeprefix(_REGEX)), targets[target]) for target in patterns]
    found += [(re.compile(""), targets[kind])] if kind in targets else []
    return tuple(found)


def _layout(group: ConfigFile, stored_as: str) -> StoredLinear | None:
    """The storage of a group's weights; None for one of activations or keys and values alone."""
    weights = group.section("weights")
    if weights is None:
        return None
    kind, bits = weights.text("type", "int"), weights.integer("num_bits", 8)
    strategy = weights.text("strategy", "group" if weights.get("group_size") else "tensor")
    activations = group.section("input_activations")
    rounds = activations is not None and activations.integer("num_bits", 8) == 8
    where, symmetric = weights.location, weights.boolean("symmetric", True)
    packed, size = stored_as.endswith("pack-quantized"), weights.integer("group_size", -1, low=-1)
    size = -1 if strategy == "channel" else size
    match kind, bits, strategy:
        case "float", 8, "tensor" | "channel" if symmetric and not packed:
            return Fp8Linear(where, "weight_scale", None, strategy, rounds)
        case "float", 8, "block" if symmetric and not packed:
            block = read_block(weights, "block_structure")
            return Fp8Linear(where, "weight_scale", block, rounds=rounds)
        case "float", 8, "group" if symmetric and not packed and size > 0:
            return Fp8Linear(where, "weight_scale", (1, size), rounds=rounds)
        case "int", 8, "tensor" | "channel" if symmetric and not packed:
            return Int8Linear(where, rounds, strategy)
        case "int", _, "group" | "channel" if bits in _BITS and stored_as in _IN_BYTES:
            return GroupedBytesLinear(where, bits, size, symmetric, rounds)
        case "int", _, "group" | "channel" if bits in _BITS and stored_as == "pack-quantized":
            ordered = strategy == "group" and weights.get("actorder") in _ORDERED
            return PackedLinear(where, bits, size, symmetric, rounds, ordered)
        case "float", 4, _ if symmetric and stored_as == "mxfp4-pack-quantized":
            _check_mxfp4(weights, strategy, size)
            return Mxfp4Linear(where, "weight_packed", "weight_scale")
        case "float", 4, _ if symmetric and size > 0 and stored_as == "nvfp4-pack-quantized":
            return Nvfp4Linear(where, "weight_packed", "weight_global_scale", size, divides=True)
    raise weights.wrong(
        "num_bits",
        f"is {bits} ({kind}, {strategy}, {'' if symmetric else 'a'}symmetric, {stored_as or 'no'} "
        "format), which is not read; take pack-quantized or int-quantized integers of 2 to 8 bits "
        "by group or channel, FP8, MXFP8, MXFP4 or NVFP4",
    )


def _check_mxfp4(weights: ConfigFile, strategy: str, size: int) -> None:
    """Raise CheckpointError for groups that are not MXFP4's; they may be left out."""
    if (strategy, size) not in (("group", MXFP4_GROUP), ("tensor", -1)):
        raise weights.wrong(
            "group_size",
            f"is {size} ({strategy}), but MXFP4 has a scale for each {MXFP4_GROUP} inputs; take "
            "the config file of the checkpoint",
        )
