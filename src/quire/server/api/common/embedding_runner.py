"""Runs an EmbeddingJob: bounds how many inputs of one request the engine has at a time.

Hidden states become a vector in engine/core/pooler.py.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from quire.core.pooling_params import PoolingParams
from quire.core.request_output import RequestTimes
from quire.engine.frontend.prompt_encoding import Prompt
from quire.server.api.common.generation_job import AdmittedJob, Job
from quire.server.api.common.request_gate import RequestContext
from quire.server.api.common.usage import UsageCounter

# Inputs and tokens of one request that the engine has at a time: enough to keep it busy for some
# steps, and no more, because later requests wait behind them.
WINDOW_INPUTS = 256
WINDOW_TOKENS = 8192
_MAX_VECTORS_INLINE = 16  # more vectors than these are encoded in a thread

Reply = TypeVar("Reply")


class EmbeddedInput(msgspec.Struct, frozen=True):
    """One input's vector, float32, little-endian. num_tokens: of the input."""

    vector: bytes
    num_tokens: int
    times: RequestTimes

    @property
    def numbers(self) -> list[float]:
        """The vector as numbers."""
        return list(struct.unpack(f"<{len(self.vector) // 4}f", self.vector))


def start_embedding(job: Job, context: RequestContext) -> AdmittedJob:
    """Admit a job whose prompts are embedded."""
    longest = max(map(len, job.prompts))
    return context.start(job, max_answers=WINDOW_INPUTS, max_tokens=max(WINDOW_TOKENS, longest))


async def embed_all(
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


async def encode_vectors(
    encode: Callable[[Sequence[EmbeddedInput]], Reply], outputs: Sequence[EmbeddedInput]
) -> Reply:
    """`encode(outputs)`; in a thread where it would hold up the event loop."""
    if len(outputs) <= _MAX_VECTORS_INLINE:
        return encode(outputs)
    return await asyncio.to_thread(encode, outputs)
