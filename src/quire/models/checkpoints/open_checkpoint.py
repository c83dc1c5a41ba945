"""The checkpoint in a model's folder: safetensors files, or GGUF files."""

from __future__ import annotations

from pathlib import Path

from quire.errors import CheckpointError
from quire.model_folder import linked_gguf
from quire.models.checkpoints.checkpoint import Checkpoint, find_files


def open_checkpoint(folder: Path) -> Checkpoint:
    """The tensors of a folder, whose headers are read and checked. Raises CheckpointError."""
    if files := linked_gguf(folder):
        from quire.models.checkpoints.gguf_checkpoint import GgufCheckpoint  # most starts need none

        return GgufCheckpoint(folder, files)
    return Checkpoint.open(folder)


def weight_bytes(folder: Path) -> int:
    """Bytes of the files with a folder's weights; 0 where it has none that are read."""
    try:
        files = linked_gguf(folder) or find_files(folder)[0]
        return sum(file.stat().st_size for file in files)
    except (CheckpointError, OSError):
        return 0
