"""The interface between scheduler and model runner: one plan in, one result out. No torch.

Both are plain structs without references into the scheduler, so plans can be sent to other ranks. A
request is described in full when it enters the batch (again after a preemption), and afterwards
only by what has changed.
"""

from __future__ import annotations

import msgspec

from quire.core.messages import TokenLogprobs
from quire.core.pooling_params import PoolingParams
from quire.core.sampling_params import SamplingParams


class NewRequest(msgspec.Struct, kw_only=True):
    """A request that enters the batch. token_ids: all known tokens, output included.

    pooling: an embedding is computed and no token is drawn. caller: see `AddRequest`.
    """

    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    bad_words_ids: list[list[int]]
    eos_token_ids: list[int]
    pooling: PoolingParams | None = None
    caller: str = ""


class ScheduledRequest(msgspec.Struct, kw_only=True, gc=False):
    """One request's part of a step: computes its tokens [start, start + num_tokens).

    new_block_ids: appended to its block table before the step (all blocks, for a NewRequest).
    samples: whether these include its last known token, so that a token is drawn or the embedding
    is computed.
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

    def count_tokens(self) -> tuple[int, int]:
        """Prefill and decode tokens; a request with one token counts as a decode."""
        lengths = [entry.num_tokens for entry in self.scheduled]
        num_decodes = lengths.count(1)
        return sum(lengths) - num_decodes, num_decodes


class SampleResult(msgspec.Struct, kw_only=True, gc=False):
    """The result of one scheduled request: one token. There is no speculative decoding yet.

    token_id: the token drawn; None if none was due.
    failed: the model's numbers for it were not finite, so nothing of this step may be cached.
    exhausted: its logits processors left no token to draw; the model's numbers are finite.
    grammar_problem: why its grammar allows no token, where that is so.
    grammar_terminated: its grammar lets no token follow, so the answer ends with this one.
    embedding: little-endian float32 numbers, instead of a token.
    """

    token_id: int | None = None
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    failed: bool = False
    exhausted: bool = False
    grammar_problem: str | None = None
    grammar_terminated: bool = False
    embedding: bytes | None = None


class ModelRunnerOutput(msgspec.Struct, kw_only=True):
    """The result of a step; results are in the order of the plan's `scheduled`.

    replayed: whether the step replayed a CUDA graph.
    """

    results: list[SampleResult]
    replayed: bool = False
