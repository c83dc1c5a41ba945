"""RMSNorm, alone or fused with the addition to the residual."""

from __future__ import annotations

from torch import Tensor, nn

from quire.core.layer_spec import NormSpec
from quire.kernels.operands import ResidualState
from quire.layers.parameter import LayerOptions, Weight, copy_whole


class RMSNorm(nn.Module):
    """Normalise the last dimension, of `spec.size`, by its root mean square."""

    def __init__(self, spec: NormSpec, options: LayerOptions) -> None:
        super().__init__()
        self.weight = Weight(options.empty(spec.size), _copy_plus_one if spec.adds_one else None)
        self.eps = spec.eps
        self.kernels = options.kernels

    def forward(self, x: Tensor) -> Tensor:
        """The normalized rows: x [..., size] → the same shape."""
        return self.kernels.rms_norm(x, self.weight, self.eps)

    def begin(self, hidden: Tensor) -> ResidualState:
        """Make hidden states [T, size] the residual."""
        return ResidualState(hidden, self(hidden), self.weight, self.eps)

    def add(self, x: Tensor, residual: Tensor) -> ResidualState:
        """Add x to the residual, both [T, size]."""
        rows, residual = self.kernels.rms_norm_residual(x, residual, self.weight, self.eps)
        return ResidualState(residual, rows, self.weight, self.eps)

    def finish(self, residual: ResidualState) -> Tensor:
        """The last norm's result, [T, size]."""
        return self.kernels.normalized_rows(residual)


def _copy_plus_one(param: Tensor, loaded: Tensor, part: str | None) -> None:
    """For norms that multiply by (1 + w): the sum is kept, in the model's data type."""
    copy_whole(param, loaded.float() + 1.0, part)
