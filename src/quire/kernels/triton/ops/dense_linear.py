"""Linears with weights of 16 or 32 bits on a GPU."""

from __future__ import annotations

from torch import Tensor

from quire.kernels import reference
from quire.kernels.operands import Rows
from quire.kernels.triton.gemm.gemm_tuning import library_is_faster
from quire.kernels.triton.launch.workspace import workspace
from quire.kernels.triton.ops.gpu_linear import GpuLinear, Operand
from quire.kernels.triton.ops.invariant_gemm import invariant_gemm
from quire.kernels.triton.ops.paged_attention import has_hopper_gpu


class _DenseLinear(GpuLinear[Tensor]):
    """Weights in the model's data type."""

    def operand(self, weight: Tensor) -> Operand:
        return weight, None, "plain"

    def linear(self, x: Rows, weight: Tensor, bias: Tensor | None) -> Tensor:
        x = x if isinstance(x, Tensor) else x.dequantize()
        if not self.is_few(x, weight):
            return reference.linear(x, weight, bias)
        shape, num_sms = (len(x), *weight.shape), workspace(x.device).num_sms
        hopper = has_hopper_gpu(x.device)
        if library_is_faster(*shape, weight.dtype.itemsize, num_sms, hopper=hopper):
            return reference.linear(x, weight, bias)
        return self.launch(x, weight, bias).out

    def invariant_linear(self, x: Rows, weight: Tensor, bias: Tensor | None) -> Tensor:
        x = x if isinstance(x, Tensor) else x.dequantize()
        return invariant_gemm(x, None, weight, None, bias, x.dtype)


DENSE = _DenseLinear()
