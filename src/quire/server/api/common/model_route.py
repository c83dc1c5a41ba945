"""Routes that use a model: from an HTTP request to its handler and back.

GenerationRoute runs the model (completions, chat, embeddings ...); LightRoute only reads a body
(token counts ...); model_info_route makes those that describe a model. Each API module declares its
own; app.py connects them to the models.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quire.background import TooLongError, hurry
from quire.errors import ModelNotLoadedError
from quire.server.api.common.micro_batch import MicroBatch, Stages, run_in_slices
from quire.server.api.common.request_gate import RequestContext, RequestGate, caller_of
from quire.server.http.disconnect import unless_disconnected
from quire.server.http.http_errors import send_complete
from quire.server.http.openapi_entry import ApiRoute, JsonResponse, OpenApiEntry
from quire.server.http.request_reader import read_body
from quire.server.model_registry import ModelRegistry, RegisteredModel

R = TypeVar("R")
T = TypeVar("T")

# Larger bodies are prepared in a thread, so that they do not block the event loop.
IN_THREAD_BYTES = 4096


def is_large(body: bytes) -> bool:
    """Whether a body is prepared in a thread."""
    return len(body) > IN_THREAD_BYTES


class LightReply(msgspec.Struct, frozen=True):
    """A reply for which no model has run. no_effect: a sentence for each field that had none."""

    body: msgspec.Struct
    no_effect: Sequence[str] = ()


class GenerationRoute(msgspec.Struct, Generic[T], frozen=True):
    """A route that runs a model.

    prepare: from a body to a job, in stages (micro_batch.py), or to the reply itself where nothing
    is to run; it also gets the request's tenant if needs_tenant. answer: runs the job and sends the
    response. in_thread: whether a body is prepared in a thread.
    """

    entry: OpenApiEntry
    prepare: Callable[..., Stages[T | LightReply]]
    answer: Callable[[T, RequestContext, Send], Awaitable[None]]
    in_thread: Callable[[bytes], bool] = is_large
    needs_tenant: bool = False


class LightRoute(msgspec.Struct, frozen=True):
    """A route that reads a body and a model's tokenizer, and runs no model.

    reply: also gets the request's tenant if needs_tenant. in_thread: whether it runs in a thread.
    """

    entry: OpenApiEntry
    reply: Callable[..., LightReply]
    in_thread: Callable[[bytes], bool] = is_large
    needs_tenant: bool = False


def connect(route: GenerationRoute[Any] | LightRoute, gate: RequestGate) -> ApiRoute:
    """The starlette route that runs the handler."""
    if isinstance(route, LightRoute):
        return ApiRoute(_LightApp(route, gate), route.entry)
    return ApiRoute(_GenerationApp(route, gate), route.entry)


def model_info_route(
    models: ModelRegistry,
    path: str,
    summary: str,
    reply: type[msgspec.Struct],
    describe: Callable[[RegisteredModel], msgspec.Struct],
) -> ApiRoute:
    """The route that describes the model that the query names, or the first.

    describe: makes the `reply`.
    """

    async def answer(request: Request) -> Response:
        return JsonResponse(describe(models.find(request.query_params.get("model"))))

    entry = OpenApiEntry(path, summary, reply=reply, errors=(404, 503), names_model=True)
    return ApiRoute(answer, entry)


class _App(Generic[R]):
    """A route as an ASGI application."""

    def __init__(self, route: R, gate: RequestGate) -> None:
        self._route, self._gate, self._models = route, gate, gate.models
        self._micro_batch = MicroBatch()
        self._max_bytes = gate.settings.max_body_bytes
        self._load_timeout = gate.settings.model_load_timeout


class _GenerationApp(_App[GenerationRoute[T]]):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; if the client disconnects, whatever it started is aborted."""
        with self._gate.admit(scope) as context:
            try:
                body = await read_body(scope, receive, self._max_bytes, context.hold_bytes)
            except ClientDisconnect:
                return
            context.ticket.move(self._models.entrance)  # its body is complete
            await unless_disconnected(scope, receive, self._serve(body, send, context))

    async def _serve(self, body: bytes, send: Send, context: RequestContext) -> None:
        try:
            await self._answer(await self._prepared(body, context), context, send)
            return
        except ModelNotLoadedError as error:  # nothing has been sent
            context.deadline.shorten(_own_timeout(body), "timeout")
            await context.wait_for_model(error.model, self._load_timeout)
        await self._answer(await self._prepared(body, context), context, send)

    async def _answer(self, job: T | LightReply, context: RequestContext, send: Send) -> None:
        if isinstance(job, LightReply):
            context.record.no_effect = job.no_effect
            await send_complete(send, 200, msgspec.json.encode(job.body))
        else:
            await self._route.answer(job, context, send)

    async def _prepared(self, body: bytes, context: RequestContext) -> T | LightReply:
        own = (context.tenant,) if self._route.needs_tenant else ()
        prepare = partial(self._route.prepare, body, self._models, *own)
        if not self._route.in_thread(body):
            try:
                return await self._micro_batch.run(prepare())
            except TooLongError:
                pass
        context.deadline.shorten(_own_timeout(body), "timeout")
        async with context.deadline.enforced():
            return await run_in_slices(prepare(), self._gate.prepare_threads, context.caller)


class _Timeout(msgspec.Struct):
    """The field of a body that bounds how long it waits: for a model, or to be prepared."""

    timeout: Annotated[float, msgspec.Meta(gt=0.0)] | None = None


_timeout_decoder = msgspec.json.Decoder(_Timeout)


def _own_timeout(body: bytes) -> float | None:
    """The timeout of a body that is not checked yet; None for any that is wrong."""
    if b'"timeout"' not in body:  # which is quicker than to skip all other fields
        return None
    try:
        return _timeout_decoder.decode(body).timeout
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class _LightApp(_App[LightRoute]):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller, tenant = caller_of(scope), scope["state"]["tenant"]
        with self._gate.admit_light(scope) as (deadline, ticket, space):
            try:
                body = await read_body(scope, receive, self._max_bytes, space.hold)
            except ClientDisconnect:
                return
            ticket.charge(1, 0, at=self._gate.light_requests)
            try:
                async with deadline.enforced():
                    reply = await self._reply(body, caller, tenant)
            except ModelNotLoadedError as error:  # a load has its own error, see several-models.md
                await self._gate.loader.load(error.model, deadline.within(self._load_timeout))
                async with deadline.enforced():
                    reply = await self._reply(body, caller, tenant)
            scope["state"]["record"].no_effect = reply[1]
            await send_complete(send, 200, reply[0])

    async def _reply(self, body: bytes, caller: str, tenant: str) -> tuple[bytes, Sequence[str]]:
        own = (tenant,) if self._route.needs_tenant else ()

        def reply() -> tuple[bytes, Sequence[str]]:
            found = self._route.reply(body, self._models, *own)
            return msgspec.json.encode(found.body), found.no_effect

        if not self._route.in_thread(body):
            with suppress(TooLongError), hurry():
                return reply()
        return await self._gate.light_threads.run(caller, reply)
