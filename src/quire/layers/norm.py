"""RMSNorm, alone or fused with the addition to the residual stream."""

from __future__ import annotations

from torch import Tensor, nn

from quire.layers.parameter import LayerOptions, Weight


class RMSNorm(nn.Module):
    """Normalise the last dimension, of `size`, by its root mean square."""

    def __init__(self, size: int, eps: float, options: LayerOptions) -> None:
        super().__init__()
        self.weight = Weight(options.empty(size))
        self.eps = eps
        self.kernels = options.kernels

    def forward(self, x: Tensor) -> Tensor:
        """x [..., size] → the same shape."""
        return self.kernels.rms_norm(x, self.weight, self.eps)

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """x and residual [T, size] → (normalised sum, sum)."""
        return self.kernels.rms_norm_residual(x, residual, self.weight, self.eps)
