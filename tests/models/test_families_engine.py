"""Every family through the whole engine core: what transformers says, however a request is run.

Greedy tokens and log-probabilities (of prompt and answer) are compared position by position with
one forward pass of transformers over the same text. By induction, an answer whose every token is
the argmax after the tokens before it is the greedy answer of transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
import torch
from checkpoints import CASES
from torch import Tensor

from quire.config import EngineConfig
from quire.core.messages import AddRequest, TokenLogprobs
from quire.core.sampling_params import SamplingParams
from quire.engine.core.engine_core import EngineCore
from quire.engine.startup.start_engine import start_engine

TOLERANCE = 1e-4
BLOCK_SIZE = 4
NUM_ANSWER_TOKENS = 12
NUM_LOGPROBS = 8
LENGTHS = (1, 2, 17, 300)
SHORT = (1, 2, 17, 50)  # with the answer, below 64 tokens

# name → (case, prompt lengths). Longrope takes its factors by the longest sequence that can be,
# transformers by the one at hand: equal when both are below the trained length of 64, and when
# both are above.
SETUPS: dict[str, tuple[str, tuple[int, ...]]] = {
    name: (name, LENGTHS) for name in CASES if name != "phi3_longrope"
} | {
    "llama_dynamic_short": ("llama_dynamic_short", SHORT),  # knows 64 positions
    "phi3_longrope_short": ("phi3_longrope", SHORT),
    "phi3_longrope_long": ("phi3_longrope", (65, 66, 81, 300)),
}


@dataclass
class Answer:
    """All outputs of the engine for one request."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_cached_tokens: int = 0
    ends: list[str] = field(default_factory=list)


class Setup:
    """A checkpoint, its prompts, and what transformers says of a text."""

    def __init__(self, name: str, checkpoint: Callable) -> None:
        case, lengths = SETUPS[name]
        self.folder: Path
        self.folder, theirs = checkpoint(case)
        generator = torch.Generator().manual_seed(0)
        self.prompts = [torch.randint(509, (n,), generator=generator).tolist() for n in lengths]

        @cache
        def scores(token_ids: tuple[int, ...]) -> Tensor:
            with torch.inference_mode():
                logits = theirs(torch.tensor([token_ids]), use_cache=False).logits[0]
            return logits.log_softmax(-1)  # [T, V]

        self.scores = scores

    def start(self, **options: object) -> EngineCore:
        config = EngineConfig.from_options(
            model=str(self.folder),
            dtype="float32",
            device="cpu",
            max_model_len=max(map(len, self.prompts)) + NUM_ANSWER_TOKENS,
            block_size=BLOCK_SIZE,
            **{"num_blocks": 256, "max_num_seqs": 4, **options},
        )
        return start_engine(config)[0]

    @property
    def scarce_blocks(self) -> int:
        """Blocks for all prompts together, but not for all answers."""
        return sum(-(-len(prompt) // BLOCK_SIZE) + 1 for prompt in self.prompts)

    def run(self, core: EngineCore, **sampling: object) -> list[Answer]:
        """Answer all prompts at once, greedily."""
        params = SamplingParams(
            temperature=0.0, max_tokens=NUM_ANSWER_TOKENS, logprobs=NUM_LOGPROBS, **sampling
        )
        for number, prompt in enumerate(self.prompts):
            core.handle(
                AddRequest(request_id=str(number), prompt_token_ids=prompt, sampling=params)
            )
        answers = [Answer() for _ in self.prompts]
        while core.has_work:
            for delta in core.step().deltas:
                answer = answers[int(delta.request_id)]
                answer.token_ids += delta.token_ids
                answer.logprobs += delta.logprobs
                answer.prompt_logprobs += delta.prompt_logprobs
                answer.num_cached_tokens = delta.num_cached_tokens
                answer.ends += [delta.finish_reason] if delta.finish_reason else []
        return answers

    def assert_as_transformers(self, answers: list[Answer], *, with_prompts: bool) -> None:
        """Compare each output token and log-probability."""
        for prompt, answer in zip(self.prompts, answers, strict=True):
            assert answer.ends == ["length"]
            scores = self.scores((*prompt, *answer.token_ids))  # row t scores token t + 1
            own = scores[len(prompt) - 1 : -1]
            assert answer.token_ids == own.argmax(-1).tolist()
            assert_close(answer.logprobs, answer.token_ids, own)
            if with_prompts:
                assert_close(answer.prompt_logprobs, prompt[1:], scores[: len(prompt) - 1])


def assert_close(logprobs: list[TokenLogprobs], token_ids: list[int], scores: Tensor) -> None:
    """scores: float32 [N, V] of transformers, one row for each output token."""
    assert [position.token_ids[0] for position in logprobs] == token_ids
    if not logprobs:
        return
    ids = torch.tensor([position.token_ids for position in logprobs])
    ours = torch.tensor([position.logprobs for position in logprobs])
    assert ids.shape[1] == 1 + NUM_LOGPROBS
    assert (ours - scores.gather(1, ids)).abs().max() <= TOLERANCE
    best = scores.topk(NUM_LOGPROBS).values
    assert (ours[:, 1:] - best).abs().max() <= TOLERANCE


@pytest.fixture(scope="module", params=SETUPS)
def setup(request: pytest.FixtureRequest, checkpoint: Callable) -> Setup:
    return Setup(request.param, checkpoint)


def test_in_one_go_and_again_from_the_prefix_cache(setup: Setup) -> None:
    core = setup.start()
    first = setup.run(core)
    assert core.stats.prefix_cache_hits == 0
    setup.assert_as_transformers(first, with_prompts=False)
    again = setup.run(core)
    for prompt, answer in zip(setup.prompts, again, strict=True):
        assert answer.num_cached_tokens == (len(prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE
    assert core.stats.prefix_cache_hits > 0
    setup.assert_as_transformers(again, with_prompts=False)


def test_in_chunks_and_again_from_the_prefix_cache(setup: Setup) -> None:
    core = setup.start(max_num_batched_tokens=13)
    first = setup.run(core, prompt_logprobs=NUM_LOGPROBS)
    assert core.stats.num_steps > sum(map(len, setup.prompts)) / 13
    setup.assert_as_transformers(first, with_prompts=True)
    again = setup.run(core)
    assert core.stats.prefix_cache_hits > 0
    setup.assert_as_transformers(again, with_prompts=False)


def test_preempted(setup: Setup) -> None:
    """There is no prefix cache, so everything is computed again after a preemption."""
    core = setup.start(num_blocks=setup.scarce_blocks, enable_prefix_caching=False)
    answers = setup.run(core, prompt_logprobs=NUM_LOGPROBS)
    assert core.stats.num_preemptions > 0
    assert core.stats.num_recomputed_tokens >= max(map(len, setup.prompts))
    setup.assert_as_transformers(answers, with_prompts=True)


def test_preempted_in_chunks_and_with_the_prefix_cache(setup: Setup) -> None:
    core = setup.start(num_blocks=setup.scarce_blocks, max_num_batched_tokens=29)
    first, again = setup.run(core), setup.run(core)
    assert core.stats.num_preemptions > 0
    assert core.stats.prefix_cache_hits > 0
    setup.assert_as_transformers(first, with_prompts=False)
    setup.assert_as_transformers(again, with_prompts=False)
