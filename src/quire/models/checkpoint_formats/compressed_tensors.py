"""Checkpoints of compressed-tensors (llm-compressor): integers and FP8. No torch at import.

`pack-quantized`: weight_packed [N, K · bits / 32], the first code in the lowest bits, with half of
their range added; weight_scale [N, groups]; weight_zero_point [N · bits / 32, groups] likewise;
weight_shape; perhaps weight_g_idx [K]. `int-quantized` and `float-quantized`: weight [N, K] and
weight_scale.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from quire.config_file import ConfigFile
from quire.kernels.operands import QuantSpec
from quire.models.checkpoint_formats.checkpoint_format import (
    SCALE_DTYPES,
    StoredLinear,
    StoredTensor,
)
from quire.models.checkpoint_formats.fp8_checkpoint import read_block
from quire.models.checkpoint_formats.integer_linear import (
    IntegerLinear,
    group_problem,
    integer_spec,
    num_groups,
)
from quire.models.checkpoint_formats.module_rules import ModuleRules, Names, Rule, check_patterns
from quire.models.checkpoint_formats.stored_fp8 import Fp8Linear
from quire.models.checkpoint_formats.stored_int8 import GroupedBytesLinear, Int8Linear
from quire.models.checkpoint_formats.stored_mxfp4 import MXFP4_GROUP, Mxfp4Linear
from quire.models.checkpoints.checkpoint import has_numbers

if TYPE_CHECKING:
    from torch import Tensor

    from quire.models.checkpoint_formats.integer_rows import IntegerRows

_WORD = 32  # bits
_HEAD = "lm_head"
_REGEX = "re:"
_LINEAR, _EMBEDDING = "Linear", "Embedding"  # classes of modules
_ORDERED = (True, "group", "dynamic")  # values of actorder that change which inputs share a scale
_FOLDED = ("weight_input", "weight_output")  # where a transform is part of the stored weights


@dataclass(frozen=True, slots=True)
class PackedLinear(IntegerLinear):
    """Codes of 4 or 8 bits in words. group: inputs that share a scale; -1 for all.

    rounds: whether activations are in eight bits, too. is_ordered: whether inputs of a group may
    lie anywhere, so that weight_g_idx is needed; files may also have it otherwise.
    """

    config_names: ClassVar[Mapping[str, str]] = {
        "bits": "num_bits", "group": "group_size", "is_symmetric": "symmetric", "rounds": "",
        "is_ordered": "",
    }  # fmt: skip
    bits: int
    group: int
    is_symmetric: bool
    rounds: bool
    is_ordered: bool = False

    def problem(self, n: int, k: int) -> str | None:
        """See `StoredLinear`."""
        shared = _WORD // self.bits
        if k % shared or (n % shared and not self.is_symmetric):
            return f"{n} outputs or {k} inputs are not a multiple of {shared}"
        return group_problem(self.group)

    def spec(self, k: int) -> QuantSpec | None:
        """See `StoredLinear`."""
        zeros = not self.is_symmetric
        return integer_spec(self.bits, self.group, k, zeros=zeros, rounds=self.rounds)

    def tensors(self, n: int, k: int) -> Mapping[str, StoredTensor]:
        """See `StoredLinear`."""
        shared, groups = _WORD // self.bits, num_groups(self.group, k)
        zeros = StoredTensor(((n // shared, groups),), ("I32",))
        found = {
            "weight_packed": StoredTensor(((n, k // shared),), ("I32",)),
            "weight_scale": StoredTensor(((n, groups),), SCALE_DTYPES),
            "weight_shape": StoredTensor(((2,),), ("I64", "I32"), needed=False),
            "weight_g_idx": StoredTensor(((k,),), ("I32", "I64"), needed=self.is_ordered),
        }
        return found if self.is_symmetric else {**found, "weight_zero_point": zeros}

    def order(self, k: int) -> tuple[str, int] | None:
        """See `StoredLinear`."""
        return "weight_g_idx", k if self.group == -1 else self.group

    def integer_rows(self, tensors: Mapping[str, Tensor]) -> IntegerRows:
        """See `IntegerLinear`."""
        from quire.models.checkpoint_formats.integer_rows import (
            IntegerRows,
            sorted_by_group,
            unpacked,
            words_as_rows,
        )

        codes, zeros = words_as_rows(tensors["weight_packed"]), None
        stored, shape = tensors.get("weight_shape"), [len(codes), codes.shape[1] * 8 // self.bits]
        if stored is not None and stored.tolist() != shape:
            raise ValueError(
                f"its weight_shape is {stored.tolist()}, but weight_packed has the codes of "
                f"{shape}; download the file again"
            )
        codes, permutation = sorted_by_group(codes, tensors.get("weight_g_idx"), self.bits)
        if not self.is_symmetric:
            words = tensors["weight_zero_point"].t()
            zeros = unpacked(words_as_rows(words), self.bits).t()
        scale = tensors["weight_scale"]
        return IntegerRows(codes, scale, zeros, self.bits, permutation, self.rounds)


def read_compressed_tensors(config: ConfigFile) -> ModuleRules:
    """The format of a quantization_config. Raises CheckpointError."""
    status = config.text("quantization_status", "compressed")
    if status != "compressed":
        raise config.wrong("quantization_status", f"is {status!r}; save the checkpoint compressed")
    _check_transforms(config.section("transform_config"))
    sparsity = config.section("sparsity_config")
    if sparsity is not None and (stored_as := sparsity.text("format", "dense")) != "dense":
        raise sparsity.wrong(
            "format", f"is {stored_as!r}; save the checkpoint without compressing zeros"
        )
    section = config.section("config_groups")
    if section is None:
        raise config.wrong("config_groups", "is missing; take the config file of the checkpoint")
    targets = dict[str, StoredLinear | None]()
    for name in section.values:
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
        choice=f"targets and ignore of {config.location}",
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


def _layout(group: ConfigFile, stored_as: str) -> StoredLinear:
    """The storage of a group's weights."""
    weights = group.section("weights")
    if weights is None:
        raise group.wrong("weights", "is missing; take a checkpoint with quantized weights")
    kind, bits = weights.text("type", "int"), weights.integer("num_bits", 8)
    strategy = weights.text("strategy", "group" if weights.get("group_size") else "tensor")
    activations = group.section("input_activations")
    rounds = activations is not None and activations.integer("num_bits", 8) == 8
    where, symmetric = weights.location, weights.boolean("symmetric", True)
    packed, size = stored_as.endswith("pack-quantized"), weights.integer("group_size", -1, low=-1)
    match kind, bits, strategy:
        case "float", 8, "tensor" | "channel" | "block" if symmetric and not packed:
            block = read_block(weights, "block_structure") if strategy == "block" else None
            return Fp8Linear(where, "weight_scale", block, "" if block else strategy, rounds)
        case "int", 8, "tensor" | "channel" if symmetric and not packed:
            return Int8Linear(where, rounds, strategy)
        case "int", 4 | 8, "group" | "channel" if symmetric and stored_as == "int-quantized":
            return GroupedBytesLinear(where, bits, size if strategy == "group" else -1, rounds)
        case "int", 4 | 8, "group" | "channel" if stored_as == "pack-quantized":
            if strategy == "channel":
                return PackedLinear(where, bits, -1, symmetric, rounds)
            ordered = weights.get("actorder") in _ORDERED
            return PackedLinear(where, bits, size, symmetric, rounds, ordered)
        case "float", 4, _ if symmetric and stored_as == "mxfp4-pack-quantized":
            _check_mxfp4(weights, strategy, size)
            return Mxfp4Linear(where, "weight_packed", "weight_scale")
    raise weights.wrong(
        "num_bits",
        f"is {bits} ({kind}, {strategy}, {'' if symmetric else 'a'}symmetric, {stored_as or 'no'} "
        "format), which is not read; take pack-quantized integers of 4 or 8 bits by group or "
        "channel, symmetric int-quantized ones, FP8 or MXFP4",
    )


def _check_mxfp4(weights: ConfigFile, strategy: str, size: int) -> None:
    """Raise CheckpointError for groups that are not MXFP4's; they may be left out."""
    if (strategy, size) not in (("group", MXFP4_GROUP), ("tensor", -1)):
        raise weights.wrong(
            "group_size",
            f"is {size} ({strategy}), but MXFP4 has a scale for each {MXFP4_GROUP} inputs; take "
            "the config file of the checkpoint",
        )
