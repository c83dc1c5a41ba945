"""Responses with `background`: stored at once, answered while no client waits, then replaced.

The request stays admitted while it runs, as if its client were there: it counts in the queue, has
its deadline, and a server that drains waits for it. Any API process may read or cancel it, as its
state is in the ResponseStore: the process that runs it looks there whether it was ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

import msgspec
from starlette.types import Send

from quire.core.request_output import RequestOutput
from quire.server.api.common.job_runner import gather
from quire.server.api.common.request_gate import RequestContext
from quire.server.api.common.streaming import ReplyFormatter
from quire.server.api.common.usage import Usage
from quire.server.api.openai.response_store import ResponseStore
from quire.server.http.http_errors import describe, send_json

_POLL_SECONDS = 0.25  # until a cancelled response stops


class BackgroundFormatter(ReplyFormatter, Protocol):
    """A ReplyFormatter whose reply may be stored in other states, too."""

    def keep_started(self, status: str) -> bytes:
        """Store the response without an answer; returns it as JSON. Raises OverloadedError."""

    def keep_failed(self, code: str | None, message: str) -> None:
        """Store why there is no answer."""


async def answer_in_background(
    formatter: BackgroundFormatter, store: ResponseStore, context: RequestContext, send: Send
) -> None:
    """Send the queued response, then run it. Raises only while nothing has been sent."""
    admitted = context.start(formatter.job)
    queued = await asyncio.to_thread(formatter.keep_started, "queued")
    context.outlive_client()
    await send_json(send, 200, queued)
    await asyncio.to_thread(formatter.keep_started, "in_progress")
    response_id = formatter.job.reply_id
    try:
        async with context.deadline.enforced():
            work = gather(admitted, context.usage)
            results = await _unless_ended(work, store, response_id, context.tenant)
        if results is not None:
            await asyncio.to_thread(_keep, formatter, results, context.usage.total())
    except Exception as error:  # there is no client to send it to
        reply = describe(error, context.record.request_id).error
        context.record.error_code = reply.code
        await asyncio.to_thread(formatter.keep_failed, reply.code, reply.message)
    except asyncio.CancelledError:
        formatter.keep_failed("server_error", "the server was stopped; send the request again")
        raise


def _keep(formatter: ReplyFormatter, results: Sequence[RequestOutput], usage: Usage) -> None:
    formatter.reply(results, usage)


async def _unless_ended(
    work: Coroutine[Any, Any, list[RequestOutput]],
    store: ResponseStore,
    response_id: str,
    tenant: str,
) -> list[RequestOutput] | None:
    """The result of `work`; None, with it aborted, once the response was cancelled or deleted."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=_POLL_SECONDS))[0]:
            if not await asyncio.to_thread(store.is_running, response_id, tenant):
                return None
        return task.result()
    finally:
        task.cancel()


def cancelled(reply: bytes) -> bytes:
    """The JSON of a response, cancelled."""
    fields: dict[str, Any] = msgspec.json.decode(reply)
    return msgspec.json.encode({**fields, "status": "cancelled"})


def failed(reply: bytes) -> bytes:
    """The JSON of a response whose process has ended."""
    fields: dict[str, Any] = msgspec.json.decode(reply)
    error = {"code": "server_error", "message": "its server process ended; send it again"}
    return msgspec.json.encode({**fields, "status": "failed", "error": error})
