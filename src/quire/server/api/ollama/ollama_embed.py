"""Ollama's /api/embed, texts to vectors, and its older /api/embeddings, of one text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

import msgspec

from quire.server.api.common import route_rules
from quire.server.api.common.embedding_job import (
    MAX_INPUTS,
    Dimensions,
    PoolingFields,
    Text,
    make_embedding_job,
)
from quire.server.api.common.embedding_runner import (
    EmbeddedInput,
    EmbeddingJob,
    EncodedReply,
    EncodeVectors,
    answer_embedding,
)
from quire.server.api.common.generation_job import Job
from quire.server.api.common.micro_batch import Stages
from quire.server.api.common.model_route import GenerationRoute, LightReply
from quire.server.api.ollama.ollama_options import Options, keep_alive_notes, read_ollama
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


def prepare(data: bytes, models: ModelRegistry) -> Stages[EmbeddingJob | LightReply]:
    """Decode a body and check its texts, in stages. Raises InvalidRequestError."""
    request = read_ollama(data, EmbedBody)
    inputs = [request.input] if isinstance(request.input, str) else request.input
    if not request.input:
        model = models.find(request.model)
        noted = (*request.no_effect, *keep_alive_notes(request.keep_alive))
        reply = EmbedReply(model=model.name, embeddings=[], total_duration=0, prompt_eval_count=0)
        return LightReply(reply, noted)
    fields = PoolingFields(truncate_prompt_tokens=None if request.truncate is False else -1)
    dimensions = request.dimensions
    return (yield from _prepared(request, "input", inputs, models, fields, _encoded, dimensions))


def prepare_older(data: bytes, models: ModelRegistry) -> Stages[EmbeddingJob]:
    """Decode a body of /api/embeddings and check its text, in stages; see `prepare`."""
    request = read_ollama(data, OlderEmbedBody)
    fields = PoolingFields(truncate_prompt_tokens=-1)
    return _prepared(request, "prompt", [request.prompt], models, fields, _encoded_older)


def _prepared(
    request: _EmbeddingBody,
    field: str,
    inputs: Sequence[str],
    models: ModelRegistry,
    fields: PoolingFields,
    encode: EncodeVectors,
    dimensions: int | None = None,
) -> Stages[EmbeddingJob]:
    """The job of a body. field: that the texts are from. fields: how they are embedded."""
    model = models.find(request.model)
    yield
    fields.note_no_effect(*request.no_effect, *keep_alive_notes(request.keep_alive))
    if request.options not in (None, Options()):
        fields.note_no_effect("options has no effect: a text's vector depends on nothing else")
    pooling = model.engine.info.pooling.changed(dimensions=dimensions)
    named = [(field, len(inputs))]
    return (yield from make_embedding_job("embd", model, fields, inputs, pooling, encode, named))


def _encoded_older(_job: Job, outputs: Sequence[EmbeddedInput]) -> EncodedReply:
    return EncodedReply(msgspec.json.encode(OlderEmbedReply(outputs[0].numbers)))


def _encoded(job: Job, outputs: Sequence[EmbeddedInput]) -> EncodedReply:
    arrival = min(output.times.arrival for output in outputs)
    reply = EmbedReply(
        model=job.model,
        embeddings=[output.numbers for output in outputs],
        total_duration=int((time.monotonic() - arrival) * 1e9),
        prompt_eval_count=sum(output.num_tokens for output in outputs),
    )
    return EncodedReply(msgspec.json.encode(reply))


OLDER_ROUTE = GenerationRoute(
    PostEntry(
        "/api/embeddings",
        "One text to a vector, in Ollama's older format.",
        rules=(route_rules.MODEL, "The text has at least one token, and fits the KV cache."),
        example={"prompt": "red shoes"},
        body=OlderEmbedBody,
        reply=OlderEmbedReply,
    ),
    prepare_older,
    answer_embedding,
)
ROUTE = GenerationRoute(
    PostEntry(
        "/api/embed",
        "Texts to vectors, in Ollama's format.",
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
    answer_embedding,
)
