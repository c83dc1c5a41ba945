"""Runs a job: all of its prompts at once, joined to one stream or to complete outputs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import TypeVar

from quire.core.request_output import RequestOutput
from quire.engine.frontend.async_engine import is_long
from quire.engine.frontend.input_processor import ContinuationOptions
from quire.server.api.common.generation_job import AdmittedJob
from quire.server.api.common.logprob_bounds import HeldLogprobs
from quire.server.api.common.usage import UsageCounter

T = TypeVar("T")


def run(
    admitted: AdmittedJob, usage: UsageCounter | None = None
) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """Run all prompts at once; yields (prompt index, new output) in the order of arrival.

    Closing the generator aborts whatever still runs. usage: counts what then had not come, of
    answers that come as a whole.
    """
    prompts = admitted.job.prompts
    in_thread = admitted.job.has_many_prompts or (len(prompts) > 1 and is_long(*prompts))
    return merged([_start(admitted, i, usage, in_thread=in_thread) for i in range(len(prompts))])


async def gather(admitted: AdmittedJob, usage: UsageCounter) -> list[RequestOutput]:
    """Run all prompts to their end; one complete output per prompt, in order."""
    job = admitted.job
    complete: dict[int, RequestOutput] = {}
    with job.names:
        held = HeldLogprobs(job.sampling, admitted.hold)
        if len(job.prompts) == 1 and (job.sampling.n == 1 or job.sampling.logprobs is None):
            prompt, sampling, label = job.prompts[0], job.sampling_of(0), f"{job.reply_id}-0"
            options = _options(admitted, 0)
            item = await admitted.engine.complete(
                prompt, sampling, request_id=label, on_abort=partial(usage.add, 0), **options
            )
            if job.prompt_alone:
                _clear_answers(item)
            usage.add(0, item)
            return [item]
        async with aclosing(run(admitted, usage)) as outputs:
            async for index, item in outputs:
                usage.add(index, item)
                held.add(item)
                if index in complete:
                    complete[index].append(item)
                else:
                    complete[index] = item
    return [complete[index] for index in sorted(complete)]


def _start(
    admitted: AdmittedJob, index: int, usage: UsageCounter | None, *, in_thread: bool
) -> AsyncGenerator[RequestOutput, None]:
    job = admitted.job
    outputs = admitted.engine.generate(
        job.prompts[index],
        job.sampling_of(index),
        request_id=f"{job.reply_id}-{index}",
        stream=job.stream,
        in_thread=in_thread,
        on_abort=None if usage is None else partial(usage.add, index),
        **_options(admitted, index),
    )
    return _without_answers(outputs) if job.prompt_alone else outputs


def _options(admitted: AdmittedJob, index: int) -> ContinuationOptions:
    job = admitted.job
    field = f"{job.prompt_field}[{index}]" if len(job.prompts) > 1 else job.prompt_field
    return {
        "caller": admitted.caller,
        "prompt_field": field,
        "encoding": job.encoding,
        "priority": job.priority,
        "cache_salt": admitted.cache_salt,
        "queue_timeout": admitted.queue_timeout,
        "cut_to_context": job.cut_to_context,
        "stop_when": job.stop_when,
        "report_progress": job.reports_progress,
    }


async def _without_answers(
    outputs: AsyncGenerator[RequestOutput, None],
) -> AsyncGenerator[RequestOutput, None]:
    async with aclosing(outputs):
        async for item in outputs:
            _clear_answers(item)
            yield item


def _clear_answers(item: RequestOutput) -> None:
    """Remove the sampled token; the prompt and its log probabilities stay."""
    for output in item.outputs:
        output.text, output.token_ids, output.stop_reason = "", [], None
        output.logprobs = None if output.logprobs is None else []
        if output.finish_reason == "stop":
            output.finish_reason = "length"


async def merged(
    streams: Sequence[AsyncGenerator[T, None]],
) -> AsyncGenerator[tuple[int, T], None]:
    """Join generators, each item with its generator's index; closes them all at the end."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as stream:
            async for item in stream:
                yield 0, item
        return
    queue: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue(len(streams))
    pumps = [
        asyncio.create_task(_pump(index, stream, queue)) for index, stream in enumerate(streams)
    ]
    try:
        running = len(pumps)
        while running:
            match await queue.get():
                case None:
                    running -= 1
                case Exception() as error:
                    try:
                        raise error
                    finally:
                        del error  # else it, its traceback and this frame would be a cycle
                case outputs:
                    yield outputs
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        while not queue.empty():  # a further error there would be in a cycle with its pump
            queue.get_nowait()


async def _pump(
    index: int,
    stream: AsyncGenerator[T, None],
    queue: asyncio.Queue[tuple[int, T] | Exception | None],
) -> None:
    try:
        async with aclosing(stream):
            async for item in stream:
                await queue.put((index, item))
    except Exception as error:  # handed to the reader, who raises it
        await queue.put(error)
    else:
        await queue.put(None)
