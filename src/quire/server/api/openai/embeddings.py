"""/v1/embeddings: from a body to vectors, in OpenAI's format.

Owns how many inputs of one request the engine has at a time. Hidden states become a
vector in engine/core/pooler.py.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence

import msgspec
from starlette.types import Send

from quire.core.pooling_params import PoolingParams
from quire.core.request import DEFAULT_SAMPLING
from quire.core.request_output import RequestOutput
from quire.engine.frontend.async_engine import AsyncEngine
from quire.engine.frontend.input_processor import errors_name_field
from quire.engine.frontend.prompt_encoding import Prompt, token_ids_of
from quire.errors import invalid_value
from quire.server.api.common import conversation, route_rules
from quire.server.api.common.chat_messages import MESSAGE_RULES
from quire.server.api.common.generation_job import AdmittedJob, Job
from quire.server.api.common.micro_batch import Stages
from quire.server.api.common.model_route import GenerationRoute
from quire.server.api.common.request_gate import RequestContext
from quire.server.api.common.usage import UsageCounter
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
from quire.server.api.openai.embeddings_request import (
    EMBEDDING_RULES,
    POOLING_RULES,
    EmbeddingRequest,
    PoolingFields,
    PoolingRequest,
)
from quire.server.http.http_errors import send_complete
from quire.server.http.openapi_entry import RUN_ERRORS, OpenApiEntry
from quire.server.model_registry import ModelRegistry, RegisteredModel

# Inputs and tokens of one request that the engine has at a time: enough to keep it busy for some
# steps, and no more, because later requests wait behind them.
WINDOW_INPUTS = 256
WINDOW_TOKENS = 8192
MAX_VECTORS_INLINE = 16  # more vectors than these are encoded in a thread


class EmbeddingJob(msgspec.Struct, frozen=True):
    """A request ready to run. job: its prompts are token ids."""

    job: Job
    pooling: PoolingParams
    vector_format: VectorFormat


def prepare(data: bytes, models: ModelRegistry) -> Stages[EmbeddingJob]:
    """Decode a body of /v1/embeddings and check all of its inputs, in stages.

    Raises InvalidRequestError.
    """
    return prepare_request(embeddings_request.parse(data), models, "embd", Embedding)


def prepare_pooling(data: bytes, models: ModelRegistry) -> Stages[EmbeddingJob]:
    """The same for /pooling."""
    return prepare_request(embeddings_request.parse_pooling(data), models, "pool", PoolingItem)


def prepare_request(
    request: EmbeddingRequest,
    models: ModelRegistry,
    id_prefix: str,
    item: type[Embedding] | type[PoolingItem],
) -> Stages[EmbeddingJob]:
    """The job of a decoded body, in stages. id_prefix: of its id; item: of the reply's list."""
    model = models.find(request.model)
    pooling = model.engine.info.pooling.changed(
        pooling=request.pooling, normalize=request.normalize, dimensions=request.dimensions
    )
    yield
    if request.messages is None:
        inputs = embeddings_request.inputs(request)
    else:
        inputs = [conversation.encode(embeddings_request.chat(request), model)]
    if request.encoding_format == "bytes" and len(inputs) > MAX_POSITIONS:
        problem = f"the header of a reply as bytes has room for {MAX_POSITIONS} inputs"
        fix = "send fewer, or set bytes_only"
        raise invalid_value("encoding_format", f"{problem}, not {len(inputs)}; {fix}")
    job = make_embedding_job(id_prefix, model, request, inputs, pooling)
    vector_format = VectorFormat(
        request.encoding_format or "float",
        request.embed_dtype or "float32",
        request.endianness or "native",
        item,
    )
    return EmbeddingJob(job, pooling, vector_format)


def make_embedding_job(
    id_prefix: str,
    model: RegisteredModel,
    request: PoolingFields,
    inputs: Sequence[Prompt],
    pooling: PoolingParams,
    fields: Sequence[tuple[str, int]] = (),
) -> Job:
    """The job of a request whose inputs are embedded. Raises InvalidRequestError.

    fields: names of those that the inputs are from, in order, with the number of each one's inputs;
    by default all are from `input`.
    """
    named = fields or [("input", len(inputs))]
    return Job(
        reply_id=f"{id_prefix}-{uuid.uuid4().hex}",
        model=model.name,
        prompts=_token_ids(inputs, named, request, pooling, model.engine),
        sampling=DEFAULT_SAMPLING,
        stream=False,
        include_usage=False,
        return_token_ids=False,
        priority=request.priority or 0,
        cache_salt=request.cache_salt or "",
        timeout=request.timeout,
        no_effect=request.no_effect,
    )


async def answer(request: EmbeddingJob, context: RequestContext, send: Send) -> None:
    """Embed all inputs and send the vectors. Raises only while nothing has been sent."""
    admitted = start_embedding(request.job, context)
    async with context.deadline.enforced():
        outputs = await embed_all(admitted, request.pooling, context.usage)
        if len(outputs) > MAX_VECTORS_INLINE:
            body, headers = await asyncio.to_thread(
                encoded, request.job, request.vector_format, outputs
            )
        else:
            body, headers = encoded(request.job, request.vector_format, outputs)
    await send_complete(send, 200, body, headers, media_type=request.vector_format.media_type)


def start_embedding(job: Job, context: RequestContext) -> AdmittedJob:
    """Admit a job whose prompts are embedded."""
    longest = max(map(len, job.prompts))
    return context.start(job, max_answers=WINDOW_INPUTS, max_tokens=max(WINDOW_TOKENS, longest))


def _token_ids(
    inputs: Sequence[Prompt],
    fields: Sequence[tuple[str, int]],
    request: PoolingFields,
    pooling: PoolingParams,
    engine: AsyncEngine,
) -> list[list[int]]:
    """Token ids of all inputs, checked before any of them runs."""
    limits, found = engine.info.limits, list[list[int]]()
    encoding = request.encoding
    names = [(name, index, count) for name, count in fields for index in range(count)]
    for given, name in zip(inputs, names, strict=True):
        with errors_name_field(*name):
            ids = token_ids_of(given, engine.tokenizer, limits, encoding)
            limits.check_embedding(ids, pooling)
            found.append(ids)
    return found


async def embed_all(
    admitted: AdmittedJob, pooling: PoolingParams, usage: UsageCounter
) -> list[RequestOutput]:
    """The outputs of all inputs, in order. A failure, or a cancellation, aborts the others."""
    window, job = _Window(), admitted.job

    async def embed(index: int, prompt: Prompt) -> RequestOutput:
        output = await admitted.engine.embed(
            *(prompt, pooling),
            request_id=f"{job.reply_id}-{index}",
            encoding=job.encoding,
            priority=job.priority,
            cache_salt=admitted.cache_salt,
            queue_timeout=admitted.queue_timeout,
        )
        usage.add(index, output)
        window.leave(len(prompt))
        return output

    tasks = []
    try:
        async with asyncio.TaskGroup() as group:
            for index, prompt in enumerate(job.prompts):
                await window.enter(len(prompt))
                tasks.append(group.create_task(embed(index, prompt)))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


class _Window:
    """Bounds what of one request the engine has; one task at a time may wait to enter."""

    def __init__(self) -> None:
        self._num_inputs = self._num_tokens = 0
        self._input_done = asyncio.Event()

    async def enter(self, num_tokens: int) -> None:
        """Wait until an input fits; with no other input running, any fits."""
        while self._num_inputs and (
            self._num_inputs >= WINDOW_INPUTS or self._num_tokens + num_tokens > WINDOW_TOKENS
        ):
            self._input_done.clear()
            await self._input_done.wait()
        self._num_inputs += 1
        self._num_tokens += num_tokens

    def leave(self, num_tokens: int) -> None:
        """Note that an input's embedding has been computed."""
        self._num_inputs -= 1
        self._num_tokens -= num_tokens
        self._input_done.set()


_RULES = (
    *(route_rules.MODEL, route_rules.VOCABULARY, route_rules.PRIORITY),
    "Each `input` has at least one token and fits the model's context and the KV cache.",
    "`messages` need a chat template, and there is no `input` then.",
    "`dimensions` is at most the model's hidden size.",
    "With `encoding_format` bytes or bytes_only the answer is application/octet-stream.",
)

ROUTE = GenerationRoute(
    OpenApiEntry(
        method="post",
        path="/v1/embeddings",
        summary="Texts to vectors.",
        rules=_RULES,
        example={"input": ["red shoes", "blue shoes"], "dimensions": 3},
        body=EmbeddingRequest,
        struct_rules=(EMBEDDING_RULES, MESSAGE_RULES),
        reply=EmbeddingReply,
        binary=BYTES_TYPE,
        errors=RUN_ERRORS,
    ),
    prepare,
    answer,
)
POOLING_ROUTE = GenerationRoute(
    OpenApiEntry(
        method="post",
        path="/pooling",
        summary="The same as /v1/embeddings, in vLLM's format.",
        rules=_RULES,
        example={"input": "red shoes", "task": "embed"},
        body=PoolingRequest,
        struct_rules=(POOLING_RULES, MESSAGE_RULES),
        reply=PoolingReply,
        binary=BYTES_TYPE,
        errors=RUN_ERRORS,
    ),
    prepare_pooling,
    answer,
)
