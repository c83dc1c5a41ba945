"""/v1/embeddings and /pooling: from a body to vectors, in OpenAI's and vLLM's formats."""

from __future__ import annotations

from functools import partial

from quire.engine.frontend.prompt_encoding import Prompt
from quire.errors import invalid_value
from quire.server.api.common import conversation, route_rules
from quire.server.api.common.embedding_job import make_embedding_job
from quire.server.api.common.embedding_runner import EmbeddingJob, answer_embedding
from quire.server.api.common.micro_batch import Stages
from quire.server.api.common.model_route import GenerationRoute
from quire.server.api.common.prompt_types import parts_encoder
from quire.server.api.openai import embeddings_request
from quire.server.api.openai.embeddings_reply import (
    BYTES_TYPE,
    MAX_POSITIONS,
    Embedding,
    EmbeddingReply,
    PoolingItem,
    PoolingReply,
    VectorFormat,
    encoded,
)
from quire.server.api.openai.embeddings_request import INPUTS, EmbeddingRequest, PoolingRequest
from quire.server.http.openapi_entry import PostEntry
from quire.server.model_registry import ModelRegistry


def prepare(
    item: type[Embedding] | type[PoolingItem], data: bytes, models: ModelRegistry
) -> Stages[EmbeddingJob]:
    """Decode a body and check all of its inputs, in stages. item: of the reply's list.

    Raises InvalidRequestError.
    """
    is_pooling = item is PoolingItem
    request = embeddings_request.parse(data, is_pooling=is_pooling)
    model = models.find(request.model)
    pooling = model.engine.info.pooling.changed(
        pooling=request.pooling, normalize=request.normalize, dimensions=request.dimensions
    )
    yield
    inputs: list[Prompt]
    if request.messages is None:
        encode = parts_encoder(model.engine, request.add_special_tokens)
        inputs = yield from INPUTS.read(embeddings_request.raw_input(request), encode)
    else:
        chat = embeddings_request.chat(request)
        inputs = [conversation.encode(chat, model)]
        request.note_no_effect(*chat.no_effect)
    if request.encoding_format == "bytes" and len(inputs) > MAX_POSITIONS:
        problem = f"the header of a reply as bytes has room for {MAX_POSITIONS} inputs"
        fix = "send fewer, or set bytes_only"
        raise invalid_value("encoding_format", f"{problem}, not {len(inputs)}; {fix}")
    vector_format = VectorFormat(
        request.encoding_format or "float",
        request.embed_dtype or "float32",
        request.endianness or "native",
        item,
    )
    prefix, encode_reply = "pool" if is_pooling else "embd", partial(encoded, vector_format)
    return (yield from make_embedding_job(prefix, model, request, inputs, pooling, encode_reply))


_RULES = (
    route_rules.MODEL,
    route_rules.VOCABULARY,
    route_rules.PRIORITY,
    "Each `input` has at least one token and fits the model's context and the KV cache.",
    "`messages` need a chat template, and there is no `input` then.",
    "`dimensions` is at most the model's hidden size.",
    "With `encoding_format` bytes or bytes_only the answer is application/octet-stream.",
)

ROUTE = GenerationRoute(
    PostEntry(
        "/v1/embeddings",
        "Texts to vectors.",
        rules=_RULES,
        example={"input": ["red shoes", "blue shoes"], "dimensions": 3},
        body=EmbeddingRequest,
        reply=EmbeddingReply,
        binary=BYTES_TYPE,
    ),
    partial(prepare, Embedding),
    answer_embedding,
)
POOLING_ROUTE = GenerationRoute(
    PostEntry(
        "/pooling",
        "The same as /v1/embeddings, in vLLM's format.",
        rules=_RULES,
        example={"input": "red shoes", "task": "embed"},
        body=PoolingRequest,
        reply=PoolingReply,
        binary=BYTES_TYPE,
    ),
    partial(prepare, PoolingItem),
    answer_embedding,
)
