"""Job: what one HTTP request asks of the engine, for any route. job_runner.py runs it.

ReplyFormatter: what each API of generated text does with the outputs. GenerationRecord: the job and
how many tokens it took, for observers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from quire.core.request_output import RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.engine.frontend.async_engine import AsyncEngine
from quire.engine.frontend.input_processor import StopWhen
from quire.engine.frontend.prompt_encoding import USUAL_ENCODING, Encoding, Prompt
from quire.errors import invalid_value
from quire.server.api.common.generation_request import MAX_CHOICES, GenerationRequest
from quire.server.api.common.logprob_bounds import check_num_logprobs
from quire.server.api.common.usage import Usage, UsageCounter
from quire.server.http.field_names import SAME, FieldNames
from quire.server.http.http_errors import ErrorReply
from quire.server.http.request_record import RequestRecord, new_id
from quire.server.model_registry import RegisteredModel
from quire.server.parsing.reasoning_parser import with_reasoning_marks

# Ids in allowed_token_ids, or characters of bad words, for all answers of one request. As many ids
# as SamplingParams takes go with n=16.
MAX_LISTED = 1 << 21
_MANY = 16  # prompts of one request


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts and sampling params, ready to run.

    sampling: of all prompts, unless samplings has one for each, which then agree in `n`. reply_id:
    the id in the answer, such as "cmpl-...". fingerprint: of the model, see system_fingerprint.
    prompt_alone: only the prompt's log probabilities are returned, without sampled tokens.
    spells_token_ids: tokens of log-probabilities are "token_id:5". stop_when: see GenerateOptions.
    continuous_usage: each chunk of a stream has the token counts so far. cut_to_context: answers
    end with the context where max_tokens would not. is_stored: the end of the answer is made in a
    thread, as that also stores it. has_timings, reports_progress: see timings.py. no_effect: a
    sentence for each field of the request that has none. names: of its fields, for errors.
    """

    reply_id: str
    model: str
    fingerprint: str = ""
    prompts: Sequence[Prompt]
    sampling: SamplingParams
    samplings: Sequence[SamplingParams] = ()
    encoding: Encoding = USUAL_ENCODING
    stream: bool = False
    include_usage: bool = False
    return_token_ids: bool = False
    spells_token_ids: bool = False
    priority: int
    cache_salt: str
    timeout: float | None  # seconds; the request's own limit
    stop_when: StopWhen | None = None
    prompt_alone: bool = False
    prompt_field: str = "prompt"  # that errors about a prompt name
    continuous_usage: bool = False
    cut_to_context: bool = False
    is_stored: bool = False
    has_timings: bool = False
    reports_progress: bool = False
    no_effect: Sequence[str] = ()
    names: FieldNames = SAME
    # seconds of the wall clock
    created: int = msgspec.field(default_factory=lambda: int(time.time()))

    @property
    def has_many_prompts(self) -> bool:
        """Whether they are prepared, and their reply is made, in threads, however short they are.

        Their sampling params may have long lists, and their answers may be long.
        """
        return len(self.prompts) > _MANY

    def sampling_of(self, index: int) -> SamplingParams:
        """The sampling params of the prompt with this index."""
        return self.samplings[index] if self.samplings else self.sampling


class AdmittedJob(msgspec.Struct, frozen=True):
    """A job and the engine that runs it. caller: see `caller_of`; hold: see `HeldLogprobs`.

    cache_salt: of the request's tenant, too: what it caches, only it can find.
    """

    job: Job
    engine: AsyncEngine
    cache_salt: str
    queue_timeout: float | None
    caller: str
    hold: Callable[[int], None]


def check_lists(sampling: SamplingParams, num_answers: int) -> None:
    """Refuse long lists for many answers, as each is sent to the engine with its own copies.

    Raises InvalidRequestError.
    """
    for name, unit, size in (
        ("allowed_token_ids", "ids", len(sampling.allowed_token_ids or ())),
        ("bad_words", "characters", sum(map(len, sampling.bad_words))),
    ):
        if size * num_answers > MAX_LISTED:
            problem = f"{size} {unit} for each of {num_answers} answers are above {MAX_LISTED}"
            fix = "send fewer prompts in one request, or lower n"
            raise invalid_value(name, f"{problem} in all; {fix}")


def make_job(
    id_prefix: str,
    request: GenerationRequest,
    prompts: Sequence[Prompt],
    sampling: SamplingParams,
    model: RegisteredModel,
    *,
    prompt_field: str = "prompt",
    cut_to_context: bool = False,
    names: FieldNames | None = None,
) -> Job:
    """Make the job of a request. prompts, sampling: already taken from it.

    id_prefix: of the reply's id, such as "cmpl-". names: those of the request's fields, unless it
    knows them itself. Raises InvalidRequestError for more than one request may ask for.
    """
    limits, tokenizer = model.engine.info.limits, model.engine.tokenizer
    sampling = with_reasoning_marks(sampling, model.parsers.reasoning, tokenizer)
    if len(prompts) * sampling.n > MAX_CHOICES:
        problem = f"{len(prompts)} prompts with n={sampling.n} are too many answers for one request"
        raise invalid_value("prompt", f"{problem}; send at most {MAX_CHOICES}")
    check_num_logprobs(sampling, prompts, limits, request.logprobs_field)
    check_lists(sampling, len(prompts) * sampling.n)
    options = request.stream_options
    has_usage = options is not None and bool(options.include_usage)
    return Job(
        reply_id=f"{id_prefix}{new_id()}",
        model=model.name,
        fingerprint=model.fingerprint,
        prompts=prompts,
        sampling=sampling,
        encoding=request.encoding,
        stream=bool(request.stream),
        include_usage=has_usage,
        continuous_usage=has_usage and bool(options and options.continuous_usage_stats),
        return_token_ids=bool(request.return_token_ids),
        spells_token_ids=bool(request.return_tokens_as_token_ids),
        priority=request.priority or 0,
        cache_salt=request.cache_salt or "",
        timeout=request.timeout,
        prompt_alone=request.max_tokens == 0,
        prompt_field=prompt_field,
        cut_to_context=cut_to_context,
        has_timings=bool(request.timings_per_token),
        reports_progress=bool(request.return_progress and request.stream),
        no_effect=request.no_effect,
        names=request.sent_as if names is None else names,
    )


class ReplyFormatter(Protocol):
    """Formats one job's outputs as the structs that an API sends. One object for each request.

    end_marker: the bytes after the last chunk of a complete stream.
    """

    job: Job
    end_marker: bytes = b""

    def reply(
        self, results: Sequence[RequestOutput], usage: Usage
    ) -> msgspec.Struct | Sequence[msgspec.Struct]:
        """The complete answer of a request without streaming."""

    def chunks(self, index: int, output: RequestOutput, /) -> Iterable[msgspec.Struct]:
        """A stream's next chunks. index: of the prompt; output: what is new of its answers."""

    def ending(self, _usage: Usage, /) -> Iterable[msgspec.Struct]:
        """The last chunks of a complete stream; none where each answer has its own."""
        return ()

    def failure(self, reply: ErrorReply) -> msgspec.Struct:
        """The last chunk of a stream that failed."""


class GenerationRecord(msgspec.Struct, eq=False):
    """The job of one request, and the tokens counted so far."""

    job: Job
    usage: UsageCounter = msgspec.field(default_factory=UsageCounter)

    def finish_reason(self, error_code: str | None) -> str:
        """Why its answers ended, each reason once, such as "stop,length".

        Answers that did not end count as "abort", or as "error" where there is an error code.
        """
        reasons = self.usage.finish_reasons
        if len(reasons) < len(self.job.prompts) * self.job.sampling.n:
            reasons = [*reasons, "abort" if error_code is None else "error"]
        return reasons[0] if len(reasons) == 1 else ",".join(dict.fromkeys(reasons))


def generation_of(record: RequestRecord) -> GenerationRecord | None:
    """The record of the model's work for a request; None if it ran no model."""
    generation = record.generation
    return generation if isinstance(generation, GenerationRecord) else None
