"""A request inside the engine: few stored lengths, everything else derived. No torch."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

import msgspec

from quire.core.messages import AddRequest, RequestDelta
from quire.core.pooling_params import PoolingParams
from quire.core.sampling_params import SamplingParams
from quire.errors import ContextLengthError, invalid_value

NO_WISHES = SamplingParams(max_tokens=None)  # of requests that draw no tokens
MAX_CHARS_PER_TOKEN = 64  # a token rarely stands for more


class RequestStatus(enum.Enum):
    """Where a request is in its life. PREEMPTED requests wait, and will recompute."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class FinishReason(enum.StrEnum):
    """Why a request ended; each ends exactly once."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class Request:
    """One generation, or one embedding.

    Three lengths are stored; their order is `num_cached_tokens <= num_computed_tokens <=
    num_tokens + num_in_flight_tokens`, and each step moves computed towards known:

        token_ids:  [ prompt .................. | answer ........ ] (in flight)
                    [ cached ][ computed ........... ]
    """

    __slots__ = (
        "arrival",
        "bad_words_ids",
        "block_hashes",
        "cache_salt",
        "due",
        "end_token_ids",
        "eos_token_ids",
        "is_quiet",
        "max_total_tokens",
        "min_total_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_in_flight_tokens",
        "num_lost_tokens",
        "num_preemptions",
        "num_prompt_logprobs",
        "num_prompt_tokens",
        "pooling",
        "priority",
        "queued",
        "request_id",
        "sampling",
        "status",
        "token_ids",
        "untold",
    )

    def __init__(
        self, message: AddRequest, *, arrival: int, max_model_len: int, queued: float = 0.0
    ) -> None:
        self.request_id = message.request_id
        self.token_ids: list[int] = message.prompt_token_ids + message.output_token_ids
        self.num_prompt_tokens = len(message.prompt_token_ids)
        self.sampling: SamplingParams = message.sampling
        self.priority = message.priority
        self.cache_salt = message.cache_salt
        self.eos_token_ids = frozenset(message.eos_token_ids)
        self.bad_words_ids = message.bad_words_ids
        self.arrival = arrival  # a count, not a clock: the scheduler's order of equals
        self.pooling: PoolingParams | None = message.pooling
        self.queued = queued  # when it reached the engine, in seconds of its clock
        self.due = 0.0  # when its first token should be there; set by a scheduler that cares
        wanted = message.sampling.max_tokens
        self.max_total_tokens = (
            max_model_len if wanted is None else min(self.num_prompt_tokens + wanted, max_model_len)
        )
        if message.pooling is not None:
            self.sampling = NO_WISHES
            self.max_total_tokens = self.num_prompt_tokens + 1  # the result stands for a token
        wishes = self.sampling
        self.min_total_tokens = self.num_prompt_tokens + wishes.min_tokens  # before it may end
        self.end_token_ids = frozenset(wishes.stop_token_ids)
        if not wishes.ignore_eos:
            self.end_token_ids |= self.eos_token_ids
        self.is_quiet = not message.stream  # its caller waits for the end
        # then what comes behind the first token is told with the last; None before the first
        self.untold: RequestDelta | None = None
        self.num_cached_tokens = 0  # of the computed ones, those the prefix cache gave
        self.num_computed_tokens = 0  # KV written, or being written by a step in flight
        self.num_in_flight_tokens = 0  # sampled by steps whose result is not known yet
        self.num_preemptions = 0
        self.num_lost_tokens = 0  # computed ones, as of the last preemption
        self.num_prompt_logprobs = message.num_prompt_logprobs  # told to the caller so far
        self.status = RequestStatus.WAITING
        self.block_hashes: list[bytes] = []  # of full blocks; grown by the KV cache manager

    @property
    def num_tokens(self) -> int:
        """Known tokens: prompt and answer so far."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Answer tokens so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """What the next steps have to compute, tokens in flight included."""
        return len(self.token_ids) + self.num_in_flight_tokens - self.num_computed_tokens

    @property
    def needs_every_position(self) -> bool:
        """Whether hidden states are wanted that cached blocks do not hold: they have KV alone."""
        if self.pooling is not None:
            return self.pooling.pooling == "mean"
        return self.sampling.prompt_logprobs is not None

    @property
    def is_finished(self) -> bool:
        """Whether its end has been told."""
        return self.status is RequestStatus.FINISHED

    def append(self, token_id: int) -> FinishReason | None:
        """Take a sampled token; returns why the request ends with it, or None."""
        token_ids = self.token_ids
        token_ids.append(token_id)
        num_tokens = len(token_ids)
        if token_id in self.end_token_ids and num_tokens >= self.min_total_tokens:
            return FinishReason.STOP
        return FinishReason.LENGTH if num_tokens >= self.max_total_tokens else None

    def check_lengths(self) -> None:
        """Assert the order of the stored lengths. This runs for each request in each step."""
        num_tokens = len(self.token_ids)
        if self.status is not RequestStatus.PREEMPTED:  # then nothing is computed any more
            assert 0 <= self.num_cached_tokens <= self.num_computed_tokens
        assert self.num_computed_tokens <= num_tokens + self.num_in_flight_tokens
        assert num_tokens <= self.max_total_tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestLimits:
    """What the engine can take at all; known once it is loaded.

    max_kv_tokens: tokens that the whole KV cache holds. honours_priority: whether requests may ask
    to be run before others. hidden_size: numbers in an embedding. generates: whether the model can
    draw tokens, and not only make embeddings.
    """

    max_model_len: int
    max_kv_tokens: int
    vocab_size: int
    max_num_seqs: int
    honours_priority: bool = False
    hidden_size: int = 0
    generates: bool = True

    def check(self, prompt_token_ids: list[int], sampling: SamplingParams) -> None:
        """Refuse what can never run.

        Raises InvalidRequestError or ContextLengthError with the numbers and the fix.
        """
        if not self.generates:
            raise invalid_value(
                "model",
                "this one has no head to draw tokens with; ask it for embeddings, or serve a model "
                "for text generation",
            )
        self._check_prompt(prompt_token_ids)
        if sampling.stop_token_ids:
            self._check_token_ids("stop_token_ids", sampling.stop_token_ids)
        if sampling.logit_bias:
            self._check_token_ids("logit_bias", list(sampling.logit_bias))
        self.check_fit(len(prompt_token_ids), sampling)

    def check_fit(self, prompt: int, sampling: SamplingParams) -> None:
        """Refuse more tokens than can ever be held. prompt: how many. Raises ContextLengthError."""
        wanted = sampling.max_tokens
        # the last token of the answer is never fed back, so it needs no slot in the KV cache
        answer = max(1, sampling.min_tokens) if wanted is None else wanted
        if prompt + answer > self.max_model_len:
            lower = "" if answer == 1 else f" or lower {'min' if wanted is None else 'max'}_tokens"
            raise ContextLengthError(
                f"prompt: {prompt} tokens and {answer} for the answer are {prompt + answer}, but "
                f"the limit here is {self.max_model_len}; shorten the prompt{lower}"
            )
        longest = self.max_model_len if wanted is None else prompt + wanted
        if longest - 1 > self.max_kv_tokens:
            raise ContextLengthError(
                f"prompt: {prompt} tokens and up to {longest - prompt} for the answer need "
                f"{longest - 1} slots, but the whole KV cache has {self.max_kv_tokens}; shorten "
                "the prompt, lower max_tokens, or start the server with a larger KV cache"
            )

    def check_embedding(self, prompt_token_ids: list[int], pooling: PoolingParams) -> None:
        """Refuse an embedding that can never be made. Raises as `check` does."""
        self._check_prompt(prompt_token_ids)
        longest = min(self.max_model_len, self.max_kv_tokens)
        if len(prompt_token_ids) > longest:
            raise ContextLengthError(
                f"prompt: {len(prompt_token_ids)} tokens, but the limit here is {longest}; "
                "shorten it"
            )
        if pooling.dimensions is not None and pooling.dimensions > self.hidden_size:
            raise invalid_value(
                "dimensions",
                f"{pooling.dimensions} is more than the {self.hidden_size} that this model's "
                "embeddings have; lower it, or leave it out",
            )

    def check_chars(self, num_chars: int, param: str = "prompt") -> None:
        """Refuse absurdly long text before any work is spent on it. Raises ContextLengthError."""
        if num_chars > MAX_CHARS_PER_TOKEN * self.max_model_len:
            raise ContextLengthError(
                f"{param}: {num_chars} characters cannot fit a context of {self.max_model_len} "
                "tokens; send fewer",
                param=param,
            )

    def check_continuation(self, message: AddRequest) -> None:
        """Refuse an answer so far that no engine can have given. Raises InvalidRequestError."""
        begun, wanted = len(message.output_token_ids), message.sampling.max_tokens
        self._check_token_ids("output_token_ids", message.output_token_ids)
        room = self.max_model_len - len(message.prompt_token_ids)
        if begun >= (room if wanted is None else min(room, wanted)):
            raise invalid_value(
                "output_token_ids", f"{begun} tokens leave nothing to answer; send fewer"
            )

    def _check_prompt(self, token_ids: list[int]) -> None:
        if not token_ids:
            raise invalid_value("prompt", "it is empty; give at least one token")
        self._check_token_ids("prompt", token_ids)

    def _check_token_ids(self, field: str, token_ids: list[int]) -> None:
        try:  # one pass at the speed of C; whatever is wrong is looked for when something is
            msgspec.convert(token_ids, _ids_below(self.vocab_size))
            return
        except msgspec.ValidationError:
            pass
        if set(map(type, token_ids)) != {int}:
            raise invalid_value(field, "token ids are integers; give text, or a list of integers")
        low, high = min(token_ids), max(token_ids)
        if low < 0 or high >= self.vocab_size:
            known = f"token ids go from 0 to {self.vocab_size - 1}"
            raise invalid_value(field, f"{known}; got {low} to {high}")


@cache
def _ids_below(vocab_size: int) -> Any:
    """The type of such a list."""
    return list[Annotated[int, msgspec.Meta(ge=0, lt=vocab_size)]]
