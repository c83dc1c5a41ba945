"""/v1/completions: from a body to a job, and from the engine's outputs to reply and chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import msgspec
from msgspec import UNSET, UnsetType

from quire.core.request_output import CompletionOutput, RequestOutput
from quire.engine.frontend.prompt_encoding import token_ids_of
from quire.server.api.common import route_rules
from quire.server.api.common.generation_job import Job, make_job
from quire.server.api.common.generation_request import force_usage, parse, take_defaults
from quire.server.api.common.logprob_bounds import is_wide
from quire.server.api.common.logprob_formats import (
    CompletionLogprobs,
    PromptLogprob,
    TextOffsets,
    completion_logprobs,
    prompt_logprobs,
)
from quire.server.api.common.micro_batch import Stages
from quire.server.api.common.model_route import GenerationRoute
from quire.server.api.common.streaming import OpenAIReplyFormatter, answer
from quire.server.api.common.timings import WithProgress
from quire.server.api.common.usage import Usage
from quire.server.api.openai import completions_request
from quire.server.api.openai.completions_request import CompletionRequest
from quire.server.http.http_errors import ErrorChunk
from quire.server.http.openapi_entry import PostEntry
from quire.server.model_registry import ModelRegistry, RegisteredModel
from quire.tokenizer.tokenizer import Tokenizer


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One answer; in a stream, its next part."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType | None = UNSET
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | UnsetType | None = UNSET


class CompletionReply(WithProgress, kw_only=True):
    """The reply without streaming, or one chunk of a stream."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str | UnsetType = UNSET


def prepare(body: bytes, models: ModelRegistry) -> Stages[CompletionFormatter]:
    """Decode a body and make its job, in stages.

    Raises InvalidRequestError.
    """
    request = parse(body, CompletionRequest)
    model = models.find(request.model)
    yield
    if model.forces_usage:
        force_usage(request)
    with request.sent_as:
        job = yield from _job(request, model)
    return CompletionFormatter(job, request, model.engine.tokenizer)


def _job(request: CompletionRequest, model: RegisteredModel) -> Stages[Job]:
    is_cut = request.max_tokens is None or request.is_cut_to_context
    take_defaults(request, model.request_defaults)
    sampling = completions_request.sampling(request)
    prompts = completions_request.prompts(request)
    if is_wide(sampling.prompt_logprobs):  # whose number depends on the number of tokens
        limits, tokenizer = model.engine.info.limits, model.engine.tokenizer
        encode = partial(token_ids_of, reserved=sampling.max_tokens or 1)
        for index, prompt in enumerate(prompts):
            prompts[index] = encode(prompt, tokenizer, limits, request.encoding)
            yield
    return make_job("cmpl-", request, prompts, sampling, model, cut_to_context=is_cut)


class CompletionFormatter(OpenAIReplyFormatter):
    """The ReplyFormatter of /v1/completions. Choices are numbered prompt by prompt."""

    def __init__(self, job: Job, request: CompletionRequest, tokenizer: Tokenizer) -> None:
        super().__init__(job, tokenizer)
        self._echo = bool(request.echo)
        self._num_prompt_logprobs = request.prompt_logprobs
        self._started: set[int] = set()  # choices of which something was sent
        self._offsets: dict[int, TextOffsets] = {}  # by choice
        self._waiting: dict[int, RequestOutput] = {}  # by prompt, until its logprobs are complete

    def reply(self, results: Sequence[RequestOutput], usage: Usage) -> CompletionReply:
        """The complete answer as a text completion."""
        choices = [
            self._choice(prompt_index, item, output)
            for prompt_index, item in enumerate(results)
            for output in item.outputs
        ]
        reply = self._reply(choices, usage)
        reply.system_fingerprint = self.job.fingerprint
        return reply

    def chunks(self, prompt_index: int, item: RequestOutput) -> Iterator[CompletionReply]:
        """A stream's next chunks; none while logprobs of an echoed prompt are missing."""
        if prompt_index in self._waiting:
            waiting = self._waiting.pop(prompt_index)
            waiting.append(item)
            item = waiting
        num_missing = len(item.prompt_token_ids) - len(item.prompt_logprobs or ())
        shows_them = self._echo and self._num_logprobs is not None
        if shows_them and num_missing > 0 and not item.finished:
            self._waiting[prompt_index] = item
            return
        no_usage = None if self.job.include_usage else UNSET
        for output in item.outputs:
            chunk = self._reply([self._choice(prompt_index, item, output)], no_usage)
            if output.finish_reason is not None:
                chunk.system_fingerprint = self.job.fingerprint
            yield chunk

    def ending(self, usage: Usage) -> Iterator[CompletionReply]:
        """The token counts, if the request asks for them."""
        if self.job.include_usage:
            yield self._reply([], usage)

    def _reply(
        self, choices: list[CompletionChoice], usage: Usage | UnsetType | None
    ) -> CompletionReply:
        job = self.job
        return CompletionReply(
            id=job.reply_id, created=job.created, model=job.model, choices=choices, usage=usage
        )

    def _choice(
        self, prompt_index: int, item: RequestOutput, output: CompletionOutput
    ) -> CompletionChoice:
        index = prompt_index * self.job.sampling.n + output.index
        not_asked = UNSET if self.job.stream else None
        choice = CompletionChoice(
            index=index,
            text=output.text,
            finish_reason=output.finish_reason,
            stop_reason=output.stop_reason,
            token_ids=not_asked,
            prompt_token_ids=not_asked,
            prompt_logprobs=not_asked,
        )
        is_first = index not in self._started
        self._started.add(index)
        prompt = self._prompt_text(item) if is_first and self._echo else ""
        choice.text = prompt + choice.text
        if self._num_logprobs is not None:
            if is_first:
                self._offsets[index] = self._text_offsets(item.prompt_token_ids, begin=len(prompt))
            offsets = self._offsets[index].of(output.token_ids)
            choice.logprobs = self._logprobs(item, output, offsets, is_first=is_first)
        if self.job.return_token_ids:
            choice.token_ids = output.token_ids
            if is_first:
                choice.prompt_token_ids = item.prompt_token_ids
        if self._num_prompt_logprobs is not None and item.prompt_logprobs is not None:
            choice.prompt_logprobs = prompt_logprobs(
                item.prompt_logprobs, item.prompt_token_ids, self._num_prompt_logprobs
            )
        return choice

    def _logprobs(
        self, item: RequestOutput, output: CompletionOutput, offsets: list[int], *, is_first: bool
    ) -> CompletionLogprobs:
        positions, token_ids = list(output.logprobs or ()), list(output.token_ids)
        if is_first and self._echo:
            echoed = self._text_offsets([], prompt=item.prompt).of(item.prompt_token_ids)
            positions = [*(item.prompt_logprobs or ()), *positions]
            token_ids = [*item.prompt_token_ids, *token_ids]
            offsets = [*echoed, *offsets]
        return completion_logprobs(
            positions, token_ids, self._num_logprobs or 0, offsets, self._tokenizer,
            as_ids=self._spells_ids,
        )  # fmt: skip

    def _text_offsets(
        self, before: Sequence[int], *, begin: int = 0, prompt: str | None = None
    ) -> TextOffsets:
        return TextOffsets(
            self._tokenizer, before, begin=begin, prompt=prompt,
            skip_special_tokens=self.job.sampling.skip_special_tokens,
        )  # fmt: skip

    def _prompt_text(self, item: RequestOutput) -> str:
        if item.prompt is not None:
            return item.prompt
        skip = self.job.sampling.skip_special_tokens
        return self._tokenizer.decode(item.prompt_token_ids, skip_special_tokens=skip)


# Lists of token ids are read faster than texts are encoded.
_IN_THREAD_BYTES = 64 << 10

ROUTE = GenerationRoute(
    PostEntry(
        "/v1/completions",
        "Continue a text.",
        rules=(
            *route_rules.GENERATION,
            route_rules.STREAM,
            "`prompt` has at least one token; prompts times `n` is at most 1024.",
            "`max_tokens` is 0 only with `echo`.",
        ),
        example={"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0},
        body=CompletionRequest,
        reply=CompletionReply,
        events=(CompletionReply, ErrorChunk),
    ),
    prepare,
    answer,
    lambda body: len(body) > _IN_THREAD_BYTES,
)
