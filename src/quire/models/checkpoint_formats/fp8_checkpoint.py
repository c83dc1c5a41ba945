"""Checkpoints with `quant_method` fp8: scales per tensor, or of blocks (DeepSeek's). No torch."""

from __future__ import annotations

from quire.models.checkpoint_formats.module_rules import ModuleRules, read_ignored
from quire.models.checkpoint_formats.stored_fp8 import Fp8Linear
from quire.models.checkpoints.config_file import ConfigFile


def read_fp8(config: ConfigFile) -> ModuleRules:
    """The format of a quantization_config. Raises CheckpointError."""
    fmt = config.text("fmt", "e4m3")
    if fmt not in ("e4m3", "float8_e4m3fn"):
        raise config.wrong("fmt", f"is {fmt!r}; take a checkpoint in e4m3")
    rules, ignored = read_ignored(config, "modules_to_not_convert", "ignored_layers")
    key, where = "weight_block_size", config.where.rstrip(".")
    block = None if config.get(key) is None else read_block(config, key)
    # whoever writes the key, be it a null, gives scales DeepSeek's name
    scale = "weight_scale_inv" if key in config.values else "weight_scale"
    linear = Fp8Linear(where, scale, block)
    return ModuleRules(name="fp8", linear=linear, rules=rules, ignored=ignored)


def read_block(config: ConfigFile, key: str) -> tuple[int, int]:
    """Rows and columns that share a scale. Raises CheckpointError."""
    block = config.get(key)
    whole = isinstance(block, list) and all(type(size) is int and size > 0 for size in block)
    if not whole or len(block) != 2:
        raise config.wrong(key, f"is {block!r}; it must be two whole numbers, such as [128, 128]")
    return block[0], block[1]
