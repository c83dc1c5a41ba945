"""SmoothQuant: what is hard to round in activations moves into weights.

Xiao et al., 2023 ("SmoothQuant"), section 4: s = largest(|x|)^alpha / largest(|w|)^(1 - alpha).
"""

from __future__ import annotations

from torch import Tensor

from quire.compress.foldings import Folding
from quire.compress.input_statistics import InputStatistics


def smoothing_scale(
    weight: Tensor, stats: InputStatistics, folding: Folding, alpha: float
) -> Tensor:
    """The scale [K] by which a weight [N, K] is multiplied, and its inputs divided."""
    inputs, own = stats.largest.clamp_min(1e-5), weight.abs().amax(0).clamp_min(1e-5)
    return folding.shared((inputs**alpha / own ** (1.0 - alpha)).clamp(1e-4, 1e4))
