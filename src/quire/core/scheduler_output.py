"""SchedulerOutput and ModelRunnerOutput: the plan of a step, and its result. No torch.

Both are plain structs without references into the scheduler, so that a plan can be sent to other
ranks as it is. A running request is described in full once, when it enters the batch (again after
a preemption); afterwards only by what changed.
"""

from __future__ import annotations

import msgspec

from quire.core.messages import TokenLogprobs
from quire.core.pooling_params import PoolingParams
from quire.core.sampling_params import SamplingParams


class NewRequest(msgspec.Struct, kw_only=True):
    """A request that enters the batch. token_ids: all known tokens, the answer so far included.

    pooling: its last token gives an embedding, and none is drawn.
    """

    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    bad_words_ids: list[list[int]]
    eos_token_ids: list[int]
    pooling: PoolingParams | None = None


class ScheduledRequest(msgspec.Struct, kw_only=True):
    """What one request does in a step: computes tokens [start, start + num_tokens).

    new_block_ids: blocks appended to its block table before the step (for a NewRequest: all of
    them). samples: whether these are its last known tokens, so that a token is drawn after them,
    or the embedding is made of them.
    """

    request_id: str
    start: int
    num_tokens: int
    new_block_ids: list[int]
    samples: bool


class SchedulerOutput(msgspec.Struct, kw_only=True):
    """The plan of one step. removed_ids leave the batch before new_requests enter it."""

    step_id: int
    removed_ids: list[str]
    new_requests: list[NewRequest]
    scheduled: list[ScheduledRequest]

    @property
    def num_tokens(self) -> int:
        """Length of the ragged batch."""
        return sum(s.num_tokens for s in self.scheduled)


class SampleResult(msgspec.Struct, kw_only=True):
    """The outcome of one scheduled request: the token drawn, or None when none was due.

    failed: what the model computed for it was not finite, so nothing of this step may be cached.
    exhausted: its own sampling params left no token to draw; what the model computed is valid.
    whole: its structured_outputs let nothing follow the token, so that the answer ends with it.
    embedding: float32 numbers, little-endian, where this was due instead of a token.
    """

    token_id: int | None = None
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    failed: bool = False
    exhausted: bool = False
    grammar_terminated: bool = False
    embedding: bytes | None = None


class ModelRunnerOutput(msgspec.Struct, kw_only=True):
    """The result of a step; results follow the order of the plan's `scheduled`.

    replayed: its kernels were launched by a recorded CUDA graph.
    """

    results: list[SampleResult]
    replayed: bool = False
