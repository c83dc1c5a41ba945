"""Bytes and operations of attention for one request, counted. No torch."""

from __future__ import annotations

import numpy as np


def num_keys(num_queries: int, seq_len: int, window: int | None) -> int:
    """Keys that the last queries of a sequence see, each counted once."""
    return seq_len if window is None else min(seq_len, window + num_queries - 1)


def num_pairs(num_queries: int, seq_len: int, window: int | None) -> int:
    """Pairs of a query and a key that it sees."""
    seen = np.arange(seq_len - num_queries + 1, seq_len + 1)
    return int((seen if window is None else np.minimum(seen, window)).sum())
