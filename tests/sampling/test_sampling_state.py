from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from quire.core.reasoning_marks import ReasoningMarks
from quire.core.sampling_params import SamplingParams
from quire.sampling.sampling_state import Need, SamplingState

EVERYTHING = SamplingParams(
    temperature=0.5,
    top_k=7,
    presence_penalty=1.0,
    repetition_penalty=1.1,
    logit_bias={1: 2.0},
    min_tokens=2,
    stop_token_ids=[3],
    bad_words=["no"],
    allowed_token_ids=[1, 2],
    logprobs=2,
    thinking_token_budget=9,
    reasoning_marks=ReasoningMarks(begin=[1], end=[2]),
)


class AnyGrammar:
    """Lets everything through."""

    is_accepting = True
    is_terminated = False
    problem = None

    def advance_to(self, answer: Sequence[int]) -> None:
        """Has no state."""

    accept = advance_to

    def give_up(self, problem: str, *, is_running: bool = False) -> None:
        """Has none."""

    mean_mask_seconds = None

    def record_mask(self, seconds: float) -> None:
        """Has none."""

    def token_bitmask(self) -> bytes:
        return bytes([255] * 13)


def set_row(state: SamplingState, row: int, params: SamplingParams, seed: int = 0) -> None:
    words = [[4, 5]] if params.bad_words else []
    matcher = AnyGrammar() if params.bad_words else None
    state.set_row(row, params, seed=seed, eos_token_ids=[0], bad_words_ids=words, matcher=matcher)


@pytest.mark.parametrize(
    ("fields", "needs"),
    [
        ({"temperature": 0.0}, 0),
        ({"temperature": 0.0, "top_p": 0.5, "top_k": 3}, 0),  # greedy keeps one anyway
        ({}, Need.RANDOM),
        ({"top_k": -1}, Need.RANDOM),
        ({"top_k": 100}, Need.RANDOM),  # all of the vocabulary
        ({"top_k": 99}, Need.RANDOM | Need.FILTER),
        ({"top_p": 0.9}, Need.RANDOM | Need.FILTER | Need.TOTAL_MASS),
        ({"top_p": 0.9, "min_p": 0.1}, Need.RANDOM | Need.FILTER),
        ({"temperature": 0.0, "frequency_penalty": 0.1}, Need.PRESENCE),
        ({"temperature": 0.0, "logprobs": 0}, Need.LOGPROBS),
        ({"temperature": 0.0, "min_tokens": 3}, Need.MIN_TOKENS),
        ({"temperature": 0.0, "min_tokens": 3, "ignore_eos": True}, 0),  # nothing to ban
    ],
    ids=str,
)
def test_a_row_needs_what_its_request_uses(fields: dict, needs: int) -> None:
    state = SamplingState(5, 100)
    set_row(state, 3, SamplingParams(**fields))
    assert state.needs.tolist() == [0, 0, 0, needs, 0]


def test_a_row_forgets_its_last_request() -> None:
    state = SamplingState(4, 100)
    set_row(state, 1, EVERYTHING)
    set_row(state, 2, EVERYTHING)
    assert state.needs[1] == state.needs[2] == sum(Need) - Need.TOTAL_MASS
    assert set(state.grammars) == {1, 2}
    set_row(state, 1, SamplingParams(temperature=0.0))
    state.clear_row(2)
    state.clear_row(0)  # free rows may be cleared again
    assert not state.needs.any()
    assert not any(state._ragged)


def test_numbers_are_gathered_by_row() -> None:
    state = SamplingState(4, 100)
    set_row(state, 0, SamplingParams(temperature=0.25, top_p=0.5))
    set_row(state, 3, EVERYTHING)
    params = state.gather(np.array([3, 0, 3]))
    assert params.temperature.tolist() == [0.5, 0.25, 0.5]
    assert params.top_k.tolist() == [7, 100, 7]
    assert params.top_p.tolist() == [1.0, 0.5, 1.0]
    assert params.repetition_penalty.tolist() == [1.1, 1.0, 1.1]
    assert params.select(np.array([1])).temperature.tolist() == [0.25]


def test_seeds_are_64_bits_signed_or_not() -> None:
    state = SamplingState(3, 100)
    for row, seed in enumerate([2**64 - 1, -1, 2**63]):
        set_row(state, row, SamplingParams(), seed=seed)
    assert state.seeds.tolist() == [-1, -1, -(2**63)]
