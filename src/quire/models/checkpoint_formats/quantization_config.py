"""A checkpoint's config file on quantization as a checkpoint format. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.config_file import ConfigFile
from quire.errors import CheckpointError
from quire.model_folder import QUANTIZATION_FILES

if TYPE_CHECKING:
    from quire.models.checkpoint_formats.checkpoint_format import CheckpointFormat

_OF_BITSANDBYTES = ("load_in_4bit", "load_in_8bit")  # its configs once named no method
_ROTATIONS = ("rotation", "rotation_config")  # GPTQModel's, AutoRound's: of activations, too
_SPELLINGS = {"compressed_tensors": "compressed-tensors", "intel/auto-round": "auto-round"}


def quantization_section(config: ConfigFile) -> ConfigFile | None:
    """The section on quantization of a checkpoint's config files. Raises CheckpointError."""
    section = config.section("quantization_config") or config.section("compression_config")
    if section is None:
        return _of_other_files(config)
    inner = section.section("quantization_config")  # as transformers 4 saved compressed-tensors'
    if inner is None:
        return section
    return ConfigFile(config.path, section.values | inner.values, inner.where)


def _of_other_files(config: ConfigFile) -> ConfigFile | None:
    found = (config.path.with_name(name) for name in QUANTIZATION_FILES)
    path = next((path for path in found if path.is_file()), None)
    if path is None:
        return None
    section = ConfigFile.read(path)
    return section.section("quantization") or section  # ModelOpt's, or the whole file


def read_checkpoint_format(config: ConfigFile) -> CheckpointFormat | None:
    """The quantization of a checkpoint's weights; None if there is none. Raises CheckpointError."""
    section = quantization_section(config)
    if section is None:
        if config.get("quantization"):
            raise _unread(config, "quantization", "is that of MLX")
        return None
    if rotation := next(filter(section.get, _ROTATIONS), None):
        raise section.wrong(
            rotation,
            "is set, so that activations are rotated, too, which is not computed; take a "
            "checkpoint without it",
        )
    # most checkpoints are not quantized, and start without the readers
    from quire.models.checkpoint_formats.config_readers import READERS

    is_bitsandbytes = any(section.boolean(key, False) for key in _OF_BITSANDBYTES)
    default = "bitsandbytes" if is_bitsandbytes else QUANTIZATION_FILES.get(section.path.name)
    if section.get("quant_method") is None and default is None:
        raise _unread(section, "quant_method", "is missing, as in the format of MLX")
    method = section.text("quant_method", default)
    method = _SPELLINGS.get(method, method)
    if method not in READERS:
        raise _unread(section, "quant_method", f"is {method!r}")
    return READERS[method](section)


def _unread(config: ConfigFile, key: str, what: str) -> CheckpointError:
    from quire.models.checkpoint_formats.config_readers import READERS

    known = ", ".join(READERS)
    return config.wrong(
        key, f"{what}, which is not read; take a checkpoint of {known}, or the 16-bit one"
    )
