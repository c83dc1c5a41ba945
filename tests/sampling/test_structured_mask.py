"""Token masks beside other sampling parameters, with a matcher that is a list of words."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from cpu_limit import cpu_limit

from quire.core.reasoning_marks import ReasoningMarks
from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import TOO_MUCH_FOR_CALLER
from quire.sampling import structured_mask
from quire.sampling.caller_budgets import CallerBudgets, StepMasks
from quire.sampling.host_logits import History
from quire.sampling.mask_thread import MaskThread
from quire.sampling.sampler import Sampler, SamplerOutput
from quire.sampling.sampling_state import SamplingState
from quire.sampling.structured_mask import GrammarConstraint, compute_masks

VOCAB, EOS, STOP = 12, 0, 9
WORDS = [[1, 2], [1, 2, 3], [4]]  # the answers that have the form
GREEDY = SamplingParams(temperature=0.0)


class WordMatcher:
    """Matches one of a few answers, or a given set of tokens."""

    def __init__(self, words: Sequence[Sequence[int]]) -> None:
        self.words = [list(word) for word in words]
        self.answer: list[int] = []
        self.given_up: list[bool] = []  # whether a mask was in progress, each time
        self.mean_mask_seconds: float | None = None

    problem: str | None = None

    def advance_to(self, answer: Sequence[int]) -> None:
        assert list(answer[: len(self.answer)]) == self.answer
        self.answer = [int(token_id) for token_id in answer]

    def accept(self, token_id: int) -> None:
        self.answer.append(token_id)

    def token_bitmask(self) -> bytes:
        size = len(self.answer)
        flags = np.zeros(VOCAB - 4, np.uint8)  # the tokenizer knows fewer tokens than the model
        for word in self.words:
            if word[:size] == self.answer:
                flags[word[size] if len(word) > size else EOS] = 1
        return np.packbits(flags, bitorder="little").tobytes()

    def give_up(self, problem: str, *, is_running: bool = False) -> None:
        self.problem = problem
        self.given_up.append(is_running)

    def record_mask(self, seconds: float) -> None:
        self.mean_mask_seconds = seconds

    @property
    def is_accepting(self) -> bool:
        return self.answer in self.words

    @property
    def is_terminated(self) -> bool:
        return (
            self.is_accepting and sum(w[: len(self.answer)] == self.answer for w in self.words) == 1
        )


def masks(free: float = math.inf, budgets: CallerBudgets | None = None) -> StepMasks:
    """The masks of a step."""
    return StepMasks(budgets or CallerBudgets(), free)


def draw(
    sampling: SamplingParams,
    answer: Sequence[int] = (),
    *,
    best: Sequence[int] = (),
    matcher: WordMatcher | None = None,
    **how: bool,
) -> SamplerOutput:
    """Sample one row that prefers the tokens `best`, and a bystander."""
    logits = torch.zeros(2, VOCAB)
    logits[:, 7] = 5.0  # banned by every form
    for index, token_id in enumerate(best):
        logits[0, token_id] = 20.0 - index
    state = SamplingState(2, VOCAB)
    matcher = WordMatcher(WORDS) if matcher is None else matcher
    ends = {"seed": 1, "eos_token_ids": [EOS], "bad_words_ids": []}
    state.set_row(0, sampling, **ends, matcher=matcher, **how)
    state.set_row(1, GREEDY, **ends)
    known = np.zeros((2, 8), np.int32)
    known[0, 1 : 1 + len(answer)] = answer
    history = History(known, np.array([1 + len(answer), 1]), np.array([1, 1]))
    drawn = Sampler(state).sample(logits.numpy(), [0, 1], history)
    assert drawn.token_ids[1] == 7
    assert not any((drawn.failed[1], drawn.exhausted[1], drawn.grammar_terminated[1]))
    return drawn


@pytest.mark.parametrize(
    ("answer", "best", "expected"),
    [([], [7, 2, 4], 4), ([], [11, 10, 1], 1), ([1], [1, 4], 2), ([1, 2], [3, EOS], 3),
     ([1, 2], [EOS, 3], EOS), ([1], [EOS], 2)],
)  # fmt: skip
def test_the_best_allowed_token_is_drawn(answer: list[int], best: list[int], expected: int) -> None:
    drawn = draw(GREEDY, answer, best=best)
    assert drawn.token_ids[0] == expected
    assert not drawn.exhausted[0]


def test_an_answer_is_whole_when_nothing_can_follow() -> None:
    assert draw(GREEDY, [], best=[4]).grammar_terminated[0]
    assert draw(GREEDY, [1, 2], best=[3]).grammar_terminated[0]
    assert not draw(GREEDY, [1], best=[2]).grammar_terminated[0]


def test_sampled_tokens_follow_the_grammar() -> None:
    for seed in range(30):
        params = SamplingParams(temperature=5.0, seed=seed, top_p=0.99)
        assert draw(params, [1], best=[5, 6]).token_ids[0] == 2


def test_end_tokens_count_only_after_min_tokens() -> None:
    drawn = draw(SamplingParams(temperature=0.0, min_tokens=3), [1, 2], best=[EOS])
    assert drawn.token_ids[0] == 3
    drawn = draw(SamplingParams(temperature=0.0, min_tokens=2), [1, 2], best=[EOS])
    assert drawn.token_ids[0] == EOS


def test_ignored_end_tokens_are_never_drawn() -> None:
    drawn = draw(SamplingParams(temperature=0.0, ignore_eos=True), [1, 2], best=[EOS])
    assert drawn.token_ids[0] == 3


def test_stop_tokens_end_an_answer_where_it_is_whole() -> None:
    params = SamplingParams(temperature=0.0, stop_token_ids=[STOP])
    assert draw(params, [1], best=[STOP]).token_ids[0] == 2
    assert draw(params, [1, 2], best=[STOP]).token_ids[0] == STOP
    later = SamplingParams(temperature=0.0, stop_token_ids=[STOP], min_tokens=3)
    assert draw(later, [1, 2], best=[STOP]).token_ids[0] == 3


def test_sampling_params_that_leave_nothing_are_exhausted() -> None:
    params = SamplingParams(temperature=0.0, min_tokens=4)
    drawn = draw(params, [4], best=[1])  # whole, but too short
    assert drawn.exhausted[0]
    assert not drawn.failed[0]
    assert not drawn.grammar_terminated[0]


@pytest.mark.parametrize(
    ("constraint", "mark", "answer", "expected"),
    [
        ({"regex": "x"}, [1], [], 1),  # allowed: the reasoning ends there
        ({"regex": "x"}, [6], [], 4),  # and where no answer has the mark, it is not forced
        ({"choice": ["x"]}, [1], [], 4),
        ({"regex": "x"}, [2], [1], 2),
        ({"regex": "x"}, [2], [], 4),  # it may come later, as behind the rest of a character
    ],
)
def test_a_thinking_budget_does_not_leave_the_grammar(
    constraint: dict[str, Any], mark: list[int], answer: list[int], expected: int
) -> None:
    marks = ReasoningMarks(begin=[7], end=mark, is_open=True)
    params = SamplingParams(
        temperature=0.0,
        thinking_token_budget=0,
        reasoning_marks=marks,
        structured_outputs=constraint,
    )
    drawn = draw(params, answer, best=[4, 3], is_thinking=True)
    assert drawn.token_ids[0] == expected
    assert not drawn.exhausted[0]


def test_a_dead_end_is_exhausted() -> None:
    drawn = draw(GREEDY, [5], best=[1], matcher=WordMatcher(WORDS))
    assert drawn.exhausted[0]


@pytest.mark.parametrize(
    ("seconds", "most"), [(0.001, None), (0.019, None), (0.031, 18), (0.1, 1), (0.13, 0)]
)
def test_masks_that_are_slow_all_the_time_end_their_request(
    seconds: float, most: int | None
) -> None:
    matcher = WordMatcher(WORDS)
    none = np.zeros(0, np.int64)
    grammar = GrammarConstraint(matcher, stop_token_ids=none, banned_ids=none)
    for number in range(2000):
        grammar.compute_mask(np.zeros(0, np.int32), masks())
        grammar.spend(seconds)
        if matcher.given_up:
            assert number == most
            assert matcher.given_up == [False]
            assert grammar.banned(VOCAB).all()
            return
    assert most is None
    assert not grammar.banned(VOCAB).all()


def test_what_a_token_takes_to_be_accepted_counts_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(structured_mask, "MASK_SECONDS", 0.05)
    matcher, none = WordMatcher([[1] * 9]), np.zeros(0, np.int64)

    def slowly(_: int) -> None:
        begin = time.thread_time()
        while time.thread_time() - begin < 0.1:
            pass

    monkeypatch.setattr(matcher, "accept", slowly)
    grammar = GrammarConstraint(matcher, stop_token_ids=none, banned_ids=none)
    for _ in range(2):
        assert not matcher.given_up
        compute_masks(MaskThread(), [grammar], [np.zeros(0, np.int32)], masks())
        grammar.accept_token(1)
    assert matcher.given_up == [False]


def no_mask_before(go: threading.Event) -> bytes:
    """A mask that takes processor time until then."""
    while not go.is_set():
        pass
    return b""


def test_a_mask_that_takes_too_long_ends_its_request_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(structured_mask, "MASK_SECONDS", 0.05)
    slow, quick, go = WordMatcher(WORDS), WordMatcher(WORDS), threading.Event()

    monkeypatch.setattr(slow, "token_bitmask", partial(no_mask_before, go))
    none = np.zeros(0, np.int64)
    both = [GrammarConstraint(m, stop_token_ids=none, banned_ids=none) for m in (slow, quick)]
    compute_masks(MaskThread(), both, [np.zeros(0, np.int32)] * 2, masks())
    go.set()
    assert (slow.given_up, quick.given_up) == ([True], [])
    assert both[0].banned(VOCAB).all()
    assert np.flatnonzero(~both[1].banned(VOCAB)).tolist() == [1, 4]


def test_a_row_of_a_grammar_that_is_given_up_does_not_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Waiting takes no processor time, so it would not be given up itself."""
    monkeypatch.setattr(structured_mask, "MASK_SECONDS", 0.05)
    first, second, go = WordMatcher(WORDS), WordMatcher(WORDS), threading.Event()

    monkeypatch.setattr(first, "token_bitmask", partial(no_mask_before, go))

    def wait_for_the_first() -> bytes:
        return b"" if first.given_up else no_mask_before(go)

    monkeypatch.setattr(second, "token_bitmask", wait_for_the_first)
    none = np.zeros(0, np.int64)
    both = [GrammarConstraint(m, stop_token_ids=none, banned_ids=none) for m in (first, second)]
    compute_masks(MaskThread(), both, [np.zeros(0, np.int32)] * 2, masks())
    go.set()
    assert (first.given_up, second.given_up) == ([True], [])


def slow(matcher: WordMatcher, seconds: float) -> WordMatcher:
    """With masks that take this much processor time."""
    compute = matcher.token_bitmask

    def token_bitmask() -> bytes:
        begin = time.thread_time()
        while time.thread_time() - begin < seconds:
            pass
        return compute()

    matcher.token_bitmask = token_bitmask  # type: ignore[method-assign]
    return matcher


def constraint(matcher: WordMatcher, caller: str) -> GrammarConstraint:
    none = np.zeros(0, np.int64)
    return GrammarConstraint(matcher, stop_token_ids=none, banned_ids=none, caller=caller)


def test_slow_masks_of_one_caller_end_its_own_requests_before_others_wait_long() -> None:
    """Each is within the limit of a request."""
    costly = [slow(WordMatcher(WORDS), 0.1) for _ in range(40)]
    budgets, known, other, new = CallerBudgets(), WordMatcher(WORDS), WordMatcher(WORDS), []
    known.record_mask(0.001)
    with cpu_limit(1.0):
        for part in range(0, 40, 4):
            all_ = [constraint(matcher, "costly") for matcher in costly[part : part + 4]]
            all_ += [constraint(known, "costly"), constraint(other, "other")]
            new.append(WordMatcher(WORDS))
            all_.append(constraint(new[-1], "costly"))
            outputs = [np.zeros(0, np.int32)] * len(all_)
            compute_masks(MaskThread(), all_, outputs, masks(0.002, budgets))
            allowed = [np.flatnonzero(~each.banned(VOCAB)).tolist() for each in all_[4:6]]
            assert allowed == [[1, 4]] * 2
    ended = [matcher.problem for matcher in costly]
    assert ended[:3] == [None] * 3
    assert ended[4:] == [TOO_MUCH_FOR_CALLER] * 36
    assert [matcher.problem for matcher in new[1:]] == [TOO_MUCH_FOR_CALLER] * 9
    assert (known.problem, other.problem) == (None, None)


def test_what_a_caller_owes_decreases_with_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, budgets = [1000.0], CallerBudgets()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def may_start(usual: float | None) -> bool:
        return masks(0.002, budgets).may_start("a", usual)

    assert may_start(None)
    budgets.add("a", 0.5)
    budgets.add("b", 0.1)
    assert masks(0.002, budgets).may_start("b", None)
    assert [may_start(usual) for usual in (None, 0.1, 0.001)] == [False, False, True]
    now[0] += 26.0
    assert may_start(None)
    assert budgets.owed("a") == pytest.approx(0.24)
    budgets.add("a", 0.6)
    assert list(budgets._owed) == ["a"]  # the other one has paid
    assert not may_start(0.001)  # not even with a grammar that has been quick


def test_masks_of_a_lone_caller_are_free() -> None:
    """It delays nobody but itself. And quick ones are free for all, however many there are."""
    state = SamplingState(3, VOCAB)
    ends = {"seed": 1, "eos_token_ids": [EOS], "bad_words_ids": []}
    state.set_row(0, GREEDY, **ends, caller="a")
    state.set_row(1, GREEDY, **ends)  # an embedding
    state.step_begin = time.monotonic()
    for caller, owed in (("a", 0.0), ("b", pytest.approx(9.0, abs=1.0))):
        state.set_row(2, GREEDY, **ends, caller=caller)
        step = state.begin_masks()
        step.add("a", 9.0)
        assert step.may_start("a", None) == (owed == 0.0)
        step.end()
        assert state._budgets.owed("a") == owed
    quick = masks(0.0)
    for _ in range(9999):
        quick.add("b", 0.0002)
    assert quick.may_start("b", None)


def test_logprobs_are_those_of_the_model() -> None:
    drawn = draw(SamplingParams(temperature=0.0, logprobs=1), [1], best=[7, 2])
    logprobs = drawn.logprobs[0]
    assert logprobs is not None
    assert logprobs.token_ids == [2, 7]
    assert logprobs.rank == 2
