"""/completion: llama.cpp's own format of completions, which its clients and plug-ins use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from quire.core.request_output import CompletionOutput, Logprob, RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.server.api.common import route_rules
from quire.server.api.common.generation_job import Job, make_job
from quire.server.api.common.generation_request import parse, take_defaults
from quire.server.api.common.logprob_formats import finite, shown_of
from quire.server.api.common.micro_batch import Stages
from quire.server.api.common.model_route import GenerationRoute
from quire.server.api.common.prompt_types import parts_encoder
from quire.server.api.common.streaming import OpenAIReplyFormatter, answer
from quire.server.api.common.timings import Timings
from quire.server.api.common.usage import Usage
from quire.server.api.llama_cpp import completion_request
from quire.server.api.llama_cpp.completion_reply import (
    NativePart,
    NativeReply,
    StopType,
    TokenProbabilities,
    TokenProbability,
)
from quire.server.api.llama_cpp.completion_request import NativeCompletionRequest
from quire.server.http.http_errors import ErrorChunk
from quire.server.http.openapi_entry import PostEntry
from quire.server.model_registry import ModelRegistry, RegisteredModel
from quire.tokenizer.tokenizer import Tokenizer

# SamplingParams by llama.cpp's names of generation_settings
_SETTINGS = {
    "seed": "seed", "temperature": "temperature", "top_k": "top_k", "top_p": "top_p",
    "min_p": "min_p", "repeat_penalty": "repetition_penalty", "stop": "stop",
    "presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty",
    "ignore_eos": "ignore_eos",
}  # fmt: skip


def prepare(body: bytes, models: ModelRegistry) -> Stages[NativeFormatter]:
    """Decode a body and make its job, in stages. Raises InvalidRequestError."""
    request = parse(body, NativeCompletionRequest)
    model = models.find(request.model)
    yield
    with request.sent_as:
        job = yield from _job(request, model)
    return NativeFormatter(job, request, model.engine.tokenizer, model.engine.eos_token_ids)


def _job(request: NativeCompletionRequest, model: RegisteredModel) -> Stages[Job]:
    take_defaults(request, model.request_defaults)
    request.logit_bias = completion_request.token_biases(  # type: ignore[assignment]
        request, parts_encoder(model.engine, special=False)
    )
    sampling = completion_request.sampling(request)
    encode = parts_encoder(model.engine, request.add_special_tokens)
    prompts = yield from completion_request.PROMPTS.read(bytes(request.prompt), encode)
    return make_job("cmpl-", request, prompts, sampling, model, cut_to_context=True)


class _Answer(msgspec.Struct):
    """State of an answer so far."""

    num_tokens: int = 0
    has_new_line: bool = False


class NativeFormatter(OpenAIReplyFormatter):
    """The ReplyFormatter of /completion. Answers are numbered prompt by prompt.

    eos_token_ids: those that end an answer, unless the request ignores them.
    """

    end_marker = b""

    def __init__(
        self,
        job: Job,
        request: NativeCompletionRequest,
        tokenizer: Tokenizer,
        eos_token_ids: Sequence[int],
    ) -> None:
        super().__init__(job, tokenizer)
        self._returns_tokens = bool(request.return_tokens) or job.stream
        self._never = eos_token_ids if job.sampling.ignore_eos else ()
        self._answers: dict[int, _Answer] = {}

    def reply(
        self, results: Sequence[RequestOutput], _usage: Usage
    ) -> msgspec.Struct | list[NativeReply]:
        """The complete answer; a list of them for several."""
        replies = [
            self._end(self._read(index, item, output), item, output)
            for index, item in enumerate(results)
            for output in item.outputs
        ]
        return replies[0] if len(replies) == 1 else replies

    def chunks(self, prompt_index: int, item: RequestOutput) -> Iterator[NativePart]:
        """A stream's next chunks; the last one of an answer has no text."""
        for output in item.outputs:
            part = self._read(prompt_index, item, output)
            if part.tokens or part.content or output.finish_reason is None:
                yield from _by_token(part)
            if output.finish_reason is not None:
                part = msgspec.structs.replace(part, content="", tokens=[])
                part.completion_probabilities = UNSET
                yield self._end(part, item, output)

    def _read(self, prompt_index: int, item: RequestOutput, output: CompletionOutput) -> NativePart:
        index = prompt_index * self.job.sampling.n + output.index
        answer = self._answers.setdefault(index, _Answer())
        answer.num_tokens += len(output.token_ids)
        answer.has_new_line |= "\n" in output.text
        return NativePart(
            index=index,
            content=output.text,
            tokens=list(output.token_ids) if self._returns_tokens else [],
            tokens_predicted=answer.num_tokens,
            tokens_evaluated=len(item.prompt_token_ids),
            completion_probabilities=self._probabilities(output),
        )

    def _end(self, part: NativePart, item: RequestOutput, output: CompletionOutput) -> NativeReply:
        num_tokens, most = part.tokens_predicted, _max_tokens(self.job)
        kind = _stop_type(output)
        fields = {name: getattr(part, name) for name in NativePart.__struct_fields__}
        own = {"stop": True, "timings": Timings.of(item, num_tokens)}
        return NativeReply(
            **fields | own,
            model=self.job.model,
            prompt=self._tokenizer.decode(item.prompt_token_ids, skip_special_tokens=False),
            generation_settings=_settings(self.job, self._never),
            has_new_line=self._answers[part.index].has_new_line,
            truncated=kind == "limit" and (most is None or num_tokens < most),
            stop_type=kind,
            stopping_word=str(output.stop_reason) if kind == "word" else "",
            tokens_cached=item.num_cached_tokens,
        )

    def _probabilities(self, output: CompletionOutput) -> list[TokenProbabilities] | UnsetType:
        if (count := self._num_logprobs) is None:
            return UNSET
        return [
            TokenProbabilities(
                **self._probability(token_id, position[token_id]),
                top_logprobs=[
                    TokenProbability(**self._probability(candidate_id, candidate))
                    for candidate_id, candidate in shown_of(position, count).items()
                ],
            )
            for token_id, position in zip(output.token_ids, output.logprobs or (), strict=True)
        ]

    def _probability(self, token_id: int, found: Logprob) -> dict[str, Any]:
        """The fields of a TokenProbability."""
        data, logprob = list(self._tokenizer.token_bytes(token_id)), finite(found.logprob)
        return {"id": token_id, "token": found.decoded_token, "bytes": data, "logprob": logprob}


def _by_token(part: NativePart) -> Iterator[NativePart]:
    """A part for each token that has candidates, as llama.cpp sends them; the last has the text."""
    found = part.completion_probabilities
    if found is UNSET or len(found) < 2:
        yield part
        return
    for index, own in enumerate(found, 1):
        yield msgspec.structs.replace(
            part,
            content=part.content if index == len(found) else "",
            tokens=part.tokens[index - 1 : index],
            tokens_predicted=part.tokens_predicted - len(found) + index,
            completion_probabilities=[own],
        )


def _stop_type(output: CompletionOutput) -> StopType:
    if output.finish_reason == "length":
        return "limit"
    if output.finish_reason == "stop":
        return "word" if isinstance(output.stop_reason, str) else "eos"
    return "none"


def _max_tokens(job: Job) -> int | None:
    return 0 if job.prompt_alone else job.sampling.max_tokens


def _settings(job: Job, never: Sequence[int]) -> dict[str, Any]:
    """The settings of an answer. never: tokens that are not drawn; their bias is None."""
    biases: dict[int, float | None] = {**(job.sampling.logit_bias or {}), **dict.fromkeys(never)}
    sampling: SamplingParams = job.sampling
    settings = {name: getattr(sampling, own) for name, own in _SETTINGS.items()}
    most = _max_tokens(job)
    shown = -1 if most is None else most
    return settings | {
        "max_tokens": shown,
        "n_predict": shown,
        "n_probs": sampling.logprobs or 0,
        "logit_bias": [{"token": i, "bias": bias} for i, bias in biases.items()],
        "stream": job.stream,
    }


def _route(path: str) -> GenerationRoute[NativeFormatter]:
    entry = PostEntry(
        path,
        "Continue a text, in llama.cpp's own format.",
        rules=(
            *route_rules.GENERATION,
            route_rules.STREAM,
            "`n_probs` is `logprobs`.",
            "`n_predict` is `max_tokens`; an answer may end before, with the context.",
            "`logit_bias` has token ids or texts, as a map or as pairs; biases of a token add up.",
        ),
        example={"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0},
        body=NativeCompletionRequest,
        reply=NativeReply,
        items=NativeReply,
        events=(NativePart, NativeReply, ErrorChunk),
    )
    return GenerationRoute(entry, prepare, answer)


ROUTES = tuple(map(_route, ("/completion", "/completions")))
