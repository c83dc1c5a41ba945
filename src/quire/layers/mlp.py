"""The part of a decoder layer after attention: a gated MLP, or a mixture of experts."""

from __future__ import annotations

from torch import Tensor, nn

from quire.core.layer_spec import MLPSpec, MoESpec
from quire.kernels.operands import ResidualState
from quire.layers.linear_layers import GateUpParallelLinear, LinearBase, RowParallelLinear
from quire.layers.norm import RMSNorm
from quire.layers.parameter import LayerOptions

# of the residual, for the next part; of a part's output before it is added, where there is one
Norms = tuple[RMSNorm, RMSNorm | None]


class GatedMLP(nn.Module):
    """A gated MLP: down(activation(gate(x)) * up(x))."""

    def __init__(self, spec: MLPSpec, options: LayerOptions) -> None:
        super().__init__()
        self.gate_up_proj = GateUpParallelLinear(spec.gate_up, options, spec.activation, spec.down)
        self.down_proj = RowParallelLinear(spec.down, options)

    def forward(self, residual: ResidualState, norms: Norms) -> ResidualState:
        """The residual [T, H] with the MLP's output added, for the next norm."""
        return self.down_proj.add(self.gate_up_proj.act_and_mul(residual), residual, *norms)

    def output(self, state: ResidualState) -> Tensor:
        """The MLP's output [T, H] alone."""
        inner = self.gate_up_proj.act_and_mul(state)
        rows = inner if isinstance(inner, Tensor) else inner.dequantize()
        return self.down_proj.forward(rows)


class MixtureOfExperts(nn.Module):
    """A mixture of experts, see `MoESpec`; computed expert by expert, so not in a CUDA graph."""

    def __init__(self, spec: MoESpec, options: LayerOptions) -> None:
        super().__init__()
        self.gate = LinearBase(spec.router, options)
        self.experts = nn.ModuleList(GatedMLP(expert, options) for expert in spec.experts)
        self.spec = spec
        self.kernels = options.kernels

    def forward(self, residual: ResidualState, norms: Norms) -> ResidualState:
        """The residual [T, H] with the experts' weighted outputs added, for the next norm."""
        rows = self.kernels.normalized_rows(residual)
        probs, chosen = self.route(rows)
        # float32, and always in the order of experts: a token's sum does not depend on the others
        total = rows.new_zeros(rows.shape, dtype=probs.dtype)
        for index in sorted(set(chosen.flatten().tolist())):
            tokens, choice = (chosen == index).nonzero(as_tuple=True)
            own = rows[tokens]
            found = self.experts[index].output(
                ResidualState(own, own, residual.weight, residual.eps)
            )
            total.index_add_(0, tokens, found * probs[tokens, choice, None])
        norm, post_norm = norms
        output = total.to(rows.dtype)
        return norm.add(output if post_norm is None else post_norm(output), residual.residual)

    def route(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Each token's experts: their weights, float32 [T, k], and their numbers, int64 [T, k]."""
        probs, chosen = self.gate(rows).float().softmax(-1).topk(self.spec.experts_per_token)
        return (probs / probs.sum(-1, keepdim=True) if self.spec.is_normalized else probs), chosen
