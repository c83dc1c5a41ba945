"""Runs an EmbeddingJob: bounds how many inputs of one request the engine has at a time.

Hidden states become a vector in engine/core/pooler.py.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping, Sequence

import msgspec
from starlette.types import Send

from quire.core.pooling_params import PoolingParams
from quire.core.request_output import RequestTimes
from quire.engine.frontend.prompt_encoding import Prompt
from quire.server.api.common.generation_job import AdmittedJob, Job
from quire.server.api.common.request_gate import RequestContext
from quire.server.api.common.usage import UsageCounter
from quire.server.http.http_errors import send_complete

# Inputs and tokens of one request that the engine has at a time: enough to keep it busy for some
# steps, and no more, because later requests wait behind them.
WINDOW_INPUTS = 256
WINDOW_TOKENS = 8192
_MAX_VECTORS_INLINE = 16  # more vectors than these are encoded in a thread


class EmbeddedInput(msgspec.Struct, frozen=True):
    """One input's vector, float32, little-endian. num_tokens: of the input."""

    vector: bytes
    num_tokens: int
    times: RequestTimes

    @property
    def numbers(self) -> list[float]:
        """The vector as numbers."""
        return list(struct.unpack(f"<{len(self.vector) // 4}f", self.vector))


class EncodedReply(msgspec.Struct, frozen=True):
    """The body of a reply, and headers of its own."""

    body: bytes
    headers: Mapping[str, str] = {}
    media_type: str = "application/json"


EncodeVectors = Callable[[Job, Sequence[EmbeddedInput]], EncodedReply]


class EmbeddingJob(msgspec.Struct, frozen=True):
    """A request ready to run. job: its prompts are token ids. encode: from vectors to the reply."""

    job: Job
    pooling: PoolingParams
    encode: EncodeVectors


async def answer_embedding(request: EmbeddingJob, context: RequestContext, send: Send) -> None:
    """Embed all inputs and send the reply. Raises only while nothing has been sent."""
    job, encode = request.job, request.encode
    most_tokens = max(WINDOW_TOKENS, *map(len, job.prompts))
    admitted = context.start(job, max_answers=WINDOW_INPUTS, max_tokens=most_tokens)
    async with context.deadline.enforced():
        outputs = await _embed_all(admitted, request.pooling, context.usage)
        if len(outputs) <= _MAX_VECTORS_INLINE:
            reply = encode(job, outputs)
        else:
            reply = await asyncio.to_thread(encode, job, outputs)
    await send_complete(send, 200, reply.body, reply.headers, media_type=reply.media_type)


async def _embed_all(
    admitted: AdmittedJob, pooling: PoolingParams, usage: UsageCounter
) -> list[EmbeddedInput]:
    """The vectors of all inputs, in order. A failure, or a cancellation, aborts the others."""
    window, job = _Window(), admitted.job

    async def embed(index: int, prompt: Prompt) -> EmbeddedInput:
        is_done = False
        try:
            output = await admitted.engine.embed(
                prompt,
                pooling,
                request_id=f"{job.reply_id}-{index}",
                encoding=job.encoding,
                priority=job.priority,
                cache_salt=admitted.cache_salt,
                queue_timeout=admitted.queue_timeout,
            )
            usage.add(index, output)
            is_done = True
        finally:
            window.leave(len(prompt), is_done=is_done)
        assert output.embedding is not None, "a request for an embedding got none"
        return EmbeddedInput(output.embedding, len(output.prompt_token_ids), output.times)

    tasks = []
    try:
        for index, prompt in enumerate(job.prompts):
            if not await window.enter(len(prompt)):
                break
            tasks.append(asyncio.create_task(embed(index, prompt)))
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        tasks.clear()  # else a failed one, its error and this frame would be a cycle


class _Window:
    """Bounds what of one request the engine has; one task at a time may wait to enter."""

    def __init__(self) -> None:
        self._num_inputs = self._num_tokens = 0
        self._has_failed = False
        self._input_done = asyncio.Event()

    async def enter(self, num_tokens: int) -> bool:
        """Wait until an input fits; with no other input running, any fits.

        False if one has failed: no more may enter.
        """
        while self._num_inputs and not self._has_failed and not self._has_space(num_tokens):
            self._input_done.clear()
            await self._input_done.wait()
        self._num_inputs += 1
        self._num_tokens += num_tokens
        return not self._has_failed

    def leave(self, num_tokens: int, *, is_done: bool) -> None:
        """Note that an input's embedding has been computed, or that it failed."""
        self._num_inputs -= 1
        self._num_tokens -= num_tokens
        self._has_failed |= not is_done
        self._input_done.set()

    def _has_space(self, num_tokens: int) -> bool:
        return self._num_inputs < WINDOW_INPUTS and self._num_tokens + num_tokens <= WINDOW_TOKENS
