"""One job's answer on the wire: whole, or as server-sent events.

Until the first item is there, a failure still has its own status; after it, the only way to tell
is an error event, and the missing `[DONE]` keeps a cut answer from looking like a short one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Protocol

import msgspec
from starlette.types import Send

from quire.core.request_output import RequestOutput
from quire.server.admission.drain import cut_error
from quire.server.admission.request_gate import RequestContext
from quire.server.api.common.generation_job import Job
from quire.server.api.common.job_runner import gather, run
from quire.server.api.common.usage import Usage, UsageCounter
from quire.server.engine_protocol import GenerateProtocol
from quire.server.http.deadline import Deadline
from quire.server.http.http_errors import ErrorChunk, ErrorReply, describe, send_json

DONE = b"data: [DONE]\n\n"

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # asks a proxy in between to pass each event on at once
]

_encoder = msgspec.json.Encoder()


class Dialect(Protocol):
    """How a route words its answers."""

    job: Job

    def reply(self, results: Sequence[RequestOutput], usage: Usage) -> msgspec.Struct:
        """The whole answer."""

    def chunks(self, place: int, item: RequestOutput, /) -> Iterable[msgspec.Struct]:
        """A stream's next chunks, made of what is new of the prompt with index `place`."""

    def ending(self, usage: Usage) -> Iterable[msgspec.Struct]:
        """A complete stream's last chunks."""

    def failure(self, reply: ErrorReply) -> msgspec.Struct:
        """A broken stream's last chunk."""

    @property
    def last_words(self) -> bytes:
        """What follows the last chunk of a complete stream."""


class OpenAIDialect:
    """How streams end in OpenAI's two older APIs."""

    last_words = DONE

    def failure(self, reply: ErrorReply) -> msgspec.Struct:
        """The error object, in the place of a chunk."""
        return ErrorChunk(reply.error)


async def answer(dialect: Dialect, visit: RequestContext, send: Send) -> None:
    """Run a job and send its answer. Raises only while nothing has been sent."""
    engine = visit.begin(dialect.job)
    if dialect.job.stream:
        record = visit.record
        stream = events(dialect, engine, record.usage)

        def failed(error: Exception) -> bytes:
            reply = describe(error, record.request_id)
            record.error_code = reply.error.code
            return _event(dialect.failure(reply))

        await _send_events(stream, send, failed, visit.deadline)
        return
    usage = visit.record.usage
    async with visit.deadline.kept():
        results = await gather(dialect.job, engine, usage)
    await send_json(send, 200, _encoder.encode(dialect.reply(results, usage.total())))


async def events(
    dialect: Dialect, engine: GenerateProtocol, usage: UsageCounter
) -> AsyncGenerator[bytes, None]:
    """Server-sent events; all that one engine step brought come together."""
    async with aclosing(run(dialect.job, engine)) as news:
        async for place, item in news:
            usage.add(place, item)
            if data := b"".join([_event(chunk) for chunk in dialect.chunks(place, item)]):
                yield data
    yield b"".join(map(_event, dialect.ending(usage.total()))) + dialect.last_words


async def _send_events(
    stream: AsyncGenerator[bytes, None],
    send: Send,
    failed: Callable[[Exception], bytes],
    deadline: Deadline,
) -> None:
    async with aclosing(stream):
        async with deadline.kept():
            first = await anext(stream)
        await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        await _send_part(send, first)
        try:
            async with deadline.kept():
                async for data in stream:
                    await _send_part(send, data)
        except asyncio.CancelledError as cancelled:
            await _send_part(send, failed(cut_error(cancelled)))
        except Exception as error:  # the status is sent; the stream itself has to tell
            await _send_part(send, failed(error))
        await send({"type": "http.response.body", "body": b""})


async def _send_part(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


def _event(chunk: msgspec.Struct) -> bytes:
    """One event; chunks that have a tag are events of this name."""
    tag = chunk.__struct_config__.tag
    name = b"" if tag is None else f"event: {tag}\n".encode()
    return name + b"data: " + _encoder.encode(chunk) + b"\n\n"
