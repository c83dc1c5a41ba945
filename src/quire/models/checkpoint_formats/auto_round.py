"""Checkpoints of AutoRound: integers packed as GPTQ's or AWQ's, FP8, MXFP8 and FP4. No torch."""

from __future__ import annotations

from quire.config_file import ConfigFile
from quire.models.checkpoint_formats.awq import AwqLinear
from quire.models.checkpoint_formats.checkpoint_format import StoredLinear
from quire.models.checkpoint_formats.fp8_checkpoint import fp8_linear
from quire.models.checkpoint_formats.gptq import GptqLinear, read_bits
from quire.models.checkpoint_formats.module_rules import (
    ModuleRules,
    Names,
    Rule,
    check_patterns,
    surrounded,
)
from quire.models.checkpoint_formats.stored_fp4 import (
    MXFP4_GROUP,
    NVFP4_GROUP,
    Mxfp4Linear,
    Nvfp4Linear,
)
from quire.models.checkpoint_formats.stored_fp8 import Fp8Linear

_FULL_BITS = (16, 32)  # of what is not quantized
_LESS = ("auto_round:auto_gptq", "auto_round:gptq", "auto")  # zero points are stored less 1
_PLAIN = ("auto_round", "auto_round:gptqmodel")
_AWQ = ("auto_round:auto_awq", "auto_round:awq")


def read_auto_round(config: ConfigFile) -> ModuleRules:
    """The format of a quantization_config. Raises CheckpointError."""
    linear = _linear(config, config, config.integer("bits"))
    if linear is None:
        raise config.wrong("bits", "is that of 16-bit weights; take the 16-bit checkpoint")
    own = _own_settings(config)
    rules: list[Rule] = [(Names([name]), each) for name, each in own.items()]
    rules += [(surrounded(".*?", pattern, ""), each) for pattern, each in own.items()]
    has_head = own.get("lm_head") is not None
    return ModuleRules(
        name="auto-round",
        linear=linear,
        rules=tuple(rules),
        has_head=has_head,
        choice=f"extra_config of {config.location}",
    )


def _own_settings(config: ConfigFile) -> dict[str, StoredLinear | None]:
    """Layouts of `extra_config` by names, or by patterns of any part of a name.

    A key may be either; names go first, as AutoRound has it. Raises CheckpointError.
    """
    section, found = config.section("extra_config"), dict[str, StoredLinear | None]()
    for module in section.values if section is not None else ():
        assert section is not None
        check_patterns(section, module, [module])
        if (changes := section.section(module)) is not None:
            bits = changes.integer("bits", config.integer("bits"))
            found[module] = _linear(config, changes, bits)
    return found


def _linear(config: ConfigFile, own: ConfigFile, bits: int) -> StoredLinear | None:
    """The layout of modules with their own settings; None for those that are not quantized."""
    if bits in _FULL_BITS:
        return None
    where, kind = config.location, own.text("data_type", config.text("data_type", "int"))
    act_bits = own.get("act_bits") or config.get("act_bits")
    rounds = act_bits not in (None, *_FULL_BITS)
    match kind, bits:
        case "fp", 8:
            return fp8_linear(config, rounds=rounds)
        case "mx_fp", 4:
            return Mxfp4Linear(where, "weight_packed", "weight_scale")
        case "mx_fp", 8:
            return Fp8Linear(where, "weight_scale", (1, MXFP4_GROUP))
        case "nv_fp", 4:
            group = own.integer("group_size", config.integer("group_size", NVFP4_GROUP))
            return Nvfp4Linear(where, "weight_packed", "weight_global_scale", group, divides=True)
        case "int", _ if not rounds:
            return _integers(config, own, bits)
    raise own.wrong(
        "act_bits" if kind == "int" else "data_type",
        f"is {kind!r} with {bits} bits, act_bits {act_bits}; take integers with 16-bit "
        "activations, fp (FP8) of 8 bits, mx_fp of 4 or 8 or nv_fp of 4",
    )


def _integers(config: ConfigFile, own: ConfigFile, bits: int) -> StoredLinear:
    where, packing = config.location, config.text("packing_format", "auto")
    group = own.integer("group_size", config.integer("group_size", -1, low=-1), low=-1)
    symmetric = own.boolean("sym", config.boolean("sym", True))
    if packing in _AWQ and bits == 4:
        return AwqLinear(where, group)
    if packing not in _LESS + _PLAIN:
        raise config.wrong(
            "packing_format",
            f"is {packing!r} with {bits} bits; take one of {', '.join(_LESS + _PLAIN + _AWQ)}",
        )
    return GptqLinear(where, read_bits(own, bits), group, symmetric, False, packing in _LESS)
