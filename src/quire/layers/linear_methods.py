"""How a linear layer's weight is kept and multiplied, alone and with what stands around it.

This is the seam through which quantized weights come in. The layers are in linear_layers.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from torch import Tensor

from quire.kernels.dispatch import Kernels
from quire.kernels.operands import QuantizedWeight, ResidualState, RopeWriteKV, Rows
from quire.layers.norm import RMSNorm
from quire.layers.parameter import LayerOptions, Weight
from quire.quantization.scheme import Role, WeightForm

if TYPE_CHECKING:
    from quire.layers.linear_layers import LinearBase


class LinearMethod(ABC):
    """How a linear layer's weight is stored and multiplied, alone and with what stands around it.

    What stands around a product (norm, SiLU, residual) is made by operations of its own, unless a
    method has a kernel for both.
    """

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels

    @abstractmethod
    def create_weights(self, layer: LinearBase, options: LayerOptions) -> None:
        """Add the weight parameters that a checkpoint fills."""

    @abstractmethod
    def process_after_load(self, layer: LinearBase) -> None:
        """Turn what was loaded into what `apply` reads."""

    def load_processed(self, layer: LinearBase, kept: dict[str, Tensor]) -> None:
        """Take the tensors that are kept of the weight in its place."""
        del layer.weight
        for name, tensor in kept.items():
            layer.register_buffer(name, tensor, persistent=False)

    @abstractmethod
    def apply(self, layer: LinearBase, x: Tensor) -> Tensor:
        """x [T, in] → [T, out]."""

    def apply_rms_norm_linear(self, layer: LinearBase, x: ResidualState) -> Tensor:
        """The product of a residual stream behind its norm: [T, in] → [T, out]."""
        return self.apply(layer, self.kernels.normalized_rows(x))

    def apply_rope_write_kv(
        self, layer: LinearBase, x: ResidualState, turning: RopeWriteKV
    ) -> Tensor:
        """Heads of such a stream, turned and written: queries [T, Hq, D]."""
        return self.kernels.rope_write_kv(*turning.operands(self.apply_rms_norm_linear(layer, x)))

    def apply_silu_linear(self, layer: LinearBase, x: ResidualState) -> Rows:
        """silu(gate) · up of such a stream, for gate rows and then up rows: [T, out / 2]."""
        return self.kernels.silu_and_mul(self.apply_rms_norm_linear(layer, x))

    def add_norm(
        self, layer: LinearBase, x: Rows, residual: Tensor, norm: RMSNorm
    ) -> ResidualState:
        """residual [T, out] + the product of x [T, in], behind the next norm."""
        assert isinstance(x, Tensor)  # fused methods alone make other rows
        return norm.add(self.apply(layer, x), residual)


class UnquantizedLinear(LinearMethod):
    """Weights in the model's own data type, in the form that the device's matmul likes best."""

    def create_weights(self, layer: LinearBase, options: LayerOptions) -> None:
        """One weight [out, in]."""
        data = options.empty(layer.out_features, layer.in_features)
        layer.weight = Weight(data, layer.load_rows)

    def process_after_load(self, layer: LinearBase) -> None:
        """Replace the weight by its prepared form, so that only one of them stays in memory."""
        self.load_processed(layer, {"weight": self.kernels.prepare_linear(layer.weight.detach())})

    def apply(self, layer: LinearBase, x: Tensor) -> Tensor:
        """x [T, in] → [T, out]."""
        return self.kernels.linear(x, layer.weight, layer.bias)


class FusedProducts(LinearMethod):
    """For a device with kernels for a product, of few tokens, and what stands around it."""

    @abstractmethod
    def operand_of(self, layer: LinearBase) -> Tensor | QuantizedWeight:
        """The weight as the kernels take it."""

    def apply_rms_norm_linear(self, layer: LinearBase, x: ResidualState) -> Tensor:
        """Norm and product in one kernel: [T, in] → [T, out]."""
        return self.kernels.rms_norm_linear(x, self.operand_of(layer), layer.bias)

    def apply_rope_write_kv(
        self, layer: LinearBase, x: ResidualState, turning: RopeWriteKV
    ) -> Tensor:
        """Norm, product, turning and writing in one kernel, where there is one: [T, Hq, D]."""
        if not self.kernels.turns:
            return super().apply_rope_write_kv(layer, x, turning)
        return self.kernels.qkv_rope_write_kv(x, self.operand_of(layer), layer.bias, turning)

    def apply_silu_linear(self, layer: LinearBase, x: ResidualState) -> Rows:
        """Norm, product and SiLU in one kernel: [T, in] → [T, out / 2]."""
        return self.kernels.linear_silu(x, self.operand_of(layer), layer.bias)

    def add_norm(
        self, layer: LinearBase, x: Rows, residual: Tensor, norm: RMSNorm
    ) -> ResidualState:
        """Product and sum in one kernel; the next norm is made by whoever reads it."""
        weight = self.operand_of(layer)
        return self.kernels.linear_add_norm(x, weight, layer.bias, residual, norm.weight, norm.eps)


class FusedLinear(FusedProducts, UnquantizedLinear):
    """Weights in the model's own data type on such a device."""

    def process_after_load(self, layer: LinearBase) -> None:
        """Also bring gate and up rows into the order that the kernel reads."""
        layer.order_rows(self.kernels)
        UnquantizedLinear.process_after_load(self, layer)

    def operand_of(self, layer: LinearBase) -> Tensor:
        """As it is."""
        return layer.weight


class QuantizedLinear(LinearMethod):
    """Weights that are brought into a form with fewer bits once they are loaded.

    The loaded weight has memory only between its first tensor and its last (see `Weight.allocate`).
    """

    def __init__(self, form: WeightForm, kernels: Kernels) -> None:
        super().__init__(kernels)
        self.form = form
        self.operand: QuantizedWeight  # once it is loaded

    def create_weights(self, layer: LinearBase, options: LayerOptions) -> None:
        """One weight [out, in] without memory."""
        data = options.empty(layer.out_features, layer.in_features)
        weight = Weight(data, layer.load_rows)
        weight.release()
        layer.weight = weight

    def process_after_load(self, layer: LinearBase) -> None:
        """Keep the form's tensors, and of the weight nothing."""
        kept = self.form.make(layer.weight.detach(), self.kernels)
        self.load_processed(layer, dict(zip(self.form.names, kept, strict=True)))

    def load_processed(self, layer: LinearBase, kept: dict[str, Tensor]) -> None:
        """Take the form's tensors, also as the operand of products."""
        super().load_processed(layer, kept)
        self.operand = self.form.operand(tuple(kept[name] for name in self.form.names))

    def apply(self, layer: LinearBase, x: Tensor) -> Tensor:
        """x [T, in] → [T, out]."""
        return self.form.multiply(x, self.operand, layer.bias, self.kernels)


class FusedQuantizedLinear(FusedProducts, QuantizedLinear):
    """A form that kernels for a product and what stands around it know."""

    def process_after_load(self, layer: LinearBase) -> None:
        """Also bring gate and up rows into the order that the kernel reads."""
        layer.order_rows(self.kernels)
        QuantizedLinear.process_after_load(self, layer)

    def operand_of(self, _: LinearBase) -> QuantizedWeight:
        """The form's."""
        return self.operand


def method_for(options: LayerOptions, role: Role, in_features: int) -> LinearMethod:
    """How weights of a role are kept, by the options' scheme."""
    form = options.scheme.form(role, in_features) if options.scheme else None
    if form:
        return (FusedQuantizedLinear if options.kernels.fuses else QuantizedLinear)(
            form, options.kernels
        )
    return (FusedLinear if options.kernels.fuses else UnquantizedLinear)(options.kernels)
