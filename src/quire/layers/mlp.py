"""The part of a decoder layer after attention: a gated MLP, or a mixture of experts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from quire.core.layer_spec import MLPSpec, MoESpec
from quire.kernels.operands import ResidualState
from quire.layers.linear_layers import GateUpParallelLinear, PaddedLinear, RowParallelLinear
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
        assert isinstance(inner, Tensor)  # GPUs alone make others
        return self.down_proj.forward(inner)


class MixtureOfExperts(nn.Module):
    """A mixture of experts, see `MoESpec`; computed expert by expert, so not in a CUDA graph."""

    def __init__(self, spec: MoESpec, options: LayerOptions) -> None:
        super().__init__()
        self.gate = PaddedLinear(spec.router, options)
        self.mlps = [GatedMLP(expert, options) for expert in spec.experts]
        self.experts = nn.ModuleList(self.mlps)
        self.spec = spec
        self.kernels = options.kernels

    def forward(self, residual: ResidualState, norms: Norms) -> ResidualState:
        """The residual [T, H] with the experts' weighted outputs added, for the next norm."""
        output = self._weighted_sum(residual)
        norm, post_norm = norms
        return norm.add(output if post_norm is None else post_norm(output), residual.residual)

    def _weighted_sum(self, residual: ResidualState) -> Tensor:
        """The sum of the experts' outputs, each times its token's weight: [T, H].

        In float32, and for each token in the order of the experts.
        """
        rows = self.kernels.normalized_rows(residual)
        weights, chosen = self.route(rows)
        by_expert = chosen.flatten().argsort(stable=True)
        tokens = by_expert // chosen.shape[1]
        weights = weights.flatten()[by_expert, None]
        counts = torch.bincount(chosen.flatten(), minlength=len(self.mlps)).tolist()
        total = rows.new_zeros(rows.shape, dtype=torch.float32)
        parts = zip(
            self.mlps, torch.split(tokens, counts), torch.split(weights, counts), strict=True
        )
        for expert, taken, share in parts:
            if len(taken):
                own = rows[taken]
                found = expert.output(ResidualState(own, own, residual.weight, residual.eps))
                total.index_add_(0, taken, found * share)
        return total.to(rows.dtype)

    def route(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The router's choice for each token: weights, float32 [T, k], of experts, int64 [T, k]."""
        probs, chosen = self.gate(rows).float().softmax(-1).topk(self.spec.experts_per_token)
        return (probs / probs.sum(-1, keepdim=True) if self.spec.renormalize else probs), chosen
