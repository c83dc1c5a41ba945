"""Tokens to vectors, and vectors to logits."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from quire.layers.parameter import LayerOptions, LoadedModule, Weight


class VocabParallelEmbedding(nn.Module):
    """One vector per token of the vocabulary."""

    def __init__(self, vocab_size: int, hidden_size: int, options: LayerOptions) -> None:
        super().__init__()
        self.weight = Weight(options.empty(vocab_size, hidden_size))

    def forward(self, input_ids: Tensor) -> Tensor:
        """input_ids int64 [T] → [T, H]."""
        return F.embedding(input_ids, self.weight)


class ParallelLMHead(LoadedModule):
    """Logits of the vocabulary. tied: the embedding whose weight is used, or None for an own one.

    A tied weight stays in memory for look-ups, also where the device's matmul wants another form
    of it, which is then a second copy: on CPUs it saves a quarter of a 1B model's decode step.
    """

    weight: Tensor

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        options: LayerOptions,
        tied: VocabParallelEmbedding | None,
    ) -> None:
        super().__init__()
        self.kernels = options.kernels
        self.weight = tied.weight if tied else Weight(options.empty(vocab_size, hidden_size))

    def process_after_load(self) -> None:
        """Bring the weight into the form that the matmul likes best."""
        plain = self.weight.detach()
        del self.weight
        self.register_buffer("weight", self.kernels.prepare_linear(plain), persistent=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden [S, H] → float32 [S, V]."""
        return self.kernels.linear(hidden, self.weight, None).float()
