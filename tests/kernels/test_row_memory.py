"""Rows of activations have memory for whole tiles behind them, and kernels are given no more."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("triton")
from quire.kernels.triton.launch.row_memory import empty_rows, whole_boxes

CPU = torch.device("cpu")


@given(rows=st.integers(0, 700), kind=st.sampled_from([torch.int8, torch.bfloat16]))
def test_rows_have_memory_for_whole_tiles(rows: int, kind: torch.dtype) -> None:
    x = empty_rows(rows, 4, 8, dtype=kind, device=CPU)
    assert x.shape == (rows, 4, 8)
    assert x.is_contiguous()
    tiles = [8, 16, 32, 64] if rows <= 64 else [64, 128, 256]
    for tile in (each for each in tiles if rows > 0 and (rows > 64 or each < 2 * rows)):
        assert len(whole_boxes(x.view(rows, 32), tile)) == -(-rows // tile) * tile


@given(
    behind=st.integers(0, 40), before=st.integers(0, 9), rows=st.integers(1, 40),
    left=st.integers(0, 3), right=st.integers(0, 3), tile=st.sampled_from([8, 16, 32]),
)  # fmt: skip
def test_boxes_stay_within_the_memory(
    behind: int, before: int, rows: int, left: int, right: int, tile: int
) -> None:
    width = left + 16 + right
    memory = torch.arange((before + rows + behind) * width, dtype=torch.float32)
    x = memory.view(-1, width)[before : before + rows, left : left + 16]
    boxes = whole_boxes(x, tile)  # `as_strided` refuses what lies beyond
    assert rows <= len(boxes) <= -(-rows // tile) * tile
    assert torch.equal(boxes[:rows], x)
    if behind >= tile:
        assert len(boxes) % tile == 0
