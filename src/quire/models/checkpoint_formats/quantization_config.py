"""The `quantization_config` of config.json as a checkpoint format. No torch."""

from __future__ import annotations

from collections.abc import Callable

from quire.models.checkpoint_formats.auto_round import read_auto_round
from quire.models.checkpoint_formats.awq import read_awq
from quire.models.checkpoint_formats.bitsandbytes import read_bitsandbytes
from quire.models.checkpoint_formats.checkpoint_format import CheckpointFormat
from quire.models.checkpoint_formats.compressed_tensors import read_compressed_tensors
from quire.models.checkpoint_formats.fp8_checkpoint import read_fp8
from quire.models.checkpoint_formats.gguf_format import read_gguf
from quire.models.checkpoint_formats.gptq import read_gptq
from quire.models.checkpoint_formats.modelopt import read_modelopt
from quire.models.checkpoints.config_file import ConfigFile

_MODELOPT_FILE = "hf_quant_config.json"  # beside config.json, in older checkpoints of ModelOpt

READERS: dict[str, Callable[[ConfigFile], CheckpointFormat]] = {
    "auto-round": read_auto_round,
    "awq": read_awq,
    "bitsandbytes": read_bitsandbytes,
    "compressed-tensors": read_compressed_tensors,
    "fp8": read_fp8,
    "gguf": read_gguf,
    "gptq": read_gptq,
    "modelopt": read_modelopt,
}


def quantization_section(config: ConfigFile) -> ConfigFile | None:
    """What a checkpoint's config files say of quantization. Raises CheckpointError."""
    section = config.section("quantization_config") or config.section("compression_config")
    if section is not None:
        return section
    other = config.path.with_name(_MODELOPT_FILE)
    return ConfigFile.read(other).section("quantization") if other.is_file() else None


def read_checkpoint_format(config: ConfigFile) -> CheckpointFormat | None:
    """How a checkpoint's weights are quantized; None if they are not. Raises CheckpointError."""
    section = quantization_section(config)
    if section is None:
        return None
    if section.path != config.path:
        return read_modelopt(section)
    method = section.text("quant_method").removeprefix("intel/")
    if method not in READERS:
        raise section.wrong(
            "quant_method",
            f"is {method!r}, which is not read; take a checkpoint of {', '.join(READERS)}, or the "
            "16-bit one",
        )
    return READERS[method](section)
