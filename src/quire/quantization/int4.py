"""INT4 weights: four bits, and a float16 scale for each group of inputs of an output.

Activations are rounded to bytes while the model runs: each 32 with a scale of their own, or, for
many tokens, a row with one. In the format that Quire makes, groups are of 32, and the weight is
Hadamard-rotated by matrices of 32 before it is rounded, and so are the inputs of each layer. Codes
made elsewhere have groups of any multiple of 32, may have a zero point for each, and are not
rotated, nor are their inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from quire.kernels.operands import Int4Weight, QuantSpec
from quire.quantization.weight_format import WeightFormat

if TYPE_CHECKING:
    from torch import Tensor

    from quire.kernels.dispatch import Kernels
    from quire.kernels.operands import LinearWeight


class Int4(WeightFormat):
    """Codes [N, K / 2] in uint8, scales [N, K / group] in float16; zero points, permutation."""

    __slots__ = ()

    def quantize(self, weight: Tensor, kernels: Kernels) -> LinearWeight:
        """See `WeightFormat`. Zero points are in the middle, and inputs in their own order."""
        import torch

        from quire.kernels import reference

        spec = self.spec
        if not spec.zeros and not spec.permuted:
            return kernels.quantize(weight, spec)
        rows = reference.quantize(weight, QuantSpec("int4", spec.group))
        assert isinstance(rows, Int4Weight)
        zeros = torch.full_like(rows.codes[:, : rows.scale.shape[1]], 8) if spec.zeros else None
        order = torch.arange(rows.codes.shape[1] * 2, dtype=torch.int32, device=weight.device)
        permutation = order if spec.permuted else None
        return kernels.pack(replace(rows, zeros=zeros, permutation=permutation))

    def rows(self, tensors: Mapping[str, Tensor]) -> Int4Weight:
        """See `WeightFormat`."""
        spec = self.spec
        zeros = tensors["zeros"] if spec.zeros else None
        permutation = tensors["permutation"] if spec.permuted else None
        codes, scale = tensors["codes"], tensors["scale"]
        return Int4Weight(codes, scale, zeros, spec.group, spec.hadamard, permutation)


INT4 = Int4(QuantSpec("int4", group=32, hadamard=True))
