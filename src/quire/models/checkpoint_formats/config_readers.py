"""Readers of the `quantization_config` of config.json, by its method. No torch."""

from __future__ import annotations

from collections.abc import Callable

from quire.config_file import ConfigFile
from quire.models.checkpoint_formats.auto_round import read_auto_round
from quire.models.checkpoint_formats.awq import read_awq
from quire.models.checkpoint_formats.bitsandbytes import read_bitsandbytes
from quire.models.checkpoint_formats.checkpoint_format import CheckpointFormat
from quire.models.checkpoint_formats.compressed_tensors import read_compressed_tensors
from quire.models.checkpoint_formats.fp8_checkpoint import read_fbgemm, read_fp8
from quire.models.checkpoint_formats.gguf_format import read_gguf
from quire.models.checkpoint_formats.gptq import read_gptq
from quire.models.checkpoint_formats.modelopt import read_modelopt

READERS: dict[str, Callable[[ConfigFile], CheckpointFormat]] = {
    "auto-round": read_auto_round,
    "awq": read_awq,
    "bitsandbytes": read_bitsandbytes,
    "compressed-tensors": read_compressed_tensors,
    "fbgemm_fp8": read_fbgemm,
    "fp8": read_fp8,
    "gguf": read_gguf,
    "gptq": read_gptq,
    "modelopt": read_modelopt,
}
