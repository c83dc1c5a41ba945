"""Ollama's /api/embed, texts to vectors, and its older /api/embeddings, of one text."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

import msgspec
from starlette.types import Send

from quire.server.api.common import route_rules
from quire.server.api.common.embedding_job import (
    MAX_INPUTS,
    Dimensions,
    EmbeddingJob,
    PoolingFields,
    Text,
    make_embedding_job,
)
from quire.server.api.common.embedding_runner import (
    EmbeddedInput,
    embed_all,
    encode_vectors,
    start_embedding,
)
from quire.server.api.common.micro_batch import Stages
from quire.server.api.common.model_route import GenerationRoute
from quire.server.api.common.request_gate import RequestContext
from quire.server.api.ollama.ollama_options import Options, keep_alive_notes, read_ollama
from quire.server.http.http_errors import send_complete
from quire.server.http.openapi_entry import PostEntry
from quire.server.http.request_body import RequestBody
from quire.server.model_registry import ModelRegistry


class _EmbeddingBody(RequestBody, kw_only=True, dict=True):
    """The fields of both bodies. keep_alive, options: without effect."""

    model: str | None = None
    keep_alive: str | float | None = None
    options: Options | None = None


class EmbedBody(_EmbeddingBody, kw_only=True, dict=True):
    """Body of /api/embed. input: none, as an empty text, has no vectors. truncate: cut texts to
    the context; false: refuse longer ones.
    """

    input: str | Annotated[list[Text], msgspec.Meta(max_length=MAX_INPUTS)]
    truncate: bool | None = None
    dimensions: Dimensions | None = None


class OlderEmbedBody(_EmbeddingBody, kw_only=True, dict=True):
    """Body of /api/embeddings. prompt: cut to the context."""

    prompt: Text


class OlderEmbedReply(msgspec.Struct):
    """The vector of one text."""

    embedding: list[float]


class EmbedReply(msgspec.Struct, kw_only=True):
    """A vector for each text, in order. Durations are nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int = 0
    prompt_eval_count: int


class NothingToEmbed(msgspec.Struct, frozen=True):
    """The reply to a request without a text. no_effect: as in a Job."""

    reply: EmbedReply
    no_effect: Sequence[str]


def prepare(data: bytes, models: ModelRegistry) -> Stages[EmbeddingJob | NothingToEmbed]:
    """Decode a body and check its texts, in stages. Raises InvalidRequestError."""
    request = read_ollama(data, EmbedBody)
    inputs = [request.input] if isinstance(request.input, str) else request.input
    if not request.input:
        model = models.find(request.model)
        noted = (*request.no_effect, *keep_alive_notes(request.keep_alive))
        reply = EmbedReply(model=model.name, embeddings=[], total_duration=0, prompt_eval_count=0)
        return NothingToEmbed(reply, noted)
    truncate = None if request.truncate is False else -1
    return (yield from _prepared(request, inputs, models, truncate, request.dimensions))


def prepare_older(data: bytes, models: ModelRegistry) -> Stages[EmbeddingJob]:
    """Decode a body of /api/embeddings and check its text, in stages; see `prepare`."""
    request = read_ollama(data, OlderEmbedBody)
    return (yield from _prepared(request, [request.prompt], models, -1, None, field="prompt"))


def _prepared(
    request: _EmbeddingBody,
    inputs: Sequence[str],
    models: ModelRegistry,
    truncate: int | None,
    dimensions: int | None,
    field: str = "input",
) -> Stages[EmbeddingJob]:
    """The job of a body. field: that the texts are from."""
    model = models.find(request.model)
    yield
    fields = PoolingFields(truncate_prompt_tokens=truncate)
    fields.note_no_effect(*request.no_effect, *keep_alive_notes(request.keep_alive))
    if request.options not in (None, Options()):
        fields.note_no_effect("options has no effect: a text's vector depends on nothing else")
    pooling = model.engine.info.pooling.changed(dimensions=dimensions)
    named = [(field, len(inputs))]
    job = yield from make_embedding_job("embd", model, fields, inputs, pooling, named)
    return EmbeddingJob(job, pooling)


async def answer(
    request: EmbeddingJob | NothingToEmbed, context: RequestContext, send: Send
) -> None:
    """Embed all texts and send the vectors."""
    if isinstance(request, NothingToEmbed):
        context.record.no_effect = request.no_effect
        await send_complete(send, 200, msgspec.json.encode(request.reply))
        return
    await _answer(request, context, send, partial(_encoded, request.job.model))


async def answer_older(request: EmbeddingJob, context: RequestContext, send: Send) -> None:
    """Embed the text and send its vector in the older format."""
    await _answer(request, context, send, _encoded_older)


async def _answer(
    request: EmbeddingJob,
    context: RequestContext,
    send: Send,
    encoded: Callable[[Sequence[EmbeddedInput]], bytes],
) -> None:
    admitted = start_embedding(request.job, context)
    async with context.deadline.enforced():
        outputs = await embed_all(admitted, request.pooling, context.usage)
        reply = await encode_vectors(encoded, outputs)
    await send_complete(send, 200, reply)


def _encoded_older(outputs: Sequence[EmbeddedInput]) -> bytes:
    return msgspec.json.encode(OlderEmbedReply(outputs[0].numbers))


def _encoded(model: str, outputs: Sequence[EmbeddedInput]) -> bytes:
    arrival = min(output.times.arrival for output in outputs)
    reply = EmbedReply(
        model=model,
        embeddings=[output.numbers for output in outputs],
        total_duration=int((time.monotonic() - arrival) * 1e9),
        prompt_eval_count=sum(output.num_tokens for output in outputs),
    )
    return msgspec.json.encode(reply)


OLDER_ROUTE = GenerationRoute(
    PostEntry(
        path="/api/embeddings",
        summary="One text to a vector, in Ollama's older format.",
        rules=(route_rules.MODEL, "The text has at least one token, and fits the KV cache."),
        example={"prompt": "red shoes"},
        body=OlderEmbedBody,
        reply=OlderEmbedReply,
    ),
    prepare_older,
    answer_older,
)
ROUTE = GenerationRoute(
    PostEntry(
        path="/api/embed",
        summary="Texts to vectors, in Ollama's format.",
        rules=(
            route_rules.MODEL,
            "Each text has at least one token, and fits the KV cache.",
            "`dimensions` is at most the model's hidden size.",
        ),
        example={"input": ["red shoes", "blue shoes"], "dimensions": 3},
        body=EmbedBody,
        reply=EmbedReply,
    ),
    prepare,
    answer,
)
