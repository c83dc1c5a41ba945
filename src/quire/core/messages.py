"""Messages between the frontend (tokenizer, HTTP) and the engine core. No torch.

One message in per request, one message out per step. They are msgspec structs so that the same
objects travel through a queue inside a process or as msgpack frames between processes.
"""

from __future__ import annotations

import enum

import msgspec

from quire.core.histogram import HistogramData
from quire.core.pooling_params import PoolingParams
from quire.core.sampling_params import SamplingParams


class AddRequest(msgspec.Struct, frozen=True, kw_only=True, tag="add", omit_defaults=True):
    """Run this.

    bad_words_ids: each bad word as token ids, in every spelling that can occur. output_token_ids,
    num_prompt_logprobs: how many the caller has received already, when another engine continues a
    request; lengths, seeds and penalties count as if it had never changed hands. stream: whether
    the caller wants deltas after each step, or all of it at the end.
    queue_timeout: seconds after which it is given up if it has not begun to run.
    pooling: an embedding is asked for, made so, instead of tokens; sampling has then no meaning.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    eos_token_ids: list[int] = []
    bad_words_ids: list[list[int]] = []
    priority: int = 0
    cache_salt: str = ""  # requests share prefix-cache blocks only with those of the same salt
    output_token_ids: list[int] = []
    num_prompt_logprobs: int = 0
    stream: bool = True
    queue_timeout: float | None = None
    pooling: PoolingParams | None = None


class AbortRequests(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    """Forget these. Unknown and finished ids are ignored."""

    request_ids: list[str]


class ResetPrefixCache(msgspec.Struct, frozen=True, tag="reset_prefix_cache"):
    """Let no request find what others have computed before this message."""


class GetEngineView(msgspec.Struct, frozen=True, kw_only=True, tag="watch"):
    """Somebody looks: the next step's output brings one EngineView, work or no work."""


EngineMessage = AddRequest | AbortRequests | ResetPrefixCache | GetEngineView


class ErrorKind(enum.StrEnum):
    """Whose fault an error is, and with that what HTTP says of it."""

    ENGINE = "engine"  # 500: it may be sent again
    REQUEST = "request"  # 400: it must be changed
    OVERLOAD = "overload"  # 503: it came at a bad time


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities at one position: the token itself first, then the most probable ones.

    rank: rank of the token itself in the whole distribution, 1 the most probable.
    """

    token_ids: list[int]
    logprobs: list[float]
    rank: int


class RequestTiming(msgspec.Struct, frozen=True, array_like=True):
    """When a request's turns came, in seconds of the monotonic clock; None: they never came.

    queued: it reached the engine. started: the step that first computed it was planned. The clock
    is the machine's, so that processes can compare.
    """

    queued: float
    started: float | None = None
    first_token: float | None = None
    last_token: float | None = None


class RequestDelta(msgspec.Struct, kw_only=True, array_like=True):
    """What one step, or several, gave one request.

    finish_reason: set exactly once, in the last delta. timing: in that of the first token and the
    last one. error: message for
    the caller, whose kind is error_kind.
    prompt_logprobs: scores of the next prompt tokens; the first prompt token has none. whole: it
    ended because its structured_outputs let nothing follow, so that its last token is text.
    embedding: float32 numbers, little-endian, for a request that asked for them.
    """

    request_id: str
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[TokenLogprobs] = []
    num_cached_tokens: int = 0
    finish_reason: str | None = None
    stop_token_id: int | None = None
    grammar_terminated: bool = False
    error: str | None = None
    error_kind: ErrorKind = ErrorKind.ENGINE
    timing: RequestTiming | None = None
    embedding: bytes | None = None

    def join(self, later: RequestDelta) -> None:
        """Take what came after this; mostly that is one more token and nothing else."""
        self.token_ids += later.token_ids
        self.num_cached_tokens = later.num_cached_tokens
        if later.logprobs or later.prompt_logprobs:
            self.logprobs += later.logprobs
            self.prompt_logprobs += later.prompt_logprobs
        if later.timing is not None:
            self.timing = later.timing
        if later.finish_reason is not None:
            self._end_as(later)

    def _end_as(self, later: RequestDelta) -> None:
        self.finish_reason = later.finish_reason
        self.stop_token_id = later.stop_token_id
        self.grammar_terminated = later.grammar_terminated
        self.error = later.error
        self.error_kind = later.error_kind
        self.embedding = later.embedding


class EngineStats(msgspec.Struct, kw_only=True):
    """The engine after a step: gauges as they are, counters since the start.

    epoch: which start of the engine counted this; num_restarts: how many of its starts took over
    from a process that had died; time: when, in seconds of the monotonic clock.
    step_tokens and step_seconds: how many steps fell into each bucket (core/histogram), with the
    sums beside them.
    """

    epoch: int = 0
    num_restarts: int = 0
    time: float = 0.0

    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    num_cached_blocks: int = 0  # evictable: unused, but still holding a prefix
    num_shared_blocks: int = 0  # of the used ones, those in more than one block table
    num_steps: int = 0
    num_graph_steps: int = 0  # of them, those that replayed a CUDA graph
    num_preemptions: int = 0
    num_recomputed_tokens: int = 0
    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    prefix_cache_queries: int = 0  # tokens in full blocks that were looked up
    prefix_cache_hits: int = 0
    prefix_cache_misses: dict[str, int] = {}  # reason → tokens
    num_corrupted_requests: int = 0  # the model computed non-finite numbers for them
    step_tokens: HistogramData = HistogramData()
    step_seconds: HistogramData = HistogramData()
    num_bad_frames: int = 0  # in either direction, unreadable and therefore dropped


class StepSummary(msgspec.Struct, frozen=True, array_like=True):
    """What one step was made of. time: its end, in seconds of the monotonic clock.

    A request counts as decoding if the step computed one token of it. num_sampled: tokens of
    answers that the step gave.
    """

    step_id: int
    time: float
    seconds: float
    num_prefill_tokens: int
    num_decode_tokens: int
    num_requests: int
    num_sampled: int


class EngineView(msgspec.Struct, frozen=True, kw_only=True):
    """What a live view shows beyond the figures; only made when somebody watches.

    block_states: one byte per KV block, see BlockState in kvcache/block_pool.py. steps: the
    latest ones, oldest first. time: seconds of the monotonic clock.
    """

    time: float
    block_states: bytes
    steps: list[StepSummary]


class StepOutput(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What one engine step gave everybody."""

    deltas: list[RequestDelta]
    stats: EngineStats
    view: EngineView | None = None
