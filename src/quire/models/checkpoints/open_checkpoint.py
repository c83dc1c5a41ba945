"""The checkpoint in a model's folder: safetensors files, or a GGUF file."""

from __future__ import annotations

from pathlib import Path

from quire.model_folder import GGUF_LINK
from quire.models.checkpoints.checkpoint import Checkpoint


def open_checkpoint(folder: Path) -> Checkpoint:
    """The tensors of a folder, whose headers are read and checked. Raises CheckpointError."""
    link = folder / GGUF_LINK
    if link.is_symlink():
        from quire.models.checkpoints.gguf_checkpoint import GgufCheckpoint  # most starts need none

        return GgufCheckpoint.open_file(folder, link.resolve())
    return Checkpoint.open(folder)
