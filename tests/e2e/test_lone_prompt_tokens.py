"""A prompt's last token has the same logits alone in a step as beside the others, on a CPU."""

from __future__ import annotations

import pytest

from quire import LLM, SamplingParams
from quire.kernels.cpu import native

pytestmark = pytest.mark.skipif(not native.instruction_set(), reason="needs compiled kernels")

PROMPTS = [[5 + (7 * i + n) % 90 for i in range(16 * n + 1)] for n in (1, 2, 5, 13)]
PARAMS = SamplingParams(temperature=0, max_tokens=4, logprobs=3, ignore_eos=True)


def logprobs(llm: LLM, num_cached: int = 0) -> list[object]:
    outputs = llm.generate(PROMPTS, PARAMS)
    assert sum(output.num_cached_tokens for output in outputs) == num_cached
    return [output.outputs[0].logprobs for output in outputs]


@pytest.mark.parametrize("settings", [{}, {"quantization": "int8"}, {"kv_cache_dtype": "int8"}])
def test_they_are_those_of_the_whole_prompt(settings: dict[str, str]) -> None:
    """After all its other blocks are found in the prefix cache, and in a chunk of its own."""
    options = {"dtype": "bfloat16", "num_blocks": 100, "threads": 1} | settings
    llm = LLM(**options)
    whole = logprobs(llm)
    assert logprobs(llm, num_cached=sum(len(prompt) - 1 for prompt in PROMPTS)) == whole
    assert logprobs(LLM(**options, max_num_seqs=1, max_num_batched_tokens=16)) == whole
