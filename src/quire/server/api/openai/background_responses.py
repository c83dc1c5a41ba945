"""Responses with `background`: stored at once, answered while no client waits, then replaced.

The request stays admitted while it runs, as if its client were there: it counts in the queue, has
its deadline, and a server that drains waits for it. Any API process may read or cancel it, as its
state is in the ResponseStore; the process that runs it learns of that from its BackgroundWatch,
which has one look at the store for all its responses, however many run, and none while none runs.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from starlette.types import Send

from quire.core.request_output import RequestOutput
from quire.errors import OverloadedError
from quire.server.api.common.job_runner import gather
from quire.server.api.common.request_gate import RequestContext
from quire.server.api.common.timings import set_timings
from quire.server.api.openai.response_store import ResponseStore
from quire.server.api.openai.responses_formatter import ResponsesFormatter
from quire.server.api.openai.responses_reply import Response
from quire.server.http.disconnect import outlive_client
from quire.server.http.http_errors import describe, send_complete

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.25  # until a cancelled response stops
_RETRY_SECONDS = 0.25  # until a store that failed is asked again
_KEEP_SECONDS = 60.0  # for how long a store that fails is asked again to keep an answer


class BackgroundWatch:
    """Watches the responses that this process works on."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store
        self._waiting: dict[str, asyncio.Event] = {}  # by the response's id
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def watched(self, response_id: str) -> Iterator[asyncio.Event]:
        """An event that is set once the response was cancelled or deleted."""
        event = self._waiting[response_id] = asyncio.Event()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._look())
        try:
            yield event
        finally:
            del self._waiting[response_id]
            if not self._waiting:
                self._task.cancel()
                self._task = None

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await self._look_once()
            except Exception:  # no response could be cancelled any more
                logger.exception("background responses could not be looked at")

    async def _look_once(self) -> None:
        asked = list(self._waiting.items())  # those stored before the look
        running = await asyncio.to_thread(self._store.running_ids, os.getpid())
        for response_id, event in asked:
            if running is not None and response_id not in running:
                event.set()


async def answer_in_background(
    formatter: ResponsesFormatter, watch: BackgroundWatch, context: RequestContext, send: Send
) -> None:
    """Send the queued response, then run it. Raises only while nothing has been sent."""
    admitted = context.start(formatter.job)
    outlive_client(context.scope)  # before it is stored: else it might stay queued
    queued = await asyncio.to_thread(formatter.keep_started, "queued")
    try:
        await send_complete(send, 200, queued)
        with suppress(OverloadedError):  # a state that is not shown stops no work
            await asyncio.to_thread(formatter.keep_started, "in_progress")
        with watch.watched(formatter.job.reply_id) as ended:
            async with context.deadline.enforced():
                results = await _unless_ended(gather(admitted, context.usage), ended)
        if results is not None:
            usage = context.usage.total()
            response = await asyncio.to_thread(formatter.completed, results, usage)
            set_timings(response, formatter.job, results)
            await _keep(formatter, response)
    except Exception as error:  # there is no client to send it to
        reply = describe(error, context.record.request_id).error
        context.record.error_code = reply.code
        await _keep(formatter, formatter.failed(reply.code, reply.message))
    except asyncio.CancelledError:
        text = "the server was stopped; send the request again"
        with suppress(OverloadedError):  # readers find that the process has ended
            formatter.keep(formatter.failed("server_error", text))
        raise


async def _keep(formatter: ResponsesFormatter, response: Response) -> None:
    """Store how the response ended; where the store fails, again, for _KEEP_SECONDS."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + _KEEP_SECONDS
    while True:
        with suppress(OverloadedError):
            await asyncio.to_thread(formatter.keep, response)
            return
        if clock() >= deadline:
            break
        await asyncio.sleep(_RETRY_SECONDS)
    logger.error("response %s is lost: it could not be stored", response.id)


async def _unless_ended(
    work: Coroutine[Any, Any, list[RequestOutput]], ended: asyncio.Event
) -> list[RequestOutput] | None:
    """The result of `work`; None, with it aborted, once the event is set."""
    task, end = asyncio.ensure_future(work), asyncio.ensure_future(ended.wait())
    try:
        await asyncio.wait({task, end}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        end.cancel()
