"""GenerationRequest: the fields that completions and chat share, and their SamplingParams.

Every field here has its effect. Other fields of OpenAI or vLLM are in the table of request_body.py,
or listed with the values that ask for nothing and refused with any other value. An absent or null
field takes OpenAI's default: temperature 1, top_p 1, n 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

import msgspec

from quire.core.sampling_params import SamplingParams
from quire.errors import invalid_value
from quire.server.api.common.response_format import (
    ResponseFormatFields,
    check_format,
    structured_outputs_of,
)
from quire.server.http import field_bounds, strict_json
from quire.server.http.field_bounds import NO_LIMIT, Int32, ShortText, TokenLimit
from quire.server.http.request_body import read_body

MAX_CHOICES = 1024  # prompts times n in one HTTP request


class StreamOptions(strict_json.Strict):
    """Token counts in a stream.

    include_usage: whether one more chunk at the end of the stream has the token counts.
    continuous_usage_stats: whether each chunk has them; it needs include_usage.
    include_obfuscation: without effect, there is no padding.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class GenerationRequest(ResponseFormatFields, kw_only=True, dict=True):
    """The fields that /v1/completions and /v1/chat/completions share.

    user: accepted without any effect. priority: lower runs first, where the server schedules by
    priority. cache_salt: prefix-cache blocks are shared only with requests of the same salt.
    return_token_ids: also return the token ids of prompt and answer. return_tokens_as_token_ids:
    tokens of log-probabilities are spelled "token_id:5". timeout: seconds after which the request
    is aborted. logprob_token_ids: report the log-probabilities of these tokens in place of the most
    probable. thinking_token_budget: tokens of reasoning after which its end is forced; -1: no
    limit. return_progress: stream how much of the prompt is processed. timings_per_token: return
    timings, in each chunk of a stream.
    """

    logprobs_field: ClassVar = "logprobs"  # for the number of log-probabilities of each token
    neutral: ClassVar = {"detokenize": (None, True)}
    model: str | None = None
    n: field_bounds.NumAnswers | None = None
    temperature: field_bounds.Temperature | None = None
    top_p: field_bounds.TopP | None = None
    top_k: field_bounds.TopK | None = None
    min_p: field_bounds.MinP | None = None
    presence_penalty: field_bounds.Penalty | None = None
    frequency_penalty: field_bounds.Penalty | None = None
    repetition_penalty: field_bounds.RepetitionPenalty | None = None
    logit_bias: field_bounds.LogitBias | None = None
    seed: field_bounds.Seed | None = None
    stop: field_bounds.Word | field_bounds.StopStrings | None = None
    stop_token_ids: field_bounds.TokenIds | None = None
    include_stop_str_in_output: bool | None = None
    max_tokens: TokenLimit | None = None
    min_tokens: field_bounds.MinTokens | None = None
    ignore_eos: bool | None = None
    prompt_logprobs: field_bounds.NumLogprobs | None = None
    logprob_token_ids: field_bounds.LogprobTokenIds | None = None
    bad_words: field_bounds.BadWords | None = None
    allowed_token_ids: field_bounds.AllowedTokenIds | None = None
    thinking_token_budget: field_bounds.ThinkingTokens | None = None
    skip_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: ShortText | None = None
    priority: Int32 | None = None
    cache_salt: ShortText | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    timeout: field_bounds.Seconds | None = None
    return_progress: bool | None = None
    timings_per_token: bool | None = None

    def has_left_out(self, name: str) -> bool:
        """Whether the request gives no value for a field, under any name."""
        return getattr(self, name) is None

    @property
    def is_cut_to_context(self) -> bool:
        """Whether max_tokens may exceed the context: under names whose own servers cut it."""
        return not self.foreign_names.isdisjoint(_CUT_NAMES)


_CUT_NAMES = frozenset({"n_predict", "num_predict"})  # of max_tokens: llama.cpp's and Ollama's

NO_PROGRESS = "return_progress has no effect: it needs a stream"
NO_PADDING = "include_obfuscation has no effect: streams are sent without padding"


T = TypeVar("T", bound=GenerationRequest)


def parse(data: bytes, kind: type[T]) -> T:
    """Decode a body, without fields that exclude each other. Raises InvalidRequestError."""
    request = read_body(data, kind)
    with request.sent_as:
        check_format(request.response_format)
        _check_stream(request)
    return request


def _check_stream(request: GenerationRequest) -> None:
    if request.stream_options is not None:
        if not request.stream:
            raise invalid_value("stream_options", "it needs a stream; set stream to true")
        if request.stream_options.include_obfuscation:
            request.note_no_effect(NO_PADDING)
    if request.return_progress and not request.stream:
        request.note_no_effect(NO_PROGRESS)
    if request.stream and request.prompt_logprobs is not None:
        raise invalid_value("prompt_logprobs", "not sent in a stream; set stream to false")


def one_dropped_token(request: GenerationRequest) -> int:
    """The max_tokens of a request for its prompt alone: a token is drawn at the end of each prompt.

    job_runner.py drops it. Raises InvalidRequestError.
    """
    if request.min_tokens:
        problem = f"{request.min_tokens} is above max_tokens (0); lower it"
        raise invalid_value("min_tokens", problem)
    return 1


def take_defaults(request: GenerationRequest, defaults: Mapping[str, float]) -> bool:
    """Set the fields that a request leaves out to the model's defaults, by name.

    Returns whether max_tokens is one of them, which then ends with the context.
    """
    taken = [name for name in defaults if request.has_left_out(name)]
    for name in taken:
        setattr(request, name, defaults[name])
    return "max_tokens" in taken


def force_usage(request: GenerationRequest) -> None:
    """Let each chunk of a stream have the token counts, whatever its request says."""
    if request.stream:
        request.stream_options = StreamOptions(include_usage=True, continuous_usage_stats=True)


# fields that mean the same in a request and in SamplingParams
_SAME = tuple(
    name
    for name in GenerationRequest.__struct_fields__
    if name in SamplingParams.__struct_fields__
    and name not in ("stop", "max_tokens", "prompt_logprobs", "structured_outputs")
)


# these, the other fields of which SamplingParams are made, and a few more: the first ones of the
# struct and of its subclasses, which are read together
_NUM_FIRST = GenerationRequest.__struct_fields__.index("stream")
_FIRST_FIELDS = GenerationRequest.__struct_fields__[:_NUM_FIRST]


def sampling_of(
    request: GenerationRequest,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    """The SamplingParams of a request. Raises InvalidRequestError.

    logprobs: how many to report; None if they are not asked for. Params are cached by the values of
    the fields, since clients seldom change them.
    """
    if request.logprob_token_ids is not None and logprobs is None:
        name = request.logprobs_field.removeprefix("top_")  # a chat asks for them by logprobs
        raise invalid_value("logprob_token_ids", f"it needs {name}; ask for them")
    values = msgspec.structs.astuple(request)[:_NUM_FIRST]
    limit = None if max_tokens == NO_LIMIT else max_tokens
    try:
        found = _cached_sampling(values, limit, logprobs, prompt_logprobs)
    except TypeError:  # lists and structs are not hashable
        found = _checked_sampling(values, limit, logprobs, prompt_logprobs)
    return request.sent_as.rename_fields(found)


def _checked_sampling(
    values: tuple[Any, ...],
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    request = GenerationRequest(**dict(zip(_FIRST_FIELDS, values, strict=True)))
    given = {name: value for name in _SAME if (value := getattr(request, name)) is not None}
    stop = request.stop
    return SamplingParams(
        **given,
        stop=[stop] if isinstance(stop, str) else stop or [],
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        structured_outputs=structured_outputs_of(request),
    )


_cached_sampling = lru_cache(256)(_checked_sampling)
