from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.core.sampling_params import SamplingParams
from quire.sampling.host_logits import History, HostLogits
from quire.sampling.logits_processors import apply_logits_processors
from quire.sampling.sampling_state import SamplingState

VOCAB = 24
TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=12)
WORDS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), max_size=4)


@st.composite
def requests(draw) -> tuple[SamplingParams, list[int], list[int], list[list[int]]]:
    """Sampling params, prompt, answer so far, bad words; each parameter is often off."""

    def maybe(strategy, default):
        return draw(st.one_of(st.just(default), strategy))

    params = SamplingParams(
        presence_penalty=maybe(st.sampled_from([-2.0, 0.3, 1.5]), 0.0),
        frequency_penalty=maybe(st.sampled_from([-0.5, 0.1, 2.0]), 0.0),
        repetition_penalty=maybe(st.sampled_from([0.5, 1.1, 3.0]), 1.0),
        logit_bias=maybe(
            st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-100.0, -0.5, 4.0])), None
        ),
        min_tokens=maybe(st.integers(1, 6), 0),
        stop_token_ids=maybe(st.lists(st.integers(0, VOCAB - 1), max_size=3), []),
        ignore_eos=draw(st.booleans()),
        allowed_token_ids=maybe(st.lists(st.integers(0, VOCAB - 1), min_size=1), None),
    )
    return params, draw(TOKENS.filter(bool)), draw(TOKENS), maybe(WORDS, [])


def plain_adjust(
    x: np.ndarray,
    params: SamplingParams,
    prompt: list[int],
    answer: list[int],
    bad_words: list[list[int]],
    eos: list[int],
) -> np.ndarray:
    x = x.copy()
    for token, value in (params.logit_bias or {}).items():
        x[token] += value
    for token in {*prompt, *answer}:
        r = np.float32(params.repetition_penalty)
        x[token] = x[token] / r if x[token] > 0 else x[token] * r
    for token in set(answer):
        x[token] -= params.presence_penalty + params.frequency_penalty * answer.count(token)
    if len(answer) < params.min_tokens:
        x[params.stop_token_ids] = -np.inf
        if not params.ignore_eos:
            x[eos] = -np.inf
    for *before, last in bad_words:
        if answer[len(answer) - len(before) :] == before and len(before) <= len(answer):
            x[last] = -np.inf
    if params.allowed_token_ids is not None:
        x[[token for token in range(VOCAB) if token not in params.allowed_token_ids]] = -np.inf
    return x


def adjust(batch: list, logits: torch.Tensor, rows: list[int], eos: list[int]) -> torch.Tensor:
    state = SamplingState(max(rows) + 1, VOCAB)
    token_ids = np.full((max(rows) + 1, 30), VOCAB - 1, np.int32)  # whatever lay there before
    num_tokens, num_prompt = np.zeros(max(rows) + 1, int), np.zeros(max(rows) + 1, int)
    for row, (params, prompt, answer, bad_words) in zip(rows, batch, strict=True):
        state.set_row(row, params, seed=0, eos_token_ids=eos, bad_words_ids=bad_words)
        known = prompt + answer
        token_ids[row, : len(known)] = known
        num_tokens[row], num_prompt[row] = len(known), len(prompt)
    adjusted = logits.clone()
    history = History(token_ids, num_tokens, num_prompt)
    apply_logits_processors(
        HostLogits(adjusted.numpy(), state, history), np.array(rows), state, history
    )
    return adjusted


@given(st.lists(requests(), min_size=1, max_size=5), st.integers(0, 999))
def test_sampling_params_equal_a_plain_version(batch: list, seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.standard_normal((len(batch), VOCAB)).astype(np.float32) * 4)
    logits[0, 5] = -torch.inf
    rows = rng.permutation(len(batch) + 2)[: len(batch)].tolist()
    adjusted = adjust(batch, logits, rows, eos=[1, 6])
    for i, (params, prompt, answer, bad_words) in enumerate(batch):
        expected = plain_adjust(logits[i].numpy(), params, prompt, answer, bad_words, [1, 6])
        assert np.allclose(adjusted[i].numpy(), expected, rtol=1e-6, atol=1e-6)


def test_rows_without_sampling_params_are_left_alone() -> None:
    logits = torch.randn(3, VOCAB)
    nothing = (SamplingParams(), [1, 2], [3, 3], [])
    much = (SamplingParams(presence_penalty=2.0, repetition_penalty=2.0), [1], [4], [[0]])
    adjusted = adjust([nothing, much, nothing], logits, [2, 0, 1], eos=[])
    assert torch.equal(adjusted[[0, 2]], logits[[0, 2]])
    changed = (adjusted[1] != logits[1]).nonzero().flatten().tolist()
    assert changed == [0, 1, 4]


@pytest.mark.parametrize("penalty", [1e-30, 1e-50, 5e-324])
def test_a_tiny_repetition_penalty_is_no_error(penalty: float) -> None:
    params = SamplingParams(repetition_penalty=penalty)
    logits = torch.full((1, VOCAB), 1e9)
    logits[0, :2] = torch.tensor([-3.0, 0.0])
    adjusted = adjust([(params, [0, 1, 2], [], [])], logits, [0], eos=[])[0]
    assert adjusted[:2].tolist() == pytest.approx([0.0, 0.0])
    assert torch.isinf(adjusted[2])
    assert torch.equal(adjusted[3:], logits[0, 3:])


@pytest.mark.parametrize(("length", "banned"), [(0, True), (2, True), (3, False), (9, False)])
def test_min_tokens_bans_all_ends_until_it_is_reached(length: int, banned: bool) -> None:
    params = SamplingParams(min_tokens=3, stop_token_ids=[8, 9])
    adjusted = adjust([(params, [0], [2] * length, [])], torch.zeros(1, VOCAB), [0], eos=[4])
    assert torch.isinf(adjusted[0]).nonzero().flatten().tolist() == ([4, 8, 9] if banned else [])


def test_an_end_that_is_ignored_is_not_banned() -> None:
    params = SamplingParams(min_tokens=3, stop_token_ids=[8], ignore_eos=True)
    adjusted = adjust([(params, [0], [], [])], torch.zeros(1, VOCAB), [0], eos=[4])
    assert torch.isinf(adjusted[0]).nonzero().flatten().tolist() == [8]


@pytest.mark.parametrize(
    ("answer", "banned"),
    [
        ([], [5]),
        ([0], [5, 6]),
        ([1], [2, 5]),
        ([1, 2], [3, 5]),
        ([7, 1, 2], [3, 5]),
        ([2, 1], [2, 5]),
        ([1, 2, 7], [5]),
    ],
)
def test_bad_words_match_the_tail_of_the_answer(answer: list[int], banned: list[int]) -> None:
    words = [[5], [1, 2], [1, 2, 3], [0, 6], []]
    # the prompt ends like a bad word, and does not count
    batch = [(SamplingParams(), [1, 2], answer, words)]
    adjusted = adjust(batch, torch.zeros(1, VOCAB), [0], eos=[])
    assert torch.isinf(adjusted[0]).nonzero().flatten().tolist() == banned
