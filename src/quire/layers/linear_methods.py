"""Storage of a linear layer's weight, and its operations, alone and fused with what surrounds it.

Owns the way from a loaded weight to the operand of linear operations, in any weight format. The
layers are in linear_layers.py, the formats in quantization/.
"""

from __future__ import annotations

from torch import Tensor

from quire.core.layer_spec import LinearSpec
from quire.kernels.dispatch import Kernels
from quire.kernels.formats.native_format import BLOCK
from quire.kernels.formats.weight_format import WeightFormat
from quire.kernels.operands import LinearWeight, LoadedWeight, ResidualState, RopeWriteKV, Rows
from quire.layers.norm import RMSNorm
from quire.layers.parameter import LayerOptions, LinearModule, Weight
from quire.quantization.stored_weight import Description, restore, sizes_of, tensors_of


class LinearMethod:
    """Storage of a linear layer's weight, and its operations, alone and with what surrounds it.

    weight_format: None for the model's own data type. Norm, SiLU, RoPE and the sum with the
    residual are operations of their own here.
    """

    def __init__(self, kernels: Kernels, weight_format: WeightFormat | None) -> None:
        self.kernels = kernels
        self.weight_format = weight_format
        self.feeds_same_format = True  # whether the next linear layer has this format, too
        self.operand: LinearWeight  # once the weight is loaded

    def create_weights(self, layer: LinearModule, options: LayerOptions) -> None:
        """Add the parameter that a checkpoint fills: one weight [out, in].

        One that is going to be quantized has memory only between its first tensor and its last
        (see `Weight.allocate`).
        """
        data = options.empty(layer.spec.n, layer.spec.k)
        weight = Weight(data, layer.load_rows)
        if self.weight_format is not None:
            weight.release()
        layer.weight = weight

    def process_after_load(self, layer: LinearModule) -> None:
        """Quantize and pack the loaded weight, so that only the result stays in memory."""
        weight = self._rows(layer)
        if self.weight_format is None or not isinstance(weight, Tensor):
            self._take(layer, self.kernels.pack(weight))
        else:
            self._take(layer, self.kernels.quantize(weight, self.weight_format.spec))

    def _rows(self, layer: LinearModule) -> LoadedWeight:
        return layer.loaded_weight()

    def load_processed(
        self, layer: LinearModule, tensors: dict[str, Tensor], description: Description
    ) -> None:
        """Take a weight as `process_after_load` once left it. Raises LookupError."""
        weight, spec = restore(description, tensors), layer.spec
        n, k = sizes_of(weight)
        if k != spec.k or not spec.n <= n < spec.n + BLOCK:
            raise LookupError(f"a weight is [{n}, {k}], but the model has [{spec.n}, {spec.k}]")
        self._take(layer, weight)

    def _take(self, layer: LinearModule, operand: LinearWeight) -> None:
        """Let the operand's tensors be the layer's, in place of the loaded weight."""
        del layer.weight
        for name, tensor in tensors_of(operand).items():
            layer.register_buffer(name, tensor, persistent=False)
        self.operand = operand

    def apply(self, layer: LinearModule, x: Tensor) -> Tensor:
        """The linear operation with this method's weight: x [T, in] → [T, out]."""
        return self.kernels.linear(x, self.operand, layer.bias)

    def apply_rms_norm_linear(self, layer: LinearModule, x: ResidualState) -> Tensor:
        """The linear operation on a normalised residual: [T, in] → [T, out]."""
        return self.apply(layer, self.kernels.normalized_rows(x))

    def apply_rope_write_kv(
        self, layer: LinearModule, x: ResidualState, rope: RopeWriteKV
    ) -> Tensor:
        """Queries with RoPE, [T, Hq, D], of a normalised residual; keys and values are written."""
        return self.kernels.rope_write_kv(*rope.operands(self.apply_rms_norm_linear(layer, x)))

    def apply_silu_linear(self, layer: LinearModule, x: ResidualState) -> Rows:
        """silu(gate) · up of a normalised residual, gate rows before up rows: [T, out / 2]."""
        return self.kernels.silu_and_mul(self.apply_rms_norm_linear(layer, x))

    def apply_gelu_linear(self, layer: LinearModule, x: ResidualState) -> Rows:
        """As `apply_silu_linear`, with GELU in place of SiLU."""
        return self.kernels.gelu_and_mul(self.apply_rms_norm_linear(layer, x))

    def add_norm(
        self, layer: LinearModule, x: Rows, residual: Tensor, norm: RMSNorm
    ) -> ResidualState:
        """residual [T, out] + the linear operation on x [T, in], then the next norm."""
        assert isinstance(x, Tensor)  # fused methods alone make other rows
        return norm.add(self.apply(layer, x), residual)


class FusedLinearMethod(LinearMethod):
    """For a device with kernels for a linear operation fused with what surrounds it."""

    def _rows(self, layer: LinearModule) -> LoadedWeight:
        """Gate and up rows in the order that the kernels read."""
        return layer.order_rows(super()._rows(layer), self.kernels)

    def apply_rms_norm_linear(self, layer: LinearModule, x: ResidualState) -> Tensor:
        """Norm and linear operation in one kernel: [T, in] → [T, out]."""
        return self.kernels.rms_norm_linear(x, self.operand, layer.bias)

    def apply_rope_write_kv(
        self, layer: LinearModule, x: ResidualState, rope: RopeWriteKV
    ) -> Tensor:
        """Norm, linear operation, RoPE and KV write in one kernel, if there is one: [T, Hq, D]."""
        if not self.kernels.fuses_rope:
            return super().apply_rope_write_kv(layer, x, rope)
        return self.kernels.qkv_rope_write_kv(x, self.operand, layer.bias, rope)

    def apply_silu_linear(self, layer: LinearModule, x: ResidualState) -> Rows:
        """Norm, linear operation and SiLU in one kernel: [T, in] → [T, out / 2]."""
        return self.kernels.linear_silu(x, self.operand, layer.bias, self.feeds_same_format)

    def apply_gelu_linear(self, layer: LinearModule, x: ResidualState) -> Rows:
        """As `apply_silu_linear`, with GELU in place of SiLU."""
        return self.kernels.linear_gelu(x, self.operand, layer.bias)

    def add_norm(
        self, layer: LinearModule, x: Rows, residual: Tensor, norm: RMSNorm
    ) -> ResidualState:
        """Linear operation and sum in one kernel; the norm is left to the next operation."""
        return self.kernels.linear_add_norm(
            x, self.operand, layer.bias, residual, norm.weight, norm.eps
        )


def method_for(
    options: LayerOptions, spec: LinearSpec, following: LinearSpec | None = None
) -> LinearMethod:
    """The method that stores a linear layer's weight, by the options' quantization scheme.

    following: the linear layer that its result goes to, if nothing but an activation is between.
    """
    own = _format_of(options, spec)
    kind = FusedLinearMethod if options.kernels.fuses else LinearMethod
    method = kind(options.kernels, own)
    if following is not None and own is not None:
        after = _format_of(options, following)
        method.feeds_same_format = after is not None and after.spec.codes == own.spec.codes
    return method


def _format_of(options: LayerOptions, spec: LinearSpec) -> WeightFormat | None:
    module = f"{options.module}.{spec.module}" if options.module else spec.module
    scheme = options.scheme
    return scheme.format_for(module, spec.role, spec.n, spec.k) if scheme else None
