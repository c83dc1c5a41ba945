"""A request inside the engine, and how it ends: EOS, a stop token or its length. No torch."""

from __future__ import annotations

import enum

from quire.core.messages import AddRequest, RequestDelta
from quire.core.pooling_params import PoolingParams
from quire.core.sampling_params import SamplingParams

DEFAULT_SAMPLING = SamplingParams(max_tokens=None)  # of embedding requests


class RequestStatus(enum.Enum):
    """The state of a request. PREEMPTED requests wait, and will recompute their tokens."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class FinishReason(enum.StrEnum):
    """Why a request ended: stop (EOS, stop token or stop string), length, abort or error."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class Request:
    """A request for one answer, or one embedding.

    Three lengths are stored; their order is `num_cached_tokens <= num_computed_tokens <=
    num_tokens + num_in_flight_tokens`, and each step moves computed towards known:

        token_ids:  [ prompt .................. | answer ........ ] (in flight)
                    [ cached ][ computed ........... ]
    """

    def __init__(
        self, message: AddRequest, *, arrival_number: int, max_model_len: int, queued: float = 0.0
    ) -> None:
        self.request_id = message.request_id
        self.token_ids: list[int] = message.prompt_token_ids + message.output_token_ids
        self.num_prompt_tokens = len(message.prompt_token_ids)
        self.sampling: SamplingParams = message.sampling
        self.priority = message.priority
        self.cache_salt = message.cache_salt
        self.caller = message.caller
        self.eos_token_ids = frozenset(message.eos_token_ids)
        self.bad_words_ids = message.bad_words_ids
        self.arrival_number = arrival_number  # orders requests of one priority and due time
        self.pooling: PoolingParams | None = message.pooling
        self.queued = queued  # when it reached the engine, in monotonic seconds
        self.due_time = 0.0  # of its first token: in seconds with a TTFT target, else in tokens
        wanted = message.sampling.max_tokens
        self.max_total_tokens = (
            max_model_len if wanted is None else min(self.num_prompt_tokens + wanted, max_model_len)
        )
        if message.pooling is not None:
            self.sampling = DEFAULT_SAMPLING
            self.max_total_tokens = self.num_prompt_tokens + 1  # the embedding counts as a token
        sampling = self.sampling
        self.min_total_tokens = self.num_prompt_tokens + sampling.min_tokens  # no end before
        self.end_token_ids = frozenset(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            self.end_token_ids |= self.eos_token_ids
        self.defers_deltas = not message.stream  # its caller waits for the end
        self.reports_progress = message.report_progress  # of its prompt
        # the delta that collects all tokens after the first, if deferred; None before the first
        self.pending_delta: RequestDelta | None = None
        self.num_cached_tokens = 0  # computed prompt tokens that came from the prefix cache
        self.num_computed_tokens = 0  # their KV is written, or being written by a step in flight
        self.num_in_flight_tokens = 0  # being sampled by steps in flight
        self.num_preemptions = 0
        self.num_lost_tokens = 0  # computed tokens lost by the last preemption
        self.num_prompt_logprobs = message.num_prompt_logprobs  # sent to the caller so far
        self.status = RequestStatus.WAITING
        self.block_hashes: list[bytes] = []  # of full blocks; grown by the KV cache manager
        # whether hidden states of all positions are needed, which cached KV blocks do not give
        self.needs_every_position = (
            sampling.prompt_logprobs is not None
            if self.pooling is None
            else self.pooling.pooling == "mean"
        )

    @property
    def num_tokens(self) -> int:
        """The number of known tokens: prompt and output so far."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """The number of output tokens so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """The number of tokens that later steps must compute, tokens in flight included."""
        return len(self.token_ids) + self.num_in_flight_tokens - self.num_computed_tokens

    @property
    def is_finished(self) -> bool:
        """Whether the request has ended."""
        return self.status is RequestStatus.FINISHED

    def append(self, token_id: int) -> FinishReason | None:
        """Append a sampled token; why the request ends (EOS, stop token, length), or None."""
        token_ids = self.token_ids
        token_ids.append(token_id)
        num_tokens = len(token_ids)
        if token_id in self.end_token_ids and num_tokens >= self.min_total_tokens:
            return FinishReason.STOP
        return FinishReason.LENGTH if num_tokens >= self.max_total_tokens else None

    def check_lengths(self) -> None:
        """Assert the order of the stored lengths; called when a request enters the batch."""
        num_tokens = len(self.token_ids)
        if self.status is not RequestStatus.PREEMPTED:  # then nothing is computed
            assert 0 <= self.num_cached_tokens <= self.num_computed_tokens
        assert self.num_computed_tokens <= num_tokens + self.num_in_flight_tokens
        assert num_tokens <= self.max_total_tokens
