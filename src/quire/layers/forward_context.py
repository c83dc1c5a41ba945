"""Inputs of a forward pass besides its tokens; an explicit argument, never a global."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:  # a heartbeat is also called where there is no torch
    from torch import Tensor

    from quire.kernels.batch_layout import BatchLayout

# a sign of life; it touches no tensor, so a graph may be captured over it
Heartbeat = Callable[[], None]


def no_heartbeat() -> None:
    """A heartbeat function that does nothing."""


class ForwardContext(msgspec.Struct, frozen=True):
    """One step: how its batch lies, and the KV cache of each layer.

    kv: see `kv_storage.allocate_kv`. heartbeat: the model calls it once for each layer, so that a
    long step is not taken for one that is stuck.
    """

    layout: BatchLayout
    kv: list[tuple[Tensor, ...]]
    heartbeat: Heartbeat = no_heartbeat
