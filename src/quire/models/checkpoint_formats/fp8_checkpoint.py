"""Checkpoints in FP8 with `quant_method` fp8 (scales per tensor, or of blocks) or fbgemm_fp8.

No torch.
"""

from __future__ import annotations

from quire.models.checkpoint_formats.module_rules import ModuleRules, read_ignored
from quire.models.checkpoint_formats.stored_fp8 import Fp8Linear
from quire.models.checkpoints.config_file import ConfigFile


def read_fp8(config: ConfigFile) -> ModuleRules:
    """The format of a quantization_config. Raises CheckpointError."""
    fmt = config.text("fmt", "e4m3")
    if fmt not in ("e4m3", "float8_e4m3fn"):
        raise config.wrong("fmt", f"is {fmt!r}; take a checkpoint in e4m3")
    key, where = "weight_block_size", config.location
    block = None if config.get(key) is None else read_block(config, key)
    # whoever writes the key, be it a null, gives scales DeepSeek's name
    scale = "weight_scale_inv" if key in config.values else "weight_scale"
    linear = Fp8Linear(where, scale, block)
    return _rules("fp8", linear, config)


def read_fbgemm(config: ConfigFile) -> ModuleRules:
    """The format of FBGEMM's FP8: a scale per output. Raises CheckpointError."""
    return _rules("fbgemm_fp8", Fp8Linear(config.location, "weight_scale", per="channel"), config)


def _rules(name: str, linear: Fp8Linear, config: ConfigFile) -> ModuleRules:
    keys = ("modules_to_not_convert", "ignored_layers")
    rules, ignored = read_ignored(config, *keys)
    choice = f"{' and '.join(keys)} of {config.location}"
    return ModuleRules(name=name, linear=linear, rules=rules, ignored=ignored, choice=choice)


def read_block(config: ConfigFile, key: str) -> tuple[int, int]:
    """Rows and columns that share a scale. Raises CheckpointError."""
    block = config.get(key)
    if isinstance(block, str):  # "128x128", as compressed-tensors once wrote it
        block = [int(size) for size in block.split("x") if size.isdecimal() and len(size) < 10]
    whole = isinstance(block, list) and all(type(size) is int and size > 0 for size in block)
    if not whole or len(block) != 2:
        raise config.wrong(key, f"is {block!r}; it must be two whole numbers, such as [128, 128]")
    return block[0], block[1]
