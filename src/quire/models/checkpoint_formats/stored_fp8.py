"""FP8 (e4m3) weights of checkpoints, with scales per tensor, output or block. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire.kernels.formats.table import format_of
from quire.kernels.operands import Fp8Weight, QuantSpec
from quire.models.checkpoint_formats.checkpoint_format import (
    SCALE_DTYPES,
    StoredLinear,
    StoredTensor,
    check_exponents,
    scale_shapes,
)

if TYPE_CHECKING:
    from torch import Tensor

    from quire.kernels.operands import QuantizedWeight


@dataclass(frozen=True, slots=True)
class Fp8Linear(StoredLinear):
    """Codes [N, K] with scales, by which they are multiplied.

    scale: its tensor's name. block: rows and columns that share a scale; None for one scale, or
    one per output. per: which of these, see `scale_shapes`. rounds: whether activations are in FP8,
    too. Their scales are not needed: they follow from each token. divides: whether codes are
    divided by what is stored, the scales' reciprocals (GPTQModel's).
    """

    scale: str
    block: tuple[int, int] | None = None
    per: str = ""
    rounds: bool = True
    divides: bool = False

    @property
    def settings(self) -> str:
        """See `StoredLinear`."""
        if self.block is None:
            return ""
        if self.is_in_groups:
            return f" (group_size={self.block[1]})"
        key = "weight_block_size" if self.scale.endswith("_inv") else "block_structure"
        return f" ({key}={list(self.block)})"

    @property
    def is_in_groups(self) -> bool:
        """Whether inputs of one output share a scale, which no kernel has, in place of blocks."""
        return self.block is not None and self.block[0] == 1

    def spec(self, k: int) -> QuantSpec | None:
        """See `StoredLinear`."""
        if self.is_in_groups:
            return None
        kind, of_inputs = ("fp8", 0) if self.block is None else ("fp8_block", self.block[1])
        spec = QuantSpec(kind if self.rounds else f"{kind}_a16", of_inputs)
        return spec if format_of(spec).fits(1, k) else None

    def tensors(self, n: int, k: int) -> Mapping[str, StoredTensor]:
        """See `StoredLinear`."""
        shapes = scale_shapes(n, self.per)
        if self.block is not None:
            rows, columns = self.block
            blocks = -(-n // rows), -(-k // columns)
            shapes = blocks, (blocks[0], 1, blocks[1], 1)  # the second is ModelOpt's
        exponents = ("F8_E8M0", "U8") if self.is_in_groups else ("F8_E8M0",)  # both of MXFP8
        return {
            "weight": StoredTensor(((n, k),), ("F8_E4M3",)),
            self.scale: StoredTensor(shapes, (*SCALE_DTYPES, *exponents)),
        }

    def rows(self, tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        """See `StoredLinear`."""
        from quire.kernels.byte_operands import ByteWeight

        codes, scale = tensors["weight"], self._scales(tensors)
        if self.block is None:
            own = scale.flatten().expand(len(codes)).contiguous()
            return Fp8Weight(codes, own, self.rounds)
        rows, columns = self.block
        of_rows = scale.repeat_interleave(rows, 0)[: len(codes)]
        kind = "fp8_block" if self.rounds else "fp8_block_a16"
        return ByteWeight(codes, of_rows, None, kind, columns)

    def numbers(self, tensors: Mapping[str, Tensor], dtype: str) -> Tensor:
        """See `StoredLinear`."""
        import torch

        from quire.kernels.reference_quantized import PIECE_ELEMENTS
        from quire.kernels.torch_dtypes import torch_dtype

        codes, scale = tensors["weight"], self._scales(tensors)
        n, k = codes.shape
        out = torch.empty(n, k, dtype=torch_dtype(dtype), device=codes.device)
        rows, columns = self.block or (1, k)
        if self.block is None:
            scale = scale.flatten().expand(n)[:, None]
        step = max(1, PIECE_ELEMENTS // k // rows) * rows
        for start in range(0, n, step):
            own = scale[start // rows : -(-(start + step) // rows)]
            own = own.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
            piece = codes[start : start + step].float()
            out[start : start + step] = piece * own[: len(piece), :k]
        return out

    def _scales(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Scales by which codes are multiplied, float32. Raises ValueError for what is none."""
        import torch

        scale = tensors[self.scale]
        if self.block is not None:
            scale = scale.flatten(1)
        if scale.dtype == torch.uint8:  # e8m0, which `torch.float8_e8m0fnu` has, too
            check_exponents(scale)
            scale = scale.view(torch.float8_e8m0fnu)
        scale = scale.float()
        if not self.divides:
            return scale
        if not bool((found := scale.reciprocal()).isfinite().all()):
            raise ValueError(f"its {self.scale} divides by zero; download the file again")
        return found
