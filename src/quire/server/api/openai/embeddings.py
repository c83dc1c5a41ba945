"""/v1/embeddings: from a body to vectors, as OpenAI has it.

Owns the answer, and how many inputs of one request are with the engine at a time. How hidden states
become a vector is in engine/core/pooler.py.
"""

from __future__ import annotations

import asyncio
import base64
import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import msgspec
from starlette.types import Send

from quire.core.pooling_params import PoolingParams
from quire.core.request import DEFAULT_SAMPLING
from quire.core.request_output import RequestOutput
from quire.engine.frontend.input_processor import Prompt, errors_name_field
from quire.engine.frontend.prompt_encoding import encode_prompt
from quire.server.api.common import route_rules
from quire.server.api.common.generation_job import Job
from quire.server.api.common.micro_batch import Stages
from quire.server.api.common.model_route import GenerationRoute
from quire.server.api.common.request_gate import RequestContext, TenantEngine
from quire.server.api.common.usage import UsageCounter
from quire.server.api.openai import embeddings_request
from quire.server.api.openai.embeddings_request import EMBEDDING_RULES, EmbeddingRequest
from quire.server.engine_protocol import EngineProtocol
from quire.server.http.http_errors import send_json
from quire.server.http.openapi_entry import RUN_ERRORS, OpenApiEntry
from quire.server.model_registry import ModelRegistry

# Inputs of one request, and tokens of them, that the engine has at a time: enough to keep it busy
# for some steps, and no more, because whoever comes later waits behind them.
MOST_AT_ONCE = 256
MOST_TOKENS = 8192
_ENCODED_BESIDE = 16  # more vectors than these are written beside the event loop


class Embedding(msgspec.Struct, kw_only=True):
    """The vector of one input: numbers, or their bytes as base64."""

    object: str = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(msgspec.Struct):
    """Token counts of one request."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingReply(msgspec.Struct, kw_only=True):
    """The answer, with a vector for each input in their order."""

    object: str = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class EmbeddingJob:
    """A request ready to run. job: its prompts are token ids."""

    job: Job
    pooling: PoolingParams
    as_base64: bool


def prepare(data: bytes, models: ModelRegistry) -> Stages[EmbeddingJob]:
    """Read a body, and refuse whatever can be known to be wrong with any of its inputs.

    Raises InvalidRequestError.
    """
    request = embeddings_request.parse(data)
    model = models.find(request.model)
    pooling = model.engine.info.pooling.changed(
        pooling=request.pooling, normalize=request.normalize, dimensions=request.dimensions
    )
    yield
    job = Job(
        reply_id=f"embd-{uuid.uuid4().hex}",
        model=model.name,
        prompts=_token_ids(embeddings_request.inputs(request), pooling, model.engine),
        sampling=DEFAULT_SAMPLING,
        stream=False,
        include_usage=False,
        return_token_ids=False,
        priority=request.priority or 0,
        cache_salt=request.cache_salt or "",
        timeout=request.timeout,
    )
    return EmbeddingJob(job, pooling, request.encoding_format == "base64")


async def answer(wanted: EmbeddingJob, context: RequestContext, send: Send) -> None:
    """Embed all inputs and send the vectors. Raises only while nothing has been sent."""
    longest = max(map(len, wanted.job.prompts))
    engine = context.start(
        wanted.job, max_answers=MOST_AT_ONCE, max_tokens=max(MOST_TOKENS, longest)
    )
    async with context.deadline.enforced():
        outputs = await _embed(wanted, engine, context.usage)
        if len(outputs) > _ENCODED_BESIDE:
            reply = await asyncio.to_thread(_encoded, wanted, outputs)
        else:
            reply = _encoded(wanted, outputs)
    await send_json(send, 200, reply)


def _token_ids(
    inputs: list[str] | list[list[int]], pooling: PoolingParams, engine: EngineProtocol
) -> list[list[int]]:
    """Encode the texts, and check all before any of them runs."""
    limits, found = engine.info.limits, []
    encode = partial(engine.tokenizer.encode, parse_special=True)
    for place, given in enumerate(inputs):
        with errors_name_field("input", place, len(inputs)):
            if isinstance(given, str):
                ids = encode_prompt(limits, encode, given)
            else:
                ids = cast(list[int], given)
            limits.check_embedding(ids, pooling)
            found.append(ids)
    return found


async def _embed(
    wanted: EmbeddingJob, engine: TenantEngine, usage: UsageCounter
) -> list[RequestOutput]:
    """All inputs' outputs, in order. The first failure, or being cancelled, aborts the others."""
    job, window = wanted.job, _Window()

    async def embed(place: int, prompt: Prompt) -> RequestOutput:
        output = await engine.embed(
            prompt,
            wanted.pooling,
            request_id=f"{job.reply_id}-{place}",
            priority=job.priority,
            cache_salt=job.cache_salt,
        )
        usage.add(place, output)
        window.leave(len(prompt))
        return output

    tasks = []
    try:
        async with asyncio.TaskGroup() as group:
            for place, prompt in enumerate(job.prompts):
                await window.enter(len(prompt))
                tasks.append(group.create_task(embed(place, prompt)))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


class _Window:
    """What of one request is with the engine; one task at a time may wait to enter."""

    def __init__(self) -> None:
        self._num_inputs = self._num_tokens = 0
        self._has_left = asyncio.Event()

    async def enter(self, num_tokens: int) -> None:
        """Wait until there is room; alone, any input has it."""
        while self._num_inputs and (
            self._num_inputs >= MOST_AT_ONCE or self._num_tokens + num_tokens > MOST_TOKENS
        ):
            self._has_left.clear()
            await self._has_left.wait()
        self._num_inputs += 1
        self._num_tokens += num_tokens

    def leave(self, num_tokens: int) -> None:
        """An input is done."""
        self._num_inputs -= 1
        self._num_tokens -= num_tokens
        self._has_left.set()


def _encoded(wanted: EmbeddingJob, outputs: Sequence[RequestOutput]) -> bytes:
    """The reply as JSON. Vector by vector, as Python's numbers take much more memory than text."""
    written = [
        msgspec.Raw(_encoder.encode(Embedding(index=index, embedding=_shown(wanted, output))))
        for index, output in enumerate(outputs)
    ]
    count = sum(len(output.prompt_token_ids) for output in outputs)
    return _encoder.encode(
        EmbeddingReply(
            data=cast(list[Embedding], written),
            model=wanted.job.model,
            usage=EmbeddingUsage(prompt_tokens=count, total_tokens=count),
        )
    )


def _shown(wanted: EmbeddingJob, output: RequestOutput) -> list[float] | str:
    data = output.embedding
    assert data is not None, "a request for an embedding got none"
    if wanted.as_base64:
        return base64.b64encode(data).decode()
    return list(struct.unpack(f"<{len(data) // 4}f", data))


ROUTE = GenerationRoute(
    OpenApiEntry(
        method="post",
        path="/v1/embeddings",
        summary="Texts to vectors.",
        rules=(
            *(route_rules.MODEL, route_rules.VOCABULARY, route_rules.PRIORITY),
            "Each `input` has at least one token and fits the model's context and the KV cache.",
            "`dimensions` is at most the model's hidden size.",
        ),
        example={"input": ["red shoes", "blue shoes"], "dimensions": 3},
        body=EmbeddingRequest,
        struct_rules=(EMBEDDING_RULES,),
        reply=EmbeddingReply,
        errors=RUN_ERRORS,
    ),
    prepare,
    answer,
)
