"""The `quantization_config` of config.json as a checkpoint format. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.models.checkpoints.config_file import ConfigFile

if TYPE_CHECKING:
    from quire.models.checkpoint_formats.checkpoint_format import CheckpointFormat

_MODELOPT_FILE = "hf_quant_config.json"  # beside config.json, in older checkpoints of ModelOpt


def quantization_section(config: ConfigFile) -> ConfigFile | None:
    """The section on quantization of a checkpoint's config files. Raises CheckpointError."""
    section = config.section("quantization_config") or config.section("compression_config")
    if section is not None:
        return section
    other = config.path.with_name(_MODELOPT_FILE)
    return ConfigFile.read(other).section("quantization") if other.is_file() else None


def read_checkpoint_format(config: ConfigFile) -> CheckpointFormat | None:
    """The quantization of a checkpoint's weights; None if there is none. Raises CheckpointError."""
    section = quantization_section(config)
    if section is None:
        return None
    # most checkpoints are not quantized, and start without the readers
    from quire.models.checkpoint_formats.config_readers import READERS

    is_other = section.path != config.path
    method = "modelopt" if is_other else section.text("quant_method").removeprefix("intel/")
    if method not in READERS:
        raise section.wrong(
            "quant_method",
            f"is {method!r}, which is not read; take a checkpoint of {', '.join(READERS)}, or the "
            "16-bit one",
        )
    return READERS[method](section)
