"""The tensors of a GGUF file, under the names and in the order that a model knows.

Quantized tensors are rows of blocks, uint8 [N, bytes of a row]; what they mean is known to
models/checkpoint_formats. Undone here is what was changed when the file was made: the order of
queries' and keys' rows, and the 1 that was added to norms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from quire.errors import CheckpointError
from quire.gguf.gguf_config import ARCHITECTURE, read_architecture
from quire.gguf.gguf_header import GgufTensor
from quire.gguf.gguf_parts import read_gguf_parts
from quire.gguf.tensor_names import ROPE_FACTORS, file_name, model_name
from quire.models.checkpoints.checkpoint import Checkpoint
from quire.models.checkpoints.safetensors_header import TensorEntry

if TYPE_CHECKING:
    from torch import Tensor

_HEADS = {".q_proj.": "attention.head_count", ".k_proj.": "attention.head_count_kv"}


class GgufCheckpoint(Checkpoint):
    """The tensors of a model's GGUF files, whose headers are read and checked.

    folder: that with its config files, for messages. Raises CheckpointError.
    """

    is_as_stored = False
    mismatch_fix = "take a file with the whole model, or convert it again"

    def __init__(self, folder: Path, files: Sequence[Path]) -> None:
        header = read_gguf_parts(files)
        self._file, self._metadata = files[0], header.metadata
        self._architecture = read_architecture(header.metadata)
        self._prefix = header.metadata.text(ARCHITECTURE)
        tensors = (each for each in header.tensors.values() if each.name not in ROPE_FACTORS)
        super().__init__(folder, {entry.name: entry for entry in map(self._entry, tensors)})

    @property
    def origin(self) -> Path:
        """The GGUF file, or the first one."""
        return self._file

    def stored_name(self, name: str) -> str:
        """See `Checkpoint`."""
        return file_name(name, self._architecture)

    def tensors(self, names: set[str]) -> Iterator[tuple[TensorEntry, Tensor]]:
        """See `Checkpoint`; those that were changed are copies."""
        for entry, tensor in super().tensors(names):
            yield entry, self._restored(entry, tensor)

    def _entry(self, tensor: GgufTensor) -> TensorEntry:
        """A tensor by the model's name, or its own if the model has none, which is then refused."""
        name = model_name(tensor.name, self._architecture) or tensor.name
        kind, shape, dtype = tensor.kind, tensor.shape, tensor.kind.name
        if kind.is_quantized:
            if len(shape) != 2:
                raise CheckpointError(
                    f"{tensor.file}: {tensor.name} is not a matrix, but quantized ({kind.name}); "
                    "convert the model again"
                )
            shape, dtype = (shape[0], kind.row_bytes(shape[1])), "U8"
        return TensorEntry(name, tensor.file, dtype, shape, tensor.offset, tensor.num_bytes)

    def _restored(self, entry: TensorEntry, tensor: Tensor) -> Tensor:
        if self._architecture.adds_one and entry.name.endswith("norm.weight"):
            return tensor.float() - 1.0
        for part, key in _HEADS.items():
            if self._architecture.interleaves_rope and part in entry.name:
                return _in_halves(tensor, self._num_heads(key, entry))
        return tensor

    def _num_heads(self, key: str, entry: TensorEntry) -> int:
        own, usual = f"{self._prefix}.{key}", f"{self._prefix}.attention.head_count"
        num_heads = self._metadata.size(own, self._metadata.size(usual))
        if entry.shape[0] % (2 * num_heads):
            raise entry.wrong(f"{entry.shape[0]} rows are not those of {num_heads} heads")
        return num_heads


def _in_halves(tensor: Tensor, num_heads: int) -> Tensor:
    """Rows [heads, D / 2, 2] to [heads, 2, D / 2], from interleaved to half-split RoPE."""
    import torch

    rows: Tensor = torch.unflatten(tensor, 0, (num_heads, -1, 2))
    return rows.transpose(1, 2).flatten(0, 2)
