"""Act-order: the order in which a weight's inputs were grouped, from the group of each input.

No torch at import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def check_groups(g_idx: Tensor, group: int) -> None:
    """Raise ValueError unless groups have that many inputs each; the last one has the rest."""
    import torch

    if _has_none(g_idx):
        return
    expected = torch.arange(len(g_idx), dtype=g_idx.dtype, device=g_idx.device) // group
    if not torch.equal(g_idx.sort().values, expected):
        count = -(-len(g_idx) // group)
        raise ValueError(f"it does not put its inputs into {count} groups of one size")


def _has_none(g_idx: Tensor) -> bool:
    """Whether groups are those of the inputs' own order: llm-compressor then stores only -1."""
    return bool((g_idx == -1).all())


def permutation_of(g_idx: Tensor) -> Tensor | None:
    """The inputs sorted by group, int32 [K]; None where they are."""
    import torch

    if _has_none(g_idx):
        return None
    order = torch.argsort(g_idx, stable=True).int()
    ordered = torch.arange(len(order), dtype=torch.int32, device=order.device)
    return None if torch.equal(order, ordered) else order


def in_order(codes: Tensor, permutation: Tensor, bits: int) -> Tensor:
    """Packed rows [N, K · bits / 8] with their inputs in another order."""
    from quire.models.checkpoint_formats.integer_rows import packed, unpacked

    return packed(unpacked(codes, bits)[:, permutation.long()], bits)
