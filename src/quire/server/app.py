"""The routes. Owns which path leads where; how requests are read and answered is next door."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from quire.errors import QuireError
from quire.server import chat, completions, messages, responses
from quire.server.admin import build_admin_app
from quire.server.body import read_body
from quire.server.drain import Drain, DrainGate
from quire.server.engine_protocol import EngineProtocol
from quire.server.envelope import OPEN_PATHS, Envelope
from quire.server.exposition import MetricsPage
from quire.server.health import Health
from quire.server.http_errors import on_error, send_json
from quire.server.live import Live
from quire.server.models import Models
from quire.server.observer import Observer
from quire.server.openapi import OpenApi
from quire.server.page import Page
from quire.server.parsing.choose import AnswerFormats, choose_formats
from quire.server.reception import Reception, Visit
from quire.server.settings import ServerSettings
from quire.server.streaming import Dialect, answer, unless_disconnected
from quire.server.tokenize import detokenize, tokenize

T = TypeVar("T")
Prepare = Callable[[bytes, EngineProtocol], Awaitable[Dialect]]
Look = Callable[[bytes, EngineProtocol, AnswerFormats], msgspec.Struct]

# Larger bodies are worked on beside the event loop, so that they hold nobody up.
IN_THREAD_BYTES = 4096


def build_app(
    engine: EngineProtocol, settings: ServerSettings, metrics_folder: Path | None = None
) -> Starlette:
    """Make the ASGI application; it closes the engine when it shuts down.

    metrics_folder: a private folder where the server's processes share their figures.
    """

    drain, observer = Drain(), Observer(settings, metrics_folder)
    observer.metrics.add_engine(engine)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with observer.running():
            yield
            await engine.close()

    page = Page()
    formats = _formats(engine, settings)
    chat_prepare = partial(chat.prepare, formats=formats)
    reception, limit = Reception(engine, settings), settings.max_body_bytes

    def beside(prepare: Callable[[bytes, EngineProtocol, AnswerFormats], Dialect]) -> Prepare:
        return lambda body, engine: _beside_loop(lambda: prepare(body, engine, formats), body)

    def look(path: str, answer: Look) -> Route:
        work = _Look(lambda body: answer(body, engine, formats), limit)
        return Route(path, work, methods=["POST"])

    routes = [
        _generation("/v1/completions", completions.prepare, engine, reception, limit),
        _generation("/v1/chat/completions", chat_prepare, engine, reception, limit),
        _generation("/v1/responses", beside(responses.prepare), engine, reception, limit),
        _generation("/v1/messages", beside(messages.prepare), engine, reception, limit),
        look("/v1/messages/count_tokens", messages.count_tokens),
        look("/tokenize", tokenize),
        look("/detokenize", detokenize),
        *Models(engine).routes,
        *Health(engine, drain, settings.engine_hang_timeout).routes,
        Route("/live", Live(engine, observer.metrics).answer),
        Route("/metrics", MetricsPage(observer.metrics, settings.gpu_hour_cost).answer),
        Route("/openapi.json", OpenApi().answer),
        *page.routes,
    ]
    observer.know_endpoints(routes)
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(
                Envelope,
                keys=settings.keys,
                open_paths=OPEN_PATHS | page.paths,
                on_end=observer.note_end,
            ),
            Middleware(DrainGate, drain=drain, open_paths=OPEN_PATHS),
        ],
        exception_handlers={HTTPException: on_error, QuireError: on_error},
        lifespan=lifespan,
    )
    app.state.drain, app.state.reception = drain, reception
    app.state.admin = build_admin_app(engine, reception.admission, settings)
    app.router.redirect_slashes = False  # a redirect would be built from the client's Host header
    return app


def _formats(engine: EngineProtocol, settings: ServerSettings) -> AnswerFormats:
    return choose_formats(
        engine.tokenizer.chat_template_text,
        engine.tokenizer.chat_variables,
        tools=settings.tool_call_parser,
        reasoning=settings.reasoning_parser,
    )


def _generation(
    path: str, prepare: Prepare, engine: EngineProtocol, reception: Reception, limit: int
) -> Route:
    return Route(path, _Generation(prepare, engine, reception, limit), methods=["POST"])


class _Generation:
    """A route that runs the model, as an ASGI application of its own."""

    def __init__(
        self, prepare: Prepare, engine: EngineProtocol, reception: Reception, limit: int
    ) -> None:
        self._prepare = prepare
        self._engine = engine
        self._reception = reception
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; whatever it started is aborted when the client leaves."""
        with self._reception.visit(scope) as visit:
            try:
                body = await read_body(scope, receive, self._limit)
            except ClientDisconnect:
                return
            await unless_disconnected(receive, self._answer(body, send, visit))

    async def _answer(self, body: bytes, send: Send, visit: Visit) -> None:
        dialect = await self._prepare(body, self._engine)
        await answer(dialect, visit, send)


class _Look:
    """A route that looks into a body without running the model, as an ASGI application."""

    def __init__(self, answer: Callable[[bytes], msgspec.Struct], limit: int) -> None:
        self._answer = answer
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        try:
            body = await read_body(scope, receive, self._limit)
        except ClientDisconnect:
            return
        reply = await _beside_loop(lambda: msgspec.json.encode(self._answer(body)), body)
        await send_json(send, 200, reply)


async def _beside_loop(work: Callable[[], T], body: bytes) -> T:
    return await asyncio.to_thread(work) if len(body) > IN_THREAD_BYTES else work()
