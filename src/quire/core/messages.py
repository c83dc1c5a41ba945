"""The messages between the frontend (tokenizer, HTTP) and the engine core. No torch.

One message in per request, one message out per step. They are msgspec structs: the same objects go
through a queue inside a process, or as msgpack frames between processes.
"""

from __future__ import annotations

import enum

import msgspec

from quire.core.histogram import HistogramData
from quire.core.pooling_params import PoolingParams
from quire.core.sampling_params import SamplingParams


class AddRequest(msgspec.Struct, frozen=True, kw_only=True, tag="add", omit_defaults=True):
    """Message to the engine core: run a request.

    bad_words_ids: each bad word as token ids, in every spelling that can occur. output_token_ids,
    num_prompt_logprobs: what the caller has already received, when another engine process continues
    a request; lengths, seeds and penalties count as if it had never moved. stream: whether to send
    a delta after each step, or the output at the end. queue_timeout: seconds that it may wait
    before it starts to run; None: no limit. pooling: compute an embedding in this way instead of
    tokens; sampling is then ignored. report_progress: also send deltas without tokens while the
    prompt is computed. caller: whom the time for masks of a grammar is counted for.
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
    report_progress: bool = False
    caller: str = ""


class AbortRequests(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    """Abort these requests. Unknown and finished ids are ignored."""

    request_ids: list[str]


class ResetPrefixCache(msgspec.Struct, frozen=True, tag="reset_prefix_cache"):
    """Message to the engine core: clear the prefix cache."""


class GetEngineView(msgspec.Struct, frozen=True, kw_only=True, tag="watch"):
    """Ask for an EngineView with the next step's output, even if there is no work."""


EngineMessage = AddRequest | AbortRequests | ResetPrefixCache | GetEngineView


CALLER_LIMIT_SECONDS = 25.0  # after which a caller that exceeded its limit may try again


class ErrorKind(enum.StrEnum):
    """The cause of an error: the caller, the engine ...; it decides the HTTP status."""

    ENGINE = "engine"  # 500: the request may be sent again
    REQUEST = "request"  # 400: the request must be changed
    OVERLOAD = "overload"  # 503: try again later
    CALLER_LIMIT = "caller_limit"  # 429: this caller has used too much
    QUEUE_TIMEOUT = "queue_timeout"  # 503: it waited too long to start


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log-probabilities at one position: its own token first, then the most probable ones.

    Of a request with logprob_token_ids those tokens, in their order, follow instead.
    rank: of its own token in the full distribution, 1 the most probable.
    """

    token_ids: list[int]
    logprobs: list[float]
    rank: int


class RequestTiming(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The times of a request's life, in monotonic seconds; None if it has not happened.

    queued: it reached the engine. started: its first step was scheduled. num_preemptions: how often
    it left the batch since, for want of blocks. All processes of a machine have the same clock.
    """

    queued: float
    started: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    num_preemptions: int = 0


class RequestDelta(msgspec.Struct, kw_only=True, array_like=True, gc=False):
    """The tokens and events that one step, or several, added to one request's output.

    finish_reason: set exactly once, in the last delta. timing: set with the first token and in the
    last delta. error: message for the caller; error_kind: its kind; error_param: the param that it
    is about. prompt_logprobs: scores of the next prompt tokens; the first prompt token has none.
    grammar_terminated: the request ended because its grammar let no token follow, so its last token
    is text and not an end token. embedding: little-endian float32 numbers. prompt_progress: how
    many prompt tokens were computed after each step that did not complete the prompt, if the
    request reports that.
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
    error_param: str | None = None
    timing: RequestTiming | None = None
    embedding: bytes | None = None
    prompt_progress: list[int] = []

    def join(self, later: RequestDelta) -> None:
        """Append a later delta of the same request; usually one more token."""
        self.token_ids += later.token_ids
        self.num_cached_tokens = later.num_cached_tokens
        if later.logprobs or later.prompt_logprobs:
            self.logprobs += later.logprobs
            self.prompt_logprobs += later.prompt_logprobs
        if later.prompt_progress:
            self.prompt_progress += later.prompt_progress
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
        self.error_param = later.error_param
        self.embedding = later.embedding


class EngineStats(msgspec.Struct, kw_only=True):
    """The engine's statistics after a step: current gauges, and counters since its start.

    epoch: the number of engine processes that the model had before; num_restarts: how many starts
    followed a death; time: monotonic seconds. step_tokens, step_seconds: histograms over steps.
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
    num_graph_steps: int = 0  # of these, the ones that replayed a CUDA graph
    num_preemptions: int = 0
    num_recomputed_tokens: int = 0
    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    prefix_cache_queries: int = 0  # tokens in full blocks that were looked up
    prefix_cache_hits: int = 0
    prefix_cache_misses: dict[str, int] = {}  # reason → tokens
    num_corrupted_requests: int = 0  # the model computed non-finite numbers for them
    weight_fault: str = ""  # which weight is not finite or damaged, if any is known
    step_tokens: HistogramData = HistogramData()
    step_seconds: HistogramData = HistogramData()
    num_bad_frames: int = 0  # invalid frames in either direction, which were dropped
    num_dropped_log_lines: int = 0  # of the engine process, as its log is not read

    @property
    def num_used_blocks(self) -> int:
        """The blocks in block tables."""
        return self.num_blocks - self.num_free_blocks - self.num_cached_blocks

    def end(self) -> None:
        """Set the gauges to those of an ended engine: nothing runs, and all blocks are free."""
        self.num_running = self.num_waiting = self.num_cached_blocks = self.num_shared_blocks = 0
        self.num_free_blocks = self.num_blocks


class StepSummary(msgspec.Struct, frozen=True, array_like=True):
    """The size and duration of one step. time: its end, in monotonic seconds.

    A request with one token counts as a decode. num_sampled: output tokens of the step.
    """

    step_id: int
    time: float
    seconds: float
    num_prefill_tokens: int
    num_decode_tokens: int
    num_requests: int
    num_sampled: int


class EngineView(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a live view that statistics lack; made on request only.

    block_states: one byte per KV block, a BlockState of kvcache/block_pool.py. steps: the latest
    ones, oldest first. time: monotonic seconds.
    """

    time: float
    block_states: bytes
    steps: list[StepSummary]


class StepOutput(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The output of one engine step for all requests, or for those of one client."""

    deltas: list[RequestDelta]
    stats: EngineStats
    view: EngineView | None = None
