"""Checkpoints in FP8: `quant_method` fp8, also GPTQModel's, and fbgemm_fp8. No torch."""

from __future__ import annotations

from quire.config_file import ConfigFile
from quire.models.checkpoint_formats.module_rules import ModuleRules, read_dynamic, read_ignored
from quire.models.checkpoint_formats.stored_fp8 import Fp8Linear

_MEANING = "weight_scale_semantics"  # GPTQModel's: the name means what it says


def read_fp8(config: ConfigFile) -> ModuleRules:
    """The format of a quantization_config. Raises CheckpointError."""
    rounds = config.get(_MEANING) is None  # GPTQModel quantizes weights alone
    return _rules(fp8_linear(config, rounds=rounds), config)


def fp8_linear(config: ConfigFile, *, rounds: bool) -> Fp8Linear:
    """The layout of a quantization_config. rounds: see `Fp8Linear`. Raises CheckpointError."""
    fmt = config.text("fmt", "e4m3")
    if fmt not in ("e4m3", "float8_e4m3fn"):
        raise config.wrong("fmt", f"is {fmt!r}; take a checkpoint in e4m3")
    key, where, meaning = "weight_block_size", config.location, config.text(_MEANING, "")
    if meaning not in ("", "inverse"):
        raise config.wrong(_MEANING, f"is {meaning!r}, which is not read; take another checkpoint")
    block = None if config.get(key) is None else read_block(config, key)
    # whoever writes the key, be it a null, gives scales DeepSeek's name
    scale = "weight_scale_inv" if meaning or key in config.values else "weight_scale"
    return Fp8Linear(where, scale, block, rounds=rounds, divides=bool(meaning))


def read_fbgemm(config: ConfigFile) -> ModuleRules:
    """The format of FBGEMM's FP8: a scale per output. Raises CheckpointError."""
    return _rules(Fp8Linear(config.location, "weight_scale", per="channel"), config)


def _rules(linear: Fp8Linear, config: ConfigFile) -> ModuleRules:
    keys = ("modules_to_not_convert", "ignored_layers")
    rules, ignored = read_ignored(config, *keys)
    return ModuleRules(
        name="fp8",
        linear=linear,
        rules=rules + read_dynamic(config, linear, _changed),
        ignored=ignored,
        has_head=config.boolean("lm_head", False),  # lists of libraries do not tell
        choice=f"{', '.join(keys)}, dynamic and lm_head of {config.location}",
    )


def _changed(linear: Fp8Linear, config: ConfigFile) -> Fp8Linear:
    """The layout of modules with their own settings, of which GPTQModel writes none for FP8."""
    for key in config.values:
        raise config.wrong(key, "is set for some modules; take a checkpoint with one FP8 layout")
    return linear


def read_block(config: ConfigFile, key: str) -> tuple[int, int]:
    """Rows and columns that share a scale. Raises CheckpointError."""
    block = config.get(key)
    if isinstance(block, str):  # "128x128", as compressed-tensors once wrote it
        block = [int(size) for size in block.split("x") if size.isdecimal() and len(size) < 10]
    whole = isinstance(block, list) and all(type(size) is int and size > 0 for size in block)
    if not whole or len(block) != 2:
        raise config.wrong(key, f"is {block!r}; it must be two whole numbers, such as [128, 128]")
    return block[0], block[1]
