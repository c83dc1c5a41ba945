"""Linear layers by how their weights are cut among ranks.

Owns which rows of a fused weight a checkpoint's tensor fills; how weights are stored and multiplied
is in linear_methods.py. One rank today: a rank's share is the whole.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from quire.core.layer_spec import Activation, LinearSpec, UnsupportedModelError
from quire.kernels.dispatch import Kernels
from quire.kernels.operands import LoadedWeight, ResidualState, RopeWriteKV, Rows
from quire.layers.linear_methods import LinearMethod, method_for
from quire.layers.norm import RMSNorm
from quire.layers.parameter import LayerOptions, LinearModule, Weight, copy_whole
from quire.quantization.canonical_rows import stack_rows
from quire.quantization.stored_weight import Description

_ACT_AND_MUL: dict[Activation, Callable[[LinearMethod, LinearModule, ResidualState], Rows]] = {
    "silu": lambda method, layer, x: method.apply_silu_linear(layer, x),
    "gelu_tanh": lambda method, layer, x: method.apply_gelu_linear(layer, x),
}


class LinearBase(LinearModule):
    """y = W x + b with W [out, in].

    weight: another module's, to be used here, too. following: see `method_for`.
    """

    def __init__(
        self,
        spec: LinearSpec,
        options: LayerOptions,
        weight: Weight | None = None,
        following: LinearSpec | None = None,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.method: LinearMethod = method_for(options, spec, following)
        if weight is None:
            self.method.create_weights(self, options)
        else:
            self.weight = weight
        self.bias = Weight(options.empty(spec.n), self.load_rows) if spec.bias else None

    def load_rows(self, param: Tensor, loaded: Tensor, part: str | None) -> None:
        """Fill a parameter whose first dimension is the output's."""
        copy_whole(param, loaded, part)

    def loaded_weight(self) -> LoadedWeight:
        """The loaded weight, all parts in one: [out, in], or canonical rows."""
        if not self.weight.rows:
            return self.weight.detach()
        return stack_rows([self.weight.rows[part] for _, part in self.spec.sources()])

    def order_rows(self, rows: LoadedWeight, _: Kernels) -> LoadedWeight:
        """The rows in the order that fused kernels read, and the bias, too: here they are in it."""
        return rows

    def process_after_load(self) -> None:
        """Let the method convert the weight to its run-time format. Called once."""
        self.method.process_after_load(self)

    def load_processed(self, tensors: dict[str, Tensor], description: Description) -> None:
        """Take the weight's tensors, and a bias in the order that the method brought it into.

        description: the weight's format, as `describe` gave it. Raises LookupError.
        """
        if self.bias is not None:
            self.bias = Weight(tensors.pop("bias"))
        self.method.load_processed(self, tensors, description)

    def forward(self, x: Tensor) -> Tensor:
        """The linear layer's output: x [T, in] → [T, out]."""
        return self.method.apply(self, x)


class PaddedLinear(LinearBase):
    """A linear layer with any number of outputs, padded where kernels need whole blocks."""

    def loaded_weight(self) -> LoadedWeight:
        """The weight as it is loaded, with rows of padding where the kernels need them."""
        weight = super().loaded_weight()
        return self.method.kernels.pad_rows(weight) if isinstance(weight, Tensor) else weight

    def forward(self, x: Tensor) -> Tensor:
        """x [T, in] → [T, out], without what rows of padding give."""
        return super().forward(x)[:, : self.spec.n]


class RowParallelLinear(LinearBase):
    """A linear layer whose inputs are split among ranks; their outputs are summed."""

    def add(
        self, x: Rows, residual: ResidualState, norm: RMSNorm, post_norm: RMSNorm | None = None
    ) -> ResidualState:
        """Add W x, for x [T, in], to the residual [T, out], which goes on to a norm.

        post_norm: of W x, before it is added.
        """
        if post_norm is not None:
            rows = x if isinstance(x, Tensor) else x.dequantize()
            return norm.add(post_norm(self.method.apply(self, rows)), residual.residual)
        return self.method.add_norm(self, x, residual.residual, norm)


class MergedColumnParallelLinear(LinearBase):
    """Several weights stacked into one, so that one matmul serves all.

    Outputs are split among ranks; each has the full input.
    A checkpoint may hold the parts or, loaded with part None, the stack.
    """

    def load_rows(self, param: Tensor, loaded: Tensor, part: str | None) -> None:
        """Load the rows of one part of the merged weight, or of all parts."""
        start, end = self.spec.rows_of(part)
        copy_whole(param[start:end], loaded)


class GateUpParallelLinear(MergedColumnParallelLinear):
    """The gate and up projections of a gated MLP as one linear layer."""

    def __init__(
        self,
        spec: LinearSpec,
        options: LayerOptions,
        activation: Activation = "silu",
        down: LinearSpec | None = None,
    ) -> None:
        super().__init__(spec, options, following=down)
        if activation not in _ACT_AND_MUL:
            raise UnsupportedModelError(f"activation {activation}")
        self.act_and_mul_linear = _ACT_AND_MUL[activation]

    def order_rows(self, rows: LoadedWeight, kernels: Kernels) -> LoadedWeight:
        """Bring gate and up rows into the order that fused kernels read."""
        dtype = self.weight.dtype
        if self.bias is not None:
            self.bias = Weight(kernels.order_gate_up(self.bias.detach(), dtype))
        if isinstance(rows, Tensor):
            return kernels.order_gate_up(rows, dtype)
        return rows.map_rows(lambda own: kernels.order_gate_up(own, dtype).reshape(own.shape))

    def act_and_mul(self, residual: ResidualState) -> Rows:
        """activation(gate) * up of the residual [T, in] after its norm → [T, out / 2]."""
        return self.act_and_mul_linear(self.method, self, residual)


class QKVParallelLinear(MergedColumnParallelLinear):
    """Query, key and value projections in one; its output is all heads, [T, Hq + 2 Hkv, D] flat."""

    def rope_write_kv(self, residual: ResidualState, rope: RopeWriteKV) -> Tensor:
        """Queries [T, Hq, D] after RoPE, of a normalised residual [T, in].

        Keys and values are written to the cache.
        """
        return self.method.apply_rope_write_kv(self, residual, rope)
