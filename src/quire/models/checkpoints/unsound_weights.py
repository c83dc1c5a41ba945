"""The search for a tensor that is not finite, for when a model computes such numbers.

Read from the files and not from the model, so that it is the same on every device, and starts do
not pay for it. No torch.
"""

from __future__ import annotations

from pathlib import Path

from quire.dtypes import CHECKPOINT_DTYPES, SAFETENSORS
from quire.errors import CheckpointError
from quire.model_folder import GGUF_LINK
from quire.models.checkpoints.checkpoint import Checkpoint
from quire.models.checkpoints.mapped_file import MappedFile
from quire.models.checkpoints.safetensors_header import TensorEntry

_ITEMS = 1 << 20  # looked at together
_EXPONENTS = {"F64": 0x7FF << 52, "F32": 0xFF << 23, "F16": 0x1F << 10, "BF16": 0xFF << 7}


def describe_unsound(folder: Path) -> str:
    """Name the first tensor with NaN or infinity, with what to do about it; "" if there is none.

    Reads all unquantized weights in the files of a folder. A GGUF file's are checked when they are
    loaded, as scales of quantized weights are.
    """
    if (folder / GGUF_LINK).is_symlink():
        return ""
    try:
        checkpoint = Checkpoint.open(folder)
        files = {file: MappedFile(file) for file in {e.file for e in checkpoint.entries.values()}}
    except (CheckpointError, OSError):  # changed since the start
        return ""
    for entry in checkpoint.in_file_order(set(checkpoint.entries)):
        if entry.dtype in CHECKPOINT_DTYPES and not is_finite(files[entry.file], entry):
            return (
                f"the weight {entry.name} in {entry.file.name} has numbers that are not finite "
                "(NaN or infinity); download that file again, or take weights that are finite"
            )
        files[entry.file].forget(entry)
    return ""


def is_finite(file: MappedFile, entry: TensorEntry) -> bool:
    """Whether no number of a tensor has the exponent of NaN and infinity, all ones.

    entry: of one of CHECKPOINT_DTYPES.
    """
    bits = file.array(entry).reshape(-1).view(f"u{SAFETENSORS[entry.dtype].num_bytes}")
    exponent = bits.dtype.type(_EXPONENTS[entry.dtype])
    pieces = (bits[begin : begin + _ITEMS] for begin in range(0, len(bits), _ITEMS))
    return not any(bool(((piece & exponent) == exponent).any()) for piece in pieces)
