"""The `quantization_config` of config.json as a checkpoint format. No torch."""

from __future__ import annotations

from collections.abc import Callable

from quire.models.checkpoint_formats.awq import read_awq
from quire.models.checkpoint_formats.checkpoint_format import CheckpointFormat
from quire.models.checkpoint_formats.compressed_tensors import read_compressed_tensors
from quire.models.checkpoint_formats.fp8_checkpoint import read_fp8
from quire.models.checkpoint_formats.gptq import read_gptq
from quire.models.checkpoints.config_file import ConfigFile

READERS: dict[str, Callable[[ConfigFile], CheckpointFormat]] = {
    "awq": read_awq,
    "compressed-tensors": read_compressed_tensors,
    "fp8": read_fp8,
    "gptq": read_gptq,
}


def read_checkpoint_format(config: ConfigFile) -> CheckpointFormat | None:
    """How a checkpoint's weights are quantized; None if they are not. Raises CheckpointError."""
    section = config.section("quantization_config") or config.section("compression_config")
    if section is None:
        return None
    method = section.text("quant_method")
    if method not in READERS:
        raise section.wrong(
            "quant_method",
            f"is {method!r}, which is not read; take a checkpoint of {', '.join(READERS)}, or the "
            "16-bit one",
        )
    return READERS[method](section)
