"""The routes. Owns which path leads where; how requests are read and answered is next door."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from quire.errors import ModelNotLoadedError
from quire.server.admission.drain import Drain, DrainGate
from quire.server.admission.request_gate import RequestContext, RequestGate
from quire.server.api.anthropic import anthropic_messages
from quire.server.api.common.micro_batch import MicroBatch, Steps, at_once
from quire.server.api.common.streaming import answer
from quire.server.api.openai import chat, completions, embeddings, responses
from quire.server.api.openai.models_route import Models
from quire.server.api.openai.tokenize import detokenize, tokenize
from quire.server.engine_protocol import EngineProtocol
from quire.server.http.application import Application
from quire.server.http.cross_origin import CrossOrigin
from quire.server.http.disconnect import unless_disconnected
from quire.server.http.envelope import OPEN_PATHS, Envelope
from quire.server.http.http_errors import send_json
from quire.server.http.request_reader import read_body
from quire.server.model_loading import Loader
from quire.server.model_registry import ModelRegistry
from quire.server.ops.admin import build_admin_app
from quire.server.ops.health import Health
from quire.server.ops.live_view import Live
from quire.server.ops.openapi import OpenApi
from quire.server.ops.openapi_operations import OPERATIONS
from quire.server.ops.prometheus_page import MetricsPage
from quire.server.ops.request_observer import Observer
from quire.server.ops.web_page import Page
from quire.server.settings import ServerSettings

T = TypeVar("T")
Prepare = Callable[[bytes, ModelRegistry], Steps[T]]
Answer = Callable[[T, RequestContext, Send], Awaitable[None]]
Look = Callable[[bytes, ModelRegistry], msgspec.Struct]

# Larger bodies are worked on beside the event loop, so that they hold nobody up.
IN_THREAD_BYTES = 4096
# Lists of token ids are read faster than texts are encoded.
COMPLETION_IN_THREAD_BYTES = 64 << 10


def build_app(
    engine: EngineProtocol, settings: ServerSettings, metrics_folder: Path | None = None
) -> Starlette:
    """Make the ASGI application for one model; see build_server."""
    return build_server(Loader(ModelRegistry.of(engine, settings)), settings, metrics_folder)


def build_server(
    loader: Loader, settings: ServerSettings, metrics_folder: Path | None = None
) -> Starlette:
    """Make the ASGI application; it closes the engines when it shuts down.

    metrics_folder: a private folder where the server's processes share their figures.
    """
    drain, observer, models = Drain(), Observer(settings, metrics_folder), loader.models
    models.follow(observer.metrics.add_engine)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with observer.running():
            yield
            await models.close()

    page = Page()
    routes = [
        *_model_routes(loader, settings),
        *Models(models).routes,
        *Health(models, drain, settings.engine_hang_timeout).routes,
        Route("/live", Live(models, observer.metrics).answer),
        Route("/metrics", MetricsPage(observer.metrics, models, settings.gpu_hour_cost).answer),
        Route("/openapi.json", OpenApi(OPERATIONS).answer),
        *page.routes,
    ]
    observer.know_endpoints(routes)

    def envelope(inner: ASGIApp) -> ASGIApp:
        enveloped = Envelope(
            DrainGate(inner, drain, OPEN_PATHS),
            keys=settings.keys,
            open_paths=OPEN_PATHS | page.paths,
            on_end=observer.note_end,
        )
        origins = settings.origins
        return CrossOrigin(enveloped, origins) if origins else enveloped

    app = Application(routes, envelope, lifespan)
    app.state.drain, app.state.models = drain, models
    app.state.note_end = observer.note_end
    app.state.admin = build_admin_app(loader, settings)
    return app


def _model_routes(loader: Loader, settings: ServerSettings) -> list[Route]:
    """Those that run a model, and those that tell what it would be given."""
    request_gate = RequestGate(loader, settings)

    def run(
        path: str, prepare: Prepare[T], answer: Answer[T], in_thread: int = IN_THREAD_BYTES
    ) -> Route:
        work = _Run(prepare, answer, in_thread, loader, request_gate, settings)
        return Route(path, work, methods=["POST"])

    def look(path: str, answer: Look) -> Route:
        return Route(path, _Look(answer, loader, request_gate, settings), methods=["POST"])

    return [
        run("/v1/completions", completions.prepare, answer, COMPLETION_IN_THREAD_BYTES),
        run("/v1/chat/completions", chat.prepare, answer),
        run("/v1/responses", responses.prepare, answer),
        run("/v1/messages", anthropic_messages.prepare, answer),
        run("/v1/embeddings", embeddings.prepare, embeddings.answer),
        look("/v1/messages/count_tokens", anthropic_messages.count_tokens),
        look("/tokenize", tokenize),
        look("/detokenize", detokenize),
    ]


class _Run(Generic[T]):
    """A route that runs the model, as an ASGI application of its own.

    in_thread: larger bodies are prepared beside the event loop.
    """

    def __init__(
        self,
        prepare: Prepare[T],
        answer: Answer[T],
        in_thread: int,
        loader: Loader,
        request_gate: RequestGate,
        settings: ServerSettings,
    ) -> None:
        self._prepare = prepare
        self._answer_to = answer
        self._in_thread = in_thread
        self._in_step = MicroBatch()
        self._loader = loader
        self._request_gate = request_gate
        self._limit, self._patience = settings.max_body_bytes, settings.model_load_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; whatever it started is aborted when the client leaves."""
        with self._request_gate.visit(scope) as visit:
            try:
                body = await read_body(scope, receive, self._limit, visit.hold)
            except ClientDisconnect:
                return
            visit.line_up()
            await unless_disconnected(scope, receive, self._answer(body, send, visit))

    async def _answer(self, body: bytes, send: Send, visit: RequestContext) -> None:
        try:
            await self._answer_once(body, send, visit)
        except ModelNotLoadedError as absent:  # nothing has been sent
            visit.deadline.shorten(_timeout_of.decode(body).timeout, "timeout")
            await visit.wait_for(absent.model, self._patience)
            await self._answer_once(body, send, visit)

    async def _answer_once(self, body: bytes, send: Send, visit: RequestContext) -> None:
        steps = self._prepare(body, self._loader.models)
        if len(body) > self._in_thread:
            wanted = await asyncio.to_thread(at_once, steps)
        else:
            wanted = await self._in_step.run(steps)
        await self._answer_to(wanted, visit, send)


class _Timed(msgspec.Struct):
    """The field of a body that bounds how long it waits for a model."""

    timeout: float | None = None


_timeout_of = msgspec.json.Decoder(_Timed)


class _Look:
    """A route that looks into a body without running the model, as an ASGI application."""

    def __init__(
        self, answer: Look, loader: Loader, request_gate: RequestGate, settings: ServerSettings
    ) -> None:
        self._answer = answer
        self._loader = loader
        self._request_gate = request_gate
        self._limit, self._patience = settings.max_body_bytes, settings.model_load_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        with self._request_gate.look(scope) as (deadline, ticket, space):
            try:
                body = await read_body(scope, receive, self._limit, space.hold)
            except ClientDisconnect:
                return
            ticket.charge(1, 0, at=self._request_gate.looks)
            async with deadline.kept():
                try:
                    reply = await self._reply(body)
                except ModelNotLoadedError as absent:
                    await self._loader.load(absent.model, self._patience)
                    reply = await self._reply(body)
            await send_json(send, 200, reply)

    async def _reply(self, body: bytes) -> bytes:
        models = self._loader.models

        def look() -> bytes:
            return msgspec.json.encode(self._answer(body, models))

        return await asyncio.to_thread(look) if len(body) > IN_THREAD_BYTES else look()
