"""Act-order: the order in which a weight's inputs were grouped, from the group of each input.

No torch at import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def check_groups(g_idx: Tensor, groups: int) -> None:
    """Raise ValueError unless each of these groups has the same number of inputs."""
    import torch

    if _has_none(g_idx):
        return
    counts = torch.zeros(0)
    if len(g_idx) and int(g_idx.min()) >= 0 and int(g_idx.max()) < groups:
        counts = torch.bincount(g_idx, minlength=groups)
    if len(counts) != groups or not bool((counts == len(g_idx) // groups).all()):
        raise ValueError(f"it does not put its inputs into {groups} groups of one size")


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
