"""Tokens to vectors, and vectors to logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from quire.core.layer_spec import EmbeddingSpec, LinearSpec
from quire.kernels.operands import LinearWeight
from quire.layers.linear_layers import PaddedLinear
from quire.layers.parameter import LayerOptions, Weight
from quire.quantization.stored_weight import Description


class VocabParallelEmbedding(nn.Module):
    """One vector per token of the vocabulary."""

    def __init__(self, spec: EmbeddingSpec, options: LayerOptions) -> None:
        super().__init__()
        # rounded to the data type of the weights, as models are trained with it
        self.scale = torch.tensor(spec.scale, dtype=options.dtype).item()
        self.weight = Weight(options.empty(spec.vocab_size, spec.hidden_size))
        self.kernels = options.kernels
        self.table: LinearWeight | None = None  # of a tied head, in place of the weight

    def forward(self, input_ids: Tensor) -> Tensor:
        """Embeddings of input_ids: int64 [T] → [T, H]."""
        weight = self.weight if self.table is None else self.table
        found = self.kernels.embedding(input_ids, weight)
        return found if self.scale == 1.0 else found * self.scale

    def share(self, table: LinearWeight) -> None:
        """Look up in the layout that a tied head reads, in place of an own copy."""
        del self.weight
        self.table = table


class ParallelLMHead(PaddedLinear):
    """Logits of the vocabulary. tied: the embedding whose weight is used, or None for an own one.

    A tied weight stays in memory for look-ups, also where the head's is quantized, which is then a
    second copy: it saves more than a quarter of a 1B model's decode step.
    """

    def __init__(
        self, spec: LinearSpec, options: LayerOptions, tied: VocabParallelEmbedding | None
    ) -> None:
        super().__init__(spec, options, tied.weight if tied else None)
        self.tied = (tied,) if tied else ()  # a tuple: it is no part of this module

    def process_after_load(self) -> None:
        """Also let a tied embedding use the packed weight."""
        super().process_after_load()
        self._share()

    def load_processed(self, tensors: dict[str, Tensor], description: Description) -> None:
        """Take the weight's tensors; a tied embedding uses them, too."""
        super().load_processed(tensors, description)
        self._share()

    def _share(self) -> None:
        """Let tied embeddings read rows of the head's weight, unless it is quantized."""
        for embedding in self.tied:
            if self.method.weight_format is None:
                embedding.share(self.method.operand)
