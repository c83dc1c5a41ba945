"""Beam search over a small Markov chain: wide enough beams find what trying all answers finds."""

from __future__ import annotations

import gc
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from quire.core.request_limits import RequestLimits
from quire.core.request_output import CompletionOutput, Logprob, RequestOutput, RequestTimes
from quire.core.sampling_params import SamplingParams
from quire.engine.frontend.beam_search import BeamSearchParams, BeamSearchSequence, search
from quire.errors import ContextLengthError, InvalidRequestError

EOS, VOCAB = 3, 4
CHAIN = np.log(np.random.default_rng(7).dirichlet(np.ones(VOCAB), size=VOCAB))
LIMITS = RequestLimits(
    max_model_len=64, max_kv_tokens=64, vocab_size=VOCAB, max_num_seqs=4, max_logprobs=-1
)


def generate(prompts: Sequence[list[int]], params: SamplingParams) -> list[RequestOutput]:
    """One token of each prompt, with all log-probabilities."""
    assert (params.max_tokens, params.temperature) == (1, 0)
    return [_answer(CHAIN[prompt[-1]]) for prompt in prompts]


def _answer(row: np.ndarray) -> RequestOutput:
    position = {token: Logprob(float(value), None, "") for token, value in enumerate(row)}
    best = CompletionOutput(0, token_ids=[int(row.argmax())], logprobs=[position])
    return RequestOutput("1", None, [], [best], RequestTimes(0.0))


def all_answers(
    prompt: list[int], most: int, *, ends: bool
) -> dict[tuple[int, ...], tuple[float, int]]:
    """Each answer's log-probability and its length with the prompt, without an end token."""
    found = {}
    for length in range(1, most + 1):
        for answer in itertools.product(range(VOCAB), repeat=length):
            is_ended = ends and answer[-1] == EOS
            if (length < most and not is_ended) or (ends and EOS in answer[:-1]):
                continue
            path = [prompt[-1], *answer]
            total = sum(float(CHAIN[a][b]) for a, b in itertools.pairwise(path))
            shown = answer[:-1] if is_ended else answer
            found[(*prompt, *shown, -1 if is_ended else 0)] = (total, len(prompt) + len(shown))
    return found


@pytest.mark.parametrize("ignore_eos", [False, True])
@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_wide_beams_find_the_best_of_all_answers(ignore_eos: bool, penalty: float) -> None:
    params = BeamSearchParams(
        beam_width=200, max_tokens=3, ignore_eos=ignore_eos, length_penalty=penalty
    )
    prompts = [[0, 1], [2]]
    for prompt, output in zip(
        prompts, search(prompts, params, [EOS], LIMITS, generate), strict=True
    ):
        expected = all_answers(prompt, 3, ends=not ignore_eos)
        found = {
            (*one.tokens, -1 if one.finish_reason else 0): one.cum_logprob
            for one in output.sequences
        }
        assert found == pytest.approx({key: total for key, (total, _) in expected.items()})
        scores = [expected[key][0] / expected[key][1] ** penalty for key in found]
        assert scores == sorted(scores, reverse=True)


def test_small_beams_return_as_many_answers() -> None:
    params = BeamSearchParams(beam_width=2, max_tokens=5)
    (output,) = search([[0]], params, [EOS], LIMITS, generate)
    assert len(output.sequences) == 2
    assert output.decoded(str).sequences[0].text == str(output.sequences[0].tokens)
    assert all(math.isfinite(one.cum_logprob) for one in output.sequences)


def test_a_long_search_holds_no_more_ended_answers_than_it_returns() -> None:
    held = []

    def generate_and_count(
        prompts: Sequence[list[int]], params: SamplingParams
    ) -> list[RequestOutput]:
        held.append(sum(type(each) is BeamSearchSequence for each in gc.get_objects()))
        return generate(prompts, params)

    params = BeamSearchParams(beam_width=2, max_tokens=40)
    search([[0]], params, [EOS], LIMITS, generate_and_count)
    assert max(held) - held[0] < 2 * params.beam_width


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("beam_width", 0), ("beam_width", True), ("max_tokens", "5"), ("temperature", -1),
        ("temperature", "hot"), ("length_penalty", "a"), ("length_penalty", None),
        ("length_penalty", math.nan), ("length_penalty", 1000.0), ("ignore_eos", "no"),
        ("include_stop_str_in_output", 1),
    ],
)  # fmt: skip
def test_params_are_checked(name: str, value: object) -> None:
    given: dict[str, object] = {"beam_width": 2, "max_tokens": 2}
    with pytest.raises(InvalidRequestError, match=f"^{name}: must be "):
        BeamSearchParams(**given | {name: value})  # type: ignore[arg-type]
    params = BeamSearchParams(**given)  # type: ignore[arg-type]
    setattr(params, name, value)
    with pytest.raises(InvalidRequestError, match=f"^{name}: must be "):
        search([[0]], params, [], LIMITS, generate)


@pytest.mark.parametrize("penalty", [-50, np.float32(50)])
def test_any_length_has_a_score(penalty: float) -> None:
    params = BeamSearchParams(beam_width=2, max_tokens=2, length_penalty=penalty)
    limits = RequestLimits(max_model_len=1 << 21, max_kv_tokens=1 << 21, vocab_size=VOCAB,
                           max_num_seqs=4, max_logprobs=-1)  # fmt: skip
    search([[0] * (1 << 20)], params, [], limits, generate)


def test_beams_need_log_probabilities() -> None:
    few = RequestLimits(
        max_model_len=64, max_kv_tokens=64, vocab_size=VOCAB, max_num_seqs=4, max_logprobs=3
    )
    with pytest.raises(InvalidRequestError, match="2 beams need 4 log-probabilities"):
        search([[0]], BeamSearchParams(beam_width=2, max_tokens=2), [], few, generate)


def test_answers_that_cannot_fit_are_refused_before_the_search() -> None:
    most = LIMITS.max_model_len - 1
    params = BeamSearchParams(beam_width=1, max_tokens=most)
    assert search([[0]], params, [], LIMITS, generate)
    with pytest.raises(ContextLengthError, match=f"{most} for the answer .* lower max_tokens"):
        search([[0], [0, 1]], params, [], LIMITS, _never)


def _never(prompts: Sequence[list[int]], params: SamplingParams) -> list[RequestOutput]:
    raise AssertionError(f"{prompts} were begun with {params}")


@pytest.mark.parametrize("params", [None, {"beam_width": 2}, SamplingParams()])
def test_params_of_another_kind_are_refused(params: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"params: must be BeamSearchParams\(beam_width="):
        search([[0]], params, [EOS], LIMITS, generate)
