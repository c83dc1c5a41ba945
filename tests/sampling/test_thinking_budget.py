"""Thinking budgets: which token is forced, whatever the answer, and that device and host agree."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from quire.core.reasoning_marks import ReasoningMarks
from quire.sampling.thinking_budget import MAX_BLANK_TOKENS, MAX_TOKENS_LATE, ThinkingBudget

BLANK, BEGIN, END = 0, 1, [2, 3]


def answer(written: list[int], budget: int, *, is_open: bool) -> list[int]:
    """What is written, as far as nothing is forced; as long as it."""
    rule = ThinkingBudget(budget, ReasoningMarks(begin=[BEGIN], end=END), is_open=is_open)
    tokens: list[int] = []
    for token_id in written:
        forced = rule.forced(np.array(tokens, np.int32))
        tokens.append(token_id if forced is None else forced)
    return tokens


@given(st.integers(0, 9), st.lists(st.integers(4, 9), min_size=16, max_size=20))
def test_reasoning_that_does_not_end_is_ended_once(budget: int, words: list[int]) -> None:
    for is_open, head in ((True, []), (False, [BLANK, BEGIN])):
        written = [*head, *words]
        forced = answer(written, budget, is_open=is_open)
        start = len(head) + budget
        assert forced == [*written[:start], *END, *written[start + 2 :]]


@given(st.integers(0, 9), st.integers(0, 5))
def test_an_end_that_a_grammar_bans_comes_up_to_a_character_later(budget: int, late: int) -> None:
    rule = ThinkingBudget(budget, ReasoningMarks(begin=[BEGIN], end=END), is_open=True)
    tokens = [5] * (budget + late)
    for token_id in [*END, None] if late <= MAX_TOKENS_LATE else [None] * 3:
        assert rule.forced(np.array(tokens, np.int32)) == token_id
        tokens.append(5 if token_id is None else token_id)


@given(st.integers(0, 9), st.lists(st.integers(4, 9), max_size=8), st.lists(st.integers(2, 9)))
def test_reasoning_within_its_budget_is_left_alone(
    spare: int, words: list[int], rest: list[int]
) -> None:
    written = [BEGIN, *words, *END, *rest]
    budget = len(words) + len(END) + spare
    assert answer(written, budget, is_open=False) == written
    assert answer(written[1:], budget, is_open=True) == written[1:]


@given(st.lists(st.integers(4, 9), min_size=MAX_BLANK_TOKENS + 1))
def test_an_answer_without_reasoning_has_no_budget(words: list[int]) -> None:
    written = [*words, BEGIN, 5, 5]  # a mark that is quoted later opens nothing
    assert answer(written, 0, is_open=False) == written


@given(st.integers(0, 4), st.lists(st.integers(0, 4), max_size=12), st.booleans())
def test_what_is_read_at_once_after_a_preemption_forces_the_same(
    budget: int, written: list[int], is_open: bool
) -> None:
    marks = ReasoningMarks(begin=[BEGIN], end=END)
    rule = ThinkingBudget(budget, marks, is_open=is_open)
    for length in range(len(written) + 1):
        tokens = np.array(written[:length], np.int32)
        fresh = ThinkingBudget(budget, marks, is_open=is_open)
        assert fresh.forced(tokens) == rule.forced(tokens)


def test_the_prompts_last_mark_says_whether_an_answer_starts_inside() -> None:
    marks = ReasoningMarks(begin=[BEGIN], end=END)
    prompts = ([5], [BEGIN, 5], [BEGIN, 5, *END], [*END, BEGIN], [BEGIN, *END, BEGIN, 7])
    assert [marks.are_open_after(prompt) for prompt in prompts] == [False, True, False, True, True]
