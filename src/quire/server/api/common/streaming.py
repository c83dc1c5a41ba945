"""Sends one job's answer: as one JSON response, or as a stream of server-sent events or of lines.

Until the first event, a failure still gets its own HTTP status. After it, a failure is an error
event, and the missing `[DONE]` shows that the answer is cut and not merely short.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from functools import partial

import msgspec
from msgspec import UNSET
from starlette.types import Send

from quire.core.request_output import RequestOutput
from quire.server.admission.drain import cut_error
from quire.server.api.common.generation_job import AdmittedJob, Job, ReplyFormatter
from quire.server.api.common.job_runner import gather, run
from quire.server.api.common.load_report import load_headers
from quire.server.api.common.logprob_bounds import has_many_logprobs
from quire.server.api.common.logprob_formats import num_shown
from quire.server.api.common.request_gate import RequestContext
from quire.server.api.common.timings import set_timings, timed
from quire.server.api.common.usage import UsageCounter
from quire.server.http.deadline import Deadline
from quire.server.http.http_errors import ErrorChunk, ErrorReply, describe, send_complete
from quire.tokenizer.tokenizer import Tokenizer

DONE = b"data: [DONE]\n\n"

_encoder = msgspec.json.Encoder()


class Framing(msgspec.Struct, frozen=True):
    """Conversion of a stream's chunks to bytes. encode: from one chunk to its bytes."""

    media_type: bytes
    encode: Callable[[msgspec.Struct], bytes]

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers of the response."""
        return [
            (b"content-type", self.media_type),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),  # asks a reverse proxy to pass each event on at once
        ]


def _event(chunk: msgspec.Struct) -> bytes:
    """One of the server-sent events. Chunks whose struct has a tag are events of this name."""
    tag = chunk.__struct_config__.tag
    name = b"" if tag is None else f"event: {tag}\n".encode()
    return name + b"data: " + _encoder.encode(chunk) + b"\n\n"


EVENTS = Framing(b"text/event-stream; charset=utf-8", _event)  # server-sent events
LINES = Framing(b"application/x-ndjson", lambda chunk: _encoder.encode(chunk) + b"\n")  # of JSON


class OpenAIReplyFormatter(ReplyFormatter):
    """The base of ReplyFormatters of OpenAI's two older APIs: end marker, errors, and settings."""

    end_marker = DONE

    def __init__(self, job: Job, tokenizer: Tokenizer) -> None:
        self.job = job
        self._tokenizer = tokenizer
        self._num_logprobs = num_shown(job.sampling)
        self._spells_ids = job.spells_token_ids

    def failure(self, reply: ErrorReply) -> msgspec.Struct:
        """The error object in place of a chunk."""
        return ErrorChunk(reply.error)


async def answer(
    formatter: ReplyFormatter, context: RequestContext, send: Send, framing: Framing = EVENTS
) -> None:
    """Run a job and send its answer. Raises only while nothing has been sent."""
    admitted = context.start(formatter.job)
    if formatter.job.stream:
        record, formatter = context.record, timed(formatter)
        stream = events(formatter, admitted, context.usage, framing.encode)

        def failed(error: Exception) -> bytes:
            reply = describe(error, record.request_id)
            record.error_code = reply.error.code
            return framing.encode(formatter.failure(reply))

        await _send_events(stream, send, framing.headers, failed, context.deadline)
        return
    usage = context.usage
    async with context.deadline.enforced():
        results = await gather(admitted, usage)

    job = formatter.job

    def reply() -> bytes:
        whole = formatter.reply(results, usage.total())
        set_timings(whole, job, results)
        return _encoder.encode(whole)

    # what stores the answer, or makes a long one, must not block the event loop
    in_thread = job.is_stored or job.has_many_prompts or has_many_logprobs(*results)
    body = await asyncio.to_thread(reply) if in_thread else reply()
    await send_complete(send, 200, body, load_headers(context.scope, admitted.engine))


async def events(
    formatter: ReplyFormatter,
    admitted: AdmittedJob,
    usage: UsageCounter,
    encode: Callable[[msgspec.Struct], bytes] = EVENTS.encode,
) -> AsyncGenerator[bytes, None]:
    """The encoded chunks; all that come from one engine step are one item."""
    with admitted.job.names:
        async with aclosing(run(admitted)) as outputs:
            async for index, output in outputs:
                part = partial(_encoded, formatter, index, output, usage, encode)
                if data := await asyncio.to_thread(part) if has_many_logprobs(output) else part():
                    yield data

    def ending() -> bytes:
        return b"".join(map(encode, formatter.ending(usage.total()))) + formatter.end_marker

    yield await asyncio.to_thread(ending) if formatter.job.is_stored else ending()


def _encoded(
    formatter: ReplyFormatter,
    index: int,
    output: RequestOutput,
    usage: UsageCounter,
    encode: Callable[[msgspec.Struct], bytes],
) -> bytes:
    """The chunks of one output."""
    if formatter.job.continuous_usage:
        chunks = _counted_chunks(formatter, index, output, usage)
    else:
        usage.add(index, output)
        chunks = formatter.chunks(index, output)
    return b"".join([encode(chunk) for chunk in chunks])


def _counted_chunks(
    formatter: ReplyFormatter, index: int, output: RequestOutput, usage: UsageCounter
) -> Iterable[msgspec.Struct]:
    """Chunks of OpenAI's older APIs with the token counts so far, which grow answer by answer.

    A chunk that only gives an answer's role precedes its tokens.
    """
    for position, answer_part in enumerate(output.outputs):
        progress, num_new = () if position else output.progress, len(answer_part.token_ids)
        part = msgspec.structs.replace(output, outputs=[answer_part], progress=progress)
        usage.add(index, part)
        before, now = usage.total(), usage.total()
        before.completion_tokens -= num_new
        before.total_tokens -= num_new
        for chunk in formatter.chunks(index, part):
            yield msgspec.structs.replace(chunk, usage=before if _gives_role(chunk) else now)


def _gives_role(chunk: msgspec.Struct) -> bool:
    choices = getattr(chunk, "choices", ())
    return any(getattr(getattr(c, "delta", None), "role", UNSET) is not UNSET for c in choices)


async def _send_events(
    stream: AsyncGenerator[bytes, None],
    send: Send,
    headers: list[tuple[bytes, bytes]],
    failed: Callable[[Exception], bytes],
    deadline: Deadline,
) -> None:
    async with aclosing(stream):
        async with deadline.enforced():
            first = await anext(stream)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await _send_part(send, first)
        try:
            async with deadline.enforced():
                async for data in stream:
                    await _send_part(send, data)
        except asyncio.CancelledError as cancelled:
            await _send_part(send, failed(cut_error(cancelled)))
        except Exception as error:  # the status is sent already, so the stream reports it
            await _send_part(send, failed(error))
        await send({"type": "http.response.body", "body": b""})


async def _send_part(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})
