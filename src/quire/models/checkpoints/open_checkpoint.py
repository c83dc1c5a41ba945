"""The checkpoint in a model's folder: safetensors files, or a GGUF file."""

from __future__ import annotations

from pathlib import Path

from quire.errors import CheckpointError
from quire.model_folder import GGUF_LINK
from quire.models.checkpoints.checkpoint import Checkpoint, find_files


def open_checkpoint(folder: Path) -> Checkpoint:
    """The tensors of a folder, whose headers are read and checked. Raises CheckpointError."""
    link = folder / GGUF_LINK
    if link.is_symlink():
        from quire.models.checkpoints.gguf_checkpoint import GgufCheckpoint  # most starts need none

        return GgufCheckpoint(folder, link.resolve())
    return Checkpoint.open(folder)


def weight_bytes(folder: Path) -> int:
    """Bytes of the files with a folder's weights; 0 where it has none that are read."""
    link = folder / GGUF_LINK
    try:
        files = [link] if link.is_symlink() else find_files(folder)[0]
        return sum(file.stat().st_size for file in files)
    except (CheckpointError, OSError):
        return 0
