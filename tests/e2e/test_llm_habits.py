"""LLM as people who know other engines use it, on the bundled model."""

from __future__ import annotations

import math

import pytest

from quire import LLM, SamplingParams
from quire.errors import InvalidRequestError


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(dtype="float32", threads=1, num_blocks=300, max_logprobs=-1)


def test_all_log_probabilities(llm: LLM) -> None:
    sampling = SamplingParams(temperature=0, max_tokens=2, logprobs=-1, prompt_logprobs=-1)
    output = llm.generate("A list is", sampling, use_tqdm=False)[0]
    assert output.prompt_logprobs is not None
    assert output.outputs[0].logprobs is not None
    for position in (*output.prompt_logprobs[1:], *output.outputs[0].logprobs):
        assert position is not None
        assert sorted(position) == list(range(llm.info.limits.vocab_size))
        assert sum(math.exp(score.logprob) for score in position.values()) == pytest.approx(1)


def test_log_probabilities_have_a_limit(llm: LLM) -> None:
    few = LLM(num_blocks=64)
    with pytest.raises(InvalidRequestError, match=r"^logprobs: \d+ is above max_logprobs \(20\)"):
        few.generate("A list is", SamplingParams(logprobs=-1), use_tqdm=False)
    with pytest.raises(InvalidRequestError, match=r"^prompt_logprobs: 9999 is above max_logprobs"):
        llm.generate("A list is", SamplingParams(prompt_logprobs=9999), use_tqdm=False)


def test_token_ids_alone(llm: LLM) -> None:
    plain, bare = (
        llm.generate(
            "A list is", SamplingParams(temperature=0, detokenize=detokenize), use_tqdm=False
        )[0].outputs[0]
        for detokenize in (True, False)
    )
    assert plain.text
    assert (bare.text, bare.token_ids) == ("", plain.token_ids)
