"""GGUF's quantized weights as a checkpoint format: the type of each module's blocks.

Q4_0 has the codes of INT4 in groups of 32, which are kept. Other types become numbers, or what the
device has for such weights (`CheckpointFormat.otherwise`). No torch at import.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from quire.config_file import ConfigFile
from quire.gguf.block_types import TYPES_BY_NAME
from quire.kernels.operands import QuantSpec
from quire.models.checkpoint_formats.checkpoint_format import (
    CheckpointFormat,
    StoredLinear,
    StoredTensor,
)

if TYPE_CHECKING:
    from torch import Tensor

    from quire.kernels.operands import QuantizedWeight

_GROUP = 32  # of Q4_0


@dataclass(frozen=True, slots=True)
class BlockLinear(StoredLinear):
    """A weight in rows of blocks, uint8 [N, bytes]. kind: their type, such as "Q4_K"."""

    config_names: ClassVar[Mapping[str, str]] = {"kind": "type"}
    kind: str

    def problem(self, n: int, k: int) -> str | None:  # noqa: ARG002
        """See `StoredLinear`."""
        items = TYPES_BY_NAME[self.kind].items
        return f"{k} inputs are not a multiple of {items}, as of {self.kind}" if k % items else None

    def spec(self, k: int) -> QuantSpec | None:  # noqa: ARG002
        """See `StoredLinear`."""
        return QuantSpec("int4", _GROUP) if self.kind == "Q4_0" else None

    def tensors(self, n: int, k: int) -> Mapping[str, StoredTensor]:
        """See `StoredLinear`."""
        return {"weight": StoredTensor(((n, TYPES_BY_NAME[self.kind].row_bytes(k)),), ("U8",))}

    def rows(self, tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        """See `StoredLinear`: of a block of Q4_0, code i and code i + 16 share a byte."""
        import torch

        from quire.kernels.operands import Int4Weight
        from quire.models.checkpoint_formats.integer_rows import packed

        blocks = torch.unflatten(tensors["weight"], 1, (-1, TYPES_BY_NAME[self.kind].num_bytes))
        shared = blocks[:, :, 2:]
        codes = torch.cat([shared & 15, shared >> 4], dim=2).flatten(1)
        scale = blocks[:, :, :2].contiguous().view(torch.float16).squeeze(2)
        if not bool(scale.isfinite().all()):
            raise ValueError("it has a scale that is not a number; download the file again")
        return Int4Weight(packed(codes, 4), scale, None, _GROUP)

    def numbers(self, tensors: Mapping[str, Tensor], dtype: str) -> Tensor:
        """See `StoredLinear`."""
        import numpy as np
        import torch

        from quire.kernels.reference_arrays import few_rows
        from quire.kernels.reference_quantized import PIECE_ELEMENTS
        from quire.kernels.torch_dtypes import torch_dtype
        from quire.models.checkpoint_formats.gguf_blocks import dequantize

        rows, kind = tensors["weight"], TYPES_BY_NAME[self.kind]
        k = rows.shape[1] // kind.num_bytes * kind.items
        out = torch.empty(len(rows), k, dtype=torch_dtype(dtype), device=rows.device)
        for own in few_rows(len(rows), k, PIECE_ELEMENTS):
            piece = dequantize(self.kind, rows[own].cpu().numpy())
            if not np.isfinite(piece).all():
                raise ValueError("it has a scale that is not a number; download the file again")
            out[own] = torch.from_numpy(piece)
        return out


@dataclass(frozen=True, slots=True)
class GgufFormat(CheckpointFormat):
    """The types of modules' blocks, by the modules' names; other modules are not quantized."""

    types: tuple[tuple[str, str], ...]
    name: str = "gguf"
    otherwise: str = "int8"

    def stored_linear(self, module: str) -> StoredLinear | None:
        """See `CheckpointFormat`."""
        kind = _by_module(self.types).get(module)
        return None if kind is None else BlockLinear("the GGUF file", kind)

    def stored_table(self, module: str) -> StoredLinear | None:
        """See `CheckpointFormat`."""
        return self.stored_linear(module)


@lru_cache
def _by_module(types: tuple[tuple[str, str], ...]) -> dict[str, str]:
    return dict(types)


def read_gguf(config: ConfigFile) -> GgufFormat:
    """The format of a quantization_config, made of a GGUF file's header. Raises CheckpointError."""
    section = config.section("types")
    types = {} if section is None else {name: section.text(name) for name in section.values}
    for name, kind in types.items():
        if kind not in TYPES_BY_NAME or not TYPES_BY_NAME[kind].is_quantized:
            raise config.wrong(name, f"is {kind!r}; name the GGUF file itself as the model")
    return GgufFormat(tuple(types.items()))
