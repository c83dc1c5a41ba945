"""/v1/completions: from a body to a job, and from the engine's news to answers and chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from quire.core.output import CompletionOutput, RequestOutput
from quire.server import protocol
from quire.server.engine_protocol import EngineProtocol, TokenizerProtocol
from quire.server.job import Job, check_model, make_job
from quire.server.logprobs import (
    CompletionLogprobs,
    PromptLogprob,
    completion_logprobs,
    prompt_logprobs,
)
from quire.server.usage import Usage


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One answer, or in a stream its next part."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | UnsetType = UNSET


class CompletionReply(msgspec.Struct, kw_only=True):
    """A whole answer, or one chunk of a stream; both have the same shape."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET


async def prepare(body: bytes, engine: EngineProtocol) -> CompletionDialect:
    """Read a body and check what can be checked without the engine's work.

    Raises InvalidRequestError.
    """
    request = protocol.parse_completion(body)
    check_model(request.model, engine.info.model_name)
    sampling = protocol.completion_sampling(request)
    job = make_job("cmpl", request, protocol.prompts(request), sampling, engine.info.model_name)
    return CompletionDialect(job, request, engine.tokenizer)


class CompletionDialect:
    """Speaks /v1/completions for one job. Choices are numbered prompt by prompt."""

    def __init__(
        self, job: Job, request: protocol.CompletionRequest, tokenizer: TokenizerProtocol
    ) -> None:
        self.job = job
        self._echo = bool(request.echo)
        self._num_logprobs = request.logprobs
        self._num_prompt_logprobs = request.prompt_logprobs
        self._tokenizer = tokenizer
        self._offsets: dict[int, int] = {}  # choice → characters sent; absent until it begins

    def reply(self, results: Sequence[RequestOutput], usage: Usage) -> CompletionReply:
        """The whole answer."""
        choices = [
            self._choice(place, item, output)
            for place, item in enumerate(results)
            for output in item.outputs
        ]
        return self._reply(choices, usage)

    def chunks(self, place: int, item: RequestOutput) -> Iterator[CompletionReply]:
        """A stream's next chunks."""
        for output in item.outputs:
            yield self._reply([self._choice(place, item, output)], self._no_usage)

    def usage_chunk(self, usage: Usage) -> CompletionReply:
        """The stream's last chunk."""
        return self._reply([], usage)

    @property
    def _no_usage(self) -> UnsetType | None:
        return None if self.job.include_usage else UNSET

    def _reply(
        self, choices: list[CompletionChoice], usage: Usage | UnsetType | None
    ) -> CompletionReply:
        job = self.job
        return CompletionReply(
            id=job.reply_id, created=job.created, model=job.model, choices=choices, usage=usage
        )

    def _choice(
        self, place: int, item: RequestOutput, output: CompletionOutput
    ) -> CompletionChoice:
        index = place * self.job.sampling.n + output.index
        choice = CompletionChoice(
            index=index,
            text=output.text,
            finish_reason=output.finish_reason,
            stop_reason=output.stop_reason,
        )
        begins = index not in self._offsets
        offset = self._offsets.get(index, 0)
        if begins and self._echo:
            prompt = self._prompt_text(item)
            choice.text = prompt + choice.text
            offset += len(prompt)
        if self._num_logprobs is not None:
            with_prompt = begins and self._echo
            choice.logprobs = self._logprobs(item, output, offset, with_prompt=with_prompt)
        if self.job.return_token_ids:
            choice.token_ids = output.token_ids
            if begins:
                choice.prompt_token_ids = item.prompt_token_ids
        if self._num_prompt_logprobs is not None and item.prompt_logprobs is not None:
            choice.prompt_logprobs = prompt_logprobs(
                item.prompt_logprobs, item.prompt_token_ids, self._num_prompt_logprobs
            )
        self._offsets[index] = offset + len(output.text)
        return choice

    def _logprobs(
        self, item: RequestOutput, output: CompletionOutput, offset: int, *, with_prompt: bool
    ) -> CompletionLogprobs:
        positions, token_ids = list(output.logprobs or ()), list(output.token_ids)
        if with_prompt:
            positions = [*(item.prompt_logprobs or ()), *positions]
            token_ids = [*item.prompt_token_ids, *token_ids]
            offset = 0
        return completion_logprobs(
            positions, token_ids, self._num_logprobs or 0, offset, self._tokenizer
        )

    def _prompt_text(self, item: RequestOutput) -> str:
        if item.prompt is not None:
            return item.prompt
        skip = self.job.sampling.skip_special_tokens
        return self._tokenizer.decode(item.prompt_token_ids, skip_special_tokens=skip)
