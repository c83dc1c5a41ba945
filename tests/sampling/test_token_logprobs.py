from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.core.sampling_params import SamplingParams
from quire.sampling.token_logprobs import token_logprobs


def random_logits(count: int, vocab: int, levels: int = 4) -> torch.Tensor:
    values = torch.randn(count, vocab, generator=torch.Generator().manual_seed(vocab)) * 3
    return (values * levels).round() / levels


@given(st.integers(1, 300), st.integers(1, 5), st.integers(1, 8), st.data())
def test_they_are_the_log_softmax_in_order(vocab: int, count: int, levels: int, data) -> None:
    logits = random_logits(count, vocab, levels)
    tokens = data.draw(st.lists(st.integers(0, vocab - 1), min_size=count, max_size=count))
    counts = data.draw(st.lists(st.integers(0, 20), min_size=count, max_size=count))
    expected = torch.log_softmax(logits, -1)
    for i, found in enumerate(token_logprobs(logits.numpy(), tokens, counts)):
        row = logits[i].tolist()
        best = sorted(range(vocab), key=lambda t, row=row: (-row[t], t))[: counts[i]]
        assert found.token_ids == [tokens[i], *best]
        assert found.logprobs == pytest.approx(expected[i, found.token_ids].tolist(), abs=2e-6)
        assert found.rank == 1 + sum(x > row[tokens[i]] for x in row)


@pytest.mark.parametrize("vocab", [50, 32_001])
def test_they_do_not_depend_on_the_batch(vocab: int) -> None:
    logits = random_logits(21, vocab).numpy()
    tokens = [(i * 977) % vocab for i in range(21)]
    together = token_logprobs(logits, tokens, [7] * 21)
    assert together == [
        token_logprobs(logits[i : i + 1], [token], [7])[0] for i, token in enumerate(tokens)
    ]


def test_they_sum_to_one() -> None:
    logits = torch.randn(1, 20, generator=torch.Generator().manual_seed(3)).numpy() * 4
    (found,) = token_logprobs(logits, [3], [20])
    assert math.isclose(sum(map(math.exp, found.logprobs[1:])), 1.0, abs_tol=1e-5)
    assert found.logprobs[1:] == sorted(found.logprobs[1:], reverse=True)


def test_none_asked_for_is_the_token_alone() -> None:
    (found,) = token_logprobs(np.zeros((1, 4), np.float32), [2], [0])
    assert (found.token_ids, found.rank) == ([2], 1)
    assert math.isclose(found.logprobs[0], math.log(1 / 4), rel_tol=1e-6)


def test_a_token_that_cannot_occur_has_minus_infinity() -> None:
    logits = np.array([[0.0, -np.inf, 1.0]], np.float32)
    (found,) = token_logprobs(logits, [1], [3])
    assert found.token_ids == [1, 2, 0, 1]
    assert found.logprobs[0] == found.logprobs[3] == -math.inf
    assert found.rank == 3


def test_no_positions() -> None:
    assert token_logprobs(np.zeros((0, 9), np.float32), [], []) == []


@pytest.mark.parametrize("vocab", [64, 101])
def test_samples_report_the_model_before_any_sampling_param(vocab: int, sample) -> None:
    logits = random_logits(3, vocab)
    params = SamplingParams(
        temperature=0.3,
        top_k=3,
        logit_bias={7: 90.0},
        presence_penalty=2.0,
        repetition_penalty=5.0,
        logprobs=4,
    )
    output = sample(
        logits,
        [params, SamplingParams(), params],
        prompts=[[1, 2]] * 3,
        answers=[[3]] * 3,
    )
    assert output.token_ids[0] == output.token_ids[2] == 7
    assert output.logprobs[1] is None
    assert output.logprobs[0] == token_logprobs(logits[:1].numpy(), [7], [4])[0]
    assert output.logprobs[2] == token_logprobs(logits[2:].numpy(), [7], [4])[0]


def test_each_row_gets_as_many_as_it_asked_for(sample) -> None:
    params_list = [SamplingParams(temperature=0.0, logprobs=n) for n in (0, 3, 20)]
    output = sample(random_logits(4, 200), [*params_list, SamplingParams()])
    assert [found and len(found.token_ids) for found in output.logprobs] == [1, 4, 21, None]
    for token, found in zip(output.token_ids[:3], output.logprobs, strict=False):
        assert (found.token_ids[0], found.rank) == (token, 1)
