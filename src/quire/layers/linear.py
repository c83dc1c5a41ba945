"""Linear layers by the way their weights are cut among ranks, and how a weight is multiplied.

Owns which rows of a fused weight a checkpoint's tensor fills, and the `LinearMethod` seam through
which quantized weights come in. One rank today: a rank's share is the whole.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from quire.kernels.dispatch import Kernels
from quire.kernels.operands import Normed, Product, QuantizedWeight, Rows, Turning
from quire.layers.norm import RMSNorm
from quire.layers.parameter import LayerOptions, LoadedModule, Weight, copy_whole
from quire.quantization.scheme import Role, WeightForm


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

    def adopt(self, layer: LinearBase, kept: dict[str, Tensor]) -> None:
        """Take the tensors that are kept of the weight in its place."""
        del layer.weight
        for name, tensor in kept.items():
            layer.register_buffer(name, tensor, persistent=False)

    @abstractmethod
    def apply(self, layer: LinearBase, x: Tensor) -> Tensor:
        """x [T, in] → [T, out]."""

    def apply_normed(self, layer: LinearBase, x: Normed) -> Tensor:
        """The product of a residual stream behind its norm: [T, in] → [T, out]."""
        return self.apply(layer, self.kernels.normed_rows(x))

    def apply_turned(self, layer: LinearBase, x: Normed, turning: Turning) -> Tensor:
        """Heads of such a stream, turned and written: queries [T, Hq, D]."""
        return self.kernels.rotary_write_kv(*turning.operands(self.apply_normed(layer, x)))

    def apply_silu(self, layer: LinearBase, x: Normed) -> Rows:
        """silu(gate) · up of such a stream, for gate rows and then up rows: [T, out / 2]."""
        return self.kernels.silu_and_mul(self.apply_normed(layer, x))

    def add_norm(self, layer: LinearBase, x: Rows, residual: Tensor, norm: RMSNorm) -> Normed:
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
        self.adopt(layer, {"weight": self.kernels.prepare_linear(layer.weight.detach())})

    def apply(self, layer: LinearBase, x: Tensor) -> Tensor:
        """x [T, in] → [T, out]."""
        return self.kernels.linear(x, layer.weight, layer.bias)


class FusedProducts(LinearMethod):
    """For a device with kernels for a product, of few tokens, and what stands around it."""

    @abstractmethod
    def operand_of(self, layer: LinearBase) -> Tensor | QuantizedWeight:
        """The weight as the kernels take it."""

    def apply_normed(self, layer: LinearBase, x: Normed) -> Tensor:
        """Norm and product in one kernel: [T, in] → [T, out]."""
        return self.kernels.linear_normed(x, self.operand_of(layer), layer.bias)

    def apply_turned(self, layer: LinearBase, x: Normed, turning: Turning) -> Tensor:
        """Norm, product, turning and writing in one kernel, where there is one: [T, Hq, D]."""
        if not self.kernels.turns:
            return super().apply_turned(layer, x, turning)
        return self.kernels.linear_turned(x, self.operand_of(layer), layer.bias, turning)

    def apply_silu(self, layer: LinearBase, x: Normed) -> Rows:
        """Norm, product and SiLU in one kernel: [T, in] → [T, out / 2]."""
        return self.kernels.linear_silu(x, self.operand_of(layer), layer.bias)

    def add_norm(self, layer: LinearBase, x: Rows, residual: Tensor, norm: RMSNorm) -> Normed:
        """Product and sum in one kernel; the next norm is made by whoever reads it."""
        weight = self.operand_of(layer)
        return self.kernels.linear_add_norm(x, weight, layer.bias, residual, norm.weight, norm.eps)


class FusedLinear(FusedProducts, UnquantizedLinear):
    """Weights in the model's own data type on such a device."""

    def process_after_load(self, layer: LinearBase) -> None:
        """Also bring gate and up rows into the order that the kernel reads."""
        _order_gate_up(layer, self.kernels)
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
        self.adopt(layer, dict(zip(self.form.names, kept, strict=True)))

    def adopt(self, layer: LinearBase, kept: dict[str, Tensor]) -> None:
        """Take the form's tensors, also as the operand of products."""
        super().adopt(layer, kept)
        self.operand = self.form.operand(tuple(kept[name] for name in self.form.names))

    def apply(self, layer: LinearBase, x: Tensor) -> Tensor:
        """x [T, in] → [T, out]."""
        return self.form.multiply(x, self.operand, layer.bias, self.kernels)


class FusedQuantizedLinear(FusedProducts, QuantizedLinear):
    """A form that kernels for a product and what stands around it know."""

    def process_after_load(self, layer: LinearBase) -> None:
        """Also bring gate and up rows into the order that the kernel reads."""
        _order_gate_up(layer, self.kernels)
        QuantizedLinear.process_after_load(self, layer)

    def operand_of(self, _: LinearBase) -> QuantizedWeight:
        """The form's."""
        return self.operand


def _order_gate_up(layer: LinearBase, kernels: Kernels) -> None:
    if isinstance(layer, GateUpParallelLinear):
        layer.weight = Weight(kernels.order_gate_up(layer.weight.detach()))
        if layer.bias is not None:
            layer.bias = Weight(kernels.order_gate_up(layer.bias.detach()))


def method_for(options: LayerOptions, role: Role, in_features: int) -> LinearMethod:
    """How weights of a role are kept, by the options' scheme."""
    form = options.scheme.form(role, in_features) if options.scheme else None
    if form:
        return (FusedQuantizedLinear if options.kernels.fuses else QuantizedLinear)(
            form, options.kernels
        )
    return (FusedLinear if options.kernels.fuses else UnquantizedLinear)(options.kernels)


class LinearBase(LoadedModule):
    """y = W x + b with W [out, in]. weight: another module's, to be used here, too."""

    role: ClassVar[Role] = "layer"
    weight: Tensor
    bias: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        options: LayerOptions,
        *,
        bias: bool = False,
        weight: Weight | None = None,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.method: LinearMethod = method_for(options, self.role, in_features)
        if weight is None:
            self.method.create_weights(self, options)
        else:
            self.weight = weight
        self.bias = Weight(options.empty(out_features), self.load_rows) if bias else None

    def load_rows(self, param: Tensor, loaded: Tensor, part: str | None) -> None:
        """Fill a parameter whose first dimension is the output's."""
        copy_whole(param, loaded, part)

    def process_after_load(self) -> None:
        """Let the method bring the weight into its run-time form."""
        self.method.process_after_load(self)

    def adopt(self, tensors: dict[str, Tensor]) -> None:
        """Take the weight's tensors, and a bias in the order that the method brought it into."""
        if self.bias is not None:
            self.bias = Weight(tensors.pop("bias"))
        self.method.adopt(self, tensors)

    def product(self) -> Product:
        """As a device's kernels for products and what stands around them take it."""
        assert isinstance(self.method, FusedProducts)
        return Product(self.method.operand_of(self), self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """x [T, in] → [T, out]."""
        return self.method.apply(self, x)


class ColumnParallelLinear(LinearBase):
    """Ranks share the output; the input is whole."""


class RowParallelLinear(LinearBase):
    """Ranks share the input; their outputs are summed."""

    def add(self, x: Rows, stream: Normed, norm: RMSNorm) -> Normed:
        """Add the product of x [T, in] to the residual stream [T, out], which goes on to a norm."""
        return self.method.add_norm(self, x, stream.residual, norm)


class MergedColumnParallelLinear(ColumnParallelLinear):
    """Several column-parallel weights stacked into one, so that one product serves all.

    parts: output features of each part by its name, in order of their rows. A checkpoint may hold
    the parts or, loaded with part None, the stack.
    """

    def __init__(
        self,
        in_features: int,
        parts: dict[str, int],
        options: LayerOptions,
        *,
        bias: bool = False,
    ) -> None:
        self.parts = parts
        super().__init__(in_features, sum(parts.values()), options, bias=bias)

    def load_rows(self, param: Tensor, loaded: Tensor, part: str | None) -> None:
        """Fill one part's rows, or all."""
        if part is None:
            return copy_whole(param, loaded)
        start = 0
        for name, rows in self.parts.items():
            if name == part:
                return copy_whole(param.narrow(0, start, rows), loaded)
            start += rows
        raise AssertionError(f"no part {part!r} in {list(self.parts)}")


class GateUpParallelLinear(MergedColumnParallelLinear):
    """The two projections of a gated MLP in one. bias: whether they have one."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, options: LayerOptions, *, bias: bool
    ) -> None:
        parts = {"gate": intermediate_size, "up": intermediate_size}
        super().__init__(hidden_size, parts, options, bias=bias)

    def silu(self, stream: Normed) -> Rows:
        """silu(gate) · up of a residual stream [T, in] behind its norm → [T, out / 2]."""
        return self.method.apply_silu(self, stream)


class QKVParallelLinear(MergedColumnParallelLinear):
    """Query, key and value projections in one; its output is all heads, [T, Hq + 2 Hkv, D] flat."""

    def __init__(
        self,
        hidden_size: int,
        head_dim: int,
        num_heads: int,
        num_kv_heads: int,
        options: LayerOptions,
        *,
        bias: bool = False,
    ) -> None:
        parts = {"q": num_heads * head_dim, "k": num_kv_heads * head_dim}
        parts["v"] = parts["k"]
        super().__init__(hidden_size, parts, options, bias=bias)

    def turned(self, stream: Normed, turning: Turning) -> Tensor:
        """Turned queries [T, Hq, D] of a residual stream [T, in] behind its norm.

        Keys and values go to the cache.
        """
        return self.method.apply_turned(self, stream, turning)
