"""What a step's first and last kernel mean, by examples; test_triton_kernels.py compares them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from twins import packed_step

from quire.kernels import reference_step
from quire.kernels.step_buffer import StepSections
from quire.kernels.triton.step import step_kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_sections_begin_where_16_bytes_do_and_do_not_overlap() -> None:
    sections = StepSections(num_tokens=7, num_rows=6)
    buffer = np.arange(sections.size + 10, dtype=np.int32)
    cut = sections.cut(buffer)
    parts = [getattr(cut, name) for name in type(cut).__slots__]
    assert [len(part) for part in parts] == [4, 7, 6, 6, 6, 6, 6, 17 * 16, 17, 7, 7, 5]
    assert all(part.flat[0] % 4 == 0 for part in parts)
    assert (
        len(np.unique(np.concatenate([part.ravel() for part in parts]))) == sum(map(len, parts)) + 5
    )


def test_inputs_join_what_was_sent_with_what_was_drawn() -> None:
    packed, sections, last_tokens, block_table, inputs, block_size = packed_step(seed=1)
    sent_step = sections.cut(packed)
    expected_table = block_table.clone()
    for index, block_id in sent_step.block_changes[: int(sent_step.header[0])].tolist():
        expected_table.view(-1)[index] = block_id
    reference_step.build_inputs(packed, sections, last_tokens, block_table, inputs, block_size)
    assert torch.equal(block_table, expected_table)
    ids, positions, slots = inputs.tolist()
    token = 0
    for row in range(len(last_tokens)):
        count = int(sent_step.query_start_loc[row + 1] - sent_step.query_start_loc[row])
        for position in range(int(sent_step.seq_lens[row]) - count, int(sent_step.seq_lens[row])):
            sent = int(sent_step.token_ids[token])
            assert ids[token] == (sent if sent >= 0 else int(last_tokens[row]))
            assert positions[token] == position
            block = int(expected_table[row, position // block_size])
            assert slots[token] == block * block_size + position % block_size
            token += 1
    assert 0 < token < len(ids)
    assert set(slots[token:]) == {-1}
    assert set(ids[token:]) == set(positions[token:]) == {0}


@pytest.mark.parametrize("finish_step", [reference_step.finish_step, step_kernels.finish_step])
def test_only_rows_with_a_drawn_token_keep_it(finish_step: Callable[..., Tensor]) -> None:
    rows = torch.tensor([3, -1, 0], dtype=torch.int32, device=DEVICE)
    drawn = torch.tensor([70, 80, 90], dtype=torch.int32, device=DEVICE)
    last_tokens = torch.full((5,), 11, dtype=torch.int32, device=DEVICE)
    hidden = torch.zeros(5, 8, device=DEVICE)
    for token, damage in ((1, torch.nan), (2, torch.inf), (4, -torch.inf)):
        hidden[token, 5] = damage
    step_len = torch.tensor([5], dtype=torch.int32, device=DEVICE)
    outcome = finish_step(hidden, step_len, drawn, drawn % 20, rows, last_tokens)
    assert last_tokens.tolist() == [90, 11, 11, 70, 11]
    assert outcome.tolist() == [70, 80, 90, 10, 0, 10, 1, 0, 0, 1, 0]


@pytest.mark.parametrize("count", [1, 512, 1300])
def test_what_is_moved_arrives_and_nothing_else(count: int) -> None:
    source = torch.arange(1, count + 1, dtype=torch.int32)
    target = torch.zeros(1400, dtype=torch.int32, device=DEVICE)
    back = torch.zeros(1400, dtype=torch.int32)
    if DEVICE == "cuda":
        source, back = source.pin_memory(), back.pin_memory()
    step_kernels.move(target, source)
    step_kernels.move(back, target[:count])
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    assert torch.equal(back[:count], source)
    assert not target[count:].any()
    assert not back[count:].any()
