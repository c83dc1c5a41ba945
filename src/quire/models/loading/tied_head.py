"""A head that a checkpoint stores although its config file ties it to the embedding.

Many checkpoints have such a copy. A fine-tuned head beside the old tie is another model, though.
"""

from __future__ import annotations

import torch

from quire.core.layer_spec import ModelSpec
from quire.errors import CheckpointError
from quire.models.checkpoints.checkpoint import Checkpoint


def check_tied_head(checkpoint: Checkpoint, spec: ModelSpec, prefix: str) -> None:
    """Raise CheckpointError for a stored head that is not the embedding it is tied to.

    prefix: that the names of the checkpoint lack.
    """
    if spec.head is None or not spec.is_head_tied:
        return
    table, head = (
        f"{spec.embedding.module}.weight".removeprefix(prefix),
        f"{spec.head.module}.weight",
    )
    stored = {table, head} & checkpoint.entries.keys()  # an embedding in codes may be none
    if head in stored and not (table in stored and _are_equal(checkpoint, stored)):
        raise CheckpointError(
            f"{checkpoint.origin}: {head} differs from {table}, though config.json says that "
            "they are one; set its tie_word_embeddings to false"
        )


def _are_equal(checkpoint: Checkpoint, names: set[str]) -> bool:
    """Whether two tensors are, or one is the other in its data type."""
    first, second = (tensor for _, tensor in checkpoint.tensors(names))
    pairs = (first, second), (second, first)
    return any(torch.equal(each.to(other.dtype), other) for each, other in pairs)
