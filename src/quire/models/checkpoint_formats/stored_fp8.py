"""FP8 (e4m3) weights of checkpoints, with scales per tensor, output or block. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire.kernels.operands import Fp8Weight, Int8GroupWeight, QuantSpec
from quire.models.checkpoint_formats.checkpoint_format import (
    SCALE_DTYPES,
    StoredLinear,
    StoredTensor,
)

if TYPE_CHECKING:
    from torch import Tensor

    from quire.kernels.operands import QuantizedWeight


@dataclass(frozen=True, slots=True)
class Fp8Linear(StoredLinear):
    """Codes [N, K] with scales, by which they are multiplied.

    scale: its tensor's name. block: rows and columns that share a scale; None for one scale, or
    one per output. Scales of activations are not needed: they follow from each token. No kernel
    takes FP8 in blocks: its numbers are rounded to bytes with a scale for each output and as many
    columns, which are off by a quarter of what FP8 is off by.
    """

    scale: str
    block: tuple[int, int] | None = None

    def problem(self, n: int, k: int) -> str | None:  # noqa: ARG002
        """See `StoredLinear`: any size will do."""
        return None

    def spec(self, k: int) -> QuantSpec | None:
        """See `StoredLinear`."""
        if self.block is None:
            return QuantSpec("fp8")
        columns = self.block[1]
        return None if columns % 32 or k % columns else QuantSpec("int8_group", columns)

    @property
    def rounding(self) -> str | None:
        """See `StoredLinear`."""
        return None if self.block is None else f"rounded to bytes in groups of {self.block[1]}"

    def tensors(self, n: int, k: int) -> Mapping[str, StoredTensor]:
        """See `StoredLinear`."""
        shapes: tuple[tuple[int, ...], ...] = ((), (1,), (1, 1), (n,), (n, 1))
        if self.block is not None:
            rows, columns = self.block
            shapes = ((-(-n // rows), -(-k // columns)),)
        return {
            "weight": StoredTensor(((n, k),), ("F8_E4M3",)),
            self.scale: StoredTensor(shapes, SCALE_DTYPES),
            "input_scale": StoredTensor(((), (1,)), SCALE_DTYPES, needed=False),
        }

    def rows(self, tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        """See `StoredLinear`."""
        if self.block is not None:
            import torch

            from quire.kernels.reference_quantized import quantize_int8_group

            group = self.block[1]
            found = [quantize_int8_group(piece, group) for piece in self._pieces(tensors)]
            codes, scale = (torch.cat(parts) for parts in zip(*found, strict=True))
            return Int8GroupWeight(codes, scale, None, group)
        codes, scale = tensors["weight"], tensors[self.scale].float().flatten()
        return Fp8Weight(codes, scale.expand(len(codes)).contiguous())

    def numbers(self, tensors: Mapping[str, Tensor], dtype: str) -> Tensor:
        """See `StoredLinear`."""
        import torch

        from quire.kernels.torch_dtypes import torch_dtype

        codes = tensors["weight"]
        out = torch.empty(codes.shape, dtype=torch_dtype(dtype), device=codes.device)
        start = 0
        for piece in self._pieces(tensors):
            out[start : start + len(piece)] = piece
            start += len(piece)
        return out

    def _pieces(self, tensors: Mapping[str, Tensor]) -> Iterator[Tensor]:
        """The weight's numbers in float32, some rows at a time."""
        from quire.kernels.reference_quantized import WIDENED_ELEMENTS

        codes, scale = tensors["weight"], tensors[self.scale].float()
        n, k = codes.shape
        rows, columns = self.block or (1, k)
        if self.block is None:
            scale = scale.flatten().expand(n)[:, None]
        step = max(1, WIDENED_ELEMENTS // k // rows) * rows
        for start in range(0, n, step):
            own = scale[start // rows : -(-(start + step) // rows)]
            own = own.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
            piece = codes[start : start + step].float()
            yield piece * own[: len(piece), :k]
