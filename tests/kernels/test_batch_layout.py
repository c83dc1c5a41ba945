"""BatchLayout.build against a token-by-token computation of the same layout."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.batch_layout import BatchLayout
from quire.kernels.cpu.torch_attention import first_slots
from quire.kernels.ragged_batch import RaggedBatch


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[int], list[int], np.ndarray, int]:
    """Requests with their query and sequence lengths, and random blocks."""
    block_size = draw(st.sampled_from([1, 4, 16]))
    queries = sorted(
        draw(st.lists(st.integers(1, 20), min_size=1, max_size=6)), key=lambda n: n > 1
    )
    lens = [n + draw(st.integers(0, 40)) for n in queries]
    most = max(-(-n // block_size) for n in lens)
    ids = draw(st.permutations(range(len(lens) * most)))
    if draw(st.booleans()):
        ids = sorted(ids)  # consecutive blocks
    table = np.array(ids, dtype=np.int32).reshape(len(lens), most)
    return queries, lens, table, block_size


@settings(max_examples=150)
@given(batches())
def test_every_token_gets_its_slot(batch: tuple[list[int], list[int], np.ndarray, int]) -> None:
    queries, lens, table, size = batch
    layout = BatchLayout.build(queries, lens, table, size)
    slots = [
        int(table[row, position // size]) * size + position % size
        for row, (n, length) in enumerate(zip(queries, lens, strict=True))
        for position in range(length - n, length)
    ]
    assert layout.slot_mapping.tolist() == slots
    assert layout.query_start_loc.tolist() == [0, *np.cumsum(queries).tolist()]
    assert layout.seq_lens.tolist() == layout.seq_lens_host == lens
    assert layout.query_lens_host == queries
    assert layout.has_decodes == (1 in queries)
    assert layout.has_prefills == (max(queries) > 1)


@settings(max_examples=150)
@given(batches(), st.data())
def test_tokens_of_answers_are_requests_of_their_own(
    batch: tuple[list[int], list[int], np.ndarray, int], data: st.DataObject
) -> None:
    queries, lens, table, size = batch
    prompts = [data.draw(st.integers(1, length)) for length in lens]
    arrays = (np.array(queries), np.array(lens), table, size)
    found = RaggedBatch.of(*arrays, np.array(prompts)).as_decoded()
    expected = []  # tokens of each, where it ends, its blocks, whether it is a prompt's only one
    for row, (n, length, prompt) in enumerate(zip(queries, lens, prompts, strict=True)):
        ends = [end for end in range(length - n + 1, length + 1) if end > prompt]
        num_prompt = n - len(ends)
        if num_prompt:
            expected += [(num_prompt, length - len(ends), table[row].tolist(), num_prompt == 1)]
        expected += [(1, end, table[row].tolist(), False) for end in ends]
    tokens, tables = np.diff(found.query_start).tolist(), found.block_table.tolist()
    alone = [False] * len(tokens) if found.prompts is None else found.prompts.tolist()
    assert list(zip(tokens, found.seq_lens.tolist(), tables, alone, strict=True)) == expected
    plain = RaggedBatch.of(*arrays).as_decoded()
    assert plain.seq_lens.tolist() == lens


@settings(max_examples=150)
@given(batches())
def test_first_slot_is_set_for_consecutive_blocks_only(
    batch: tuple[list[int], list[int], np.ndarray, int],
) -> None:
    queries, lens, table, size = batch
    layout = BatchLayout.build(queries, lens, table, size)
    for row, first in enumerate(first_slots(layout, size)):
        used = table[row, : -(-lens[row] // size)].tolist()
        consecutive = used == list(range(used[0], used[0] + len(used)))
        assert first == (used[0] * size if consecutive else None)


def test_decodes_come_first() -> None:
    with pytest.raises(AssertionError, match="decodes come first"):
        BatchLayout.build([2, 1], [2, 1], np.zeros((2, 1), dtype=np.int32), 16)


def test_what_was_derived_is_dropped_for_the_next_pass() -> None:
    layout = BatchLayout.build([1], [1], np.zeros((1, 1), dtype=np.int32), 16)
    answers = iter([1, 2])
    assert [layout.once("key", lambda: next(answers)) for _ in range(2)] == [1, 1]
    layout.forget()
    assert layout.once("key", lambda: next(answers)) == 2
