"""Recomputed tokens of answers have the bits of decoded ones on a CPU, in 16 and in fewer bits."""

from __future__ import annotations

import random

import pytest

from quire import LLM, SamplingParams
from quire.kernels.cpu import native

pytestmark = pytest.mark.skipif(not native.instruction_set(), reason="needs compiled kernels")

NUM_STREAMS = 16


def answers(num_blocks: int, quantization: str | None) -> tuple[list[list[int]], int]:
    """Seeded streams' tokens, and how often a request was preempted."""
    rng = random.Random(3)
    words = ["red", "blue", "shoes", "open", "hours", "what", "are", "your", "price", "of"]
    prompts = [" ".join(rng.choices(words, k=rng.randint(4, 40))) for _ in range(NUM_STREAMS)]
    params = [
        SamplingParams(temperature=0.8, seed=seed, max_tokens=120, ignore_eos=True)
        for seed in range(NUM_STREAMS)
    ]
    llm = LLM(dtype="bfloat16", quantization=quantization, num_blocks=num_blocks, threads=1)
    outputs = llm.generate(prompts, params)
    return [output.outputs[0].token_ids for output in outputs], llm.stats.num_preemptions


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_preempted_streams_keep_their_text(quantization: str | None) -> None:
    expected, none = answers(600, quantization)
    found, some = answers(70, quantization)
    assert none == 0
    assert some > 4, "no pressure: the test shows nothing"
    assert found == expected
