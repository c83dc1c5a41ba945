"""The ASGI application: which routes there are, and the middleware around them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.types import ASGIApp

from quire.engine.frontend.async_engine import AsyncEngine
from quire.server.admission.drain import Drain, DrainGate
from quire.server.api.anthropic import anthropic_messages
from quire.server.api.common.model_route import GenerationRoute, LightRoute, connect
from quire.server.api.common.request_gate import RequestGate
from quire.server.api.llama_cpp import native_completion, props
from quire.server.api.ollama import ollama_chat, ollama_embed, ollama_models
from quire.server.api.ollama.ollama_models import OllamaModels
from quire.server.api.openai import (
    batch_chat,
    chat,
    completions,
    embeddings,
    input_tokens,
    responses,
    scores,
    tokenize,
)
from quire.server.api.openai.invocations import Invocations
from quire.server.api.openai.models_route import ModelsRoutes
from quire.server.api.openai.response_store import ResponseStore
from quire.server.api.openai.stored_responses import StoredResponsesRoutes
from quire.server.http.application import Application
from quire.server.http.cors import with_cors
from quire.server.http.envelope import OPEN_PATHS, Envelope
from quire.server.http.root_path import RootPath
from quire.server.model_loading import ModelLoader
from quire.server.model_registry import ModelRegistry
from quire.server.ops.admin import build_admin_app
from quire.server.ops.health import Health
from quire.server.ops.live_view import live_route
from quire.server.ops.metrics_route import metrics_route
from quire.server.ops.openapi import with_openapi
from quire.server.ops.request_observer import RequestObserver
from quire.server.ops.web_page import DOCS_PATH, WebPage, docs_route
from quire.server.settings import ServerSettings

# The routes that use a model, besides /v1/responses; each is declared beside its handler.
MODEL_ROUTES: tuple[GenerationRoute[Any] | LightRoute, ...] = (
    completions.ROUTE,
    chat.ROUTE,
    batch_chat.ROUTE,
    anthropic_messages.ROUTE,
    embeddings.ROUTE,
    embeddings.POOLING_ROUTE,
    *scores.ROUTES,
    anthropic_messages.COUNT_ROUTE,
    tokenize.TOKENIZE_ROUTE,
    tokenize.DETOKENIZE_ROUTE,
    *native_completion.ROUTES,
    input_tokens.CHAT_ROUTE,
    props.TEMPLATE_ROUTE,
    *ollama_chat.ROUTES,
    ollama_embed.ROUTE,
    ollama_embed.OLDER_ROUTE,
    ollama_models.SHOW_ROUTE,
    ollama_models.PULL_ROUTE,
)


def build_app(
    engine: AsyncEngine, settings: ServerSettings, metrics_folder: Path | None = None
) -> Starlette:
    """Make the ASGI application for one model; see build_server."""
    return build_server(ModelLoader(ModelRegistry.of(engine, settings)), settings, metrics_folder)


def build_server(
    loader: ModelLoader, settings: ServerSettings, metrics_folder: Path | None = None
) -> Starlette:
    """Make the ASGI application; it closes the engines when it shuts down.

    metrics_folder: a private folder through which the server's processes share their metrics.
    """
    drain, observer = Drain(), RequestObserver(settings, metrics_folder)
    models, gate, page = loader.models, RequestGate(loader, settings), WebPage()
    store = ResponseStore(metrics_folder, settings.response_store_bytes, settings.max_body_bytes)
    models.on_engine(observer.metrics.add_engine)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with observer.running():
            yield
            await models.close()
            store.close()

    connected = [connect(route, gate) for route in MODEL_ROUTES]
    apps = {route.path: route.app for route in connected}
    routes = with_openapi(
        [
            *connected,
            connect(responses.route(store), gate),
            connect(input_tokens.responses_route(store), gate),
            *StoredResponsesRoutes(store, gate).routes,
            Invocations(apps, gate).route,
            *ModelsRoutes(models).routes,
            *OllamaModels(models).routes,
            *Health(models, drain, settings.engine_hang_timeout).routes,
            live_route(models, observer.metrics),
            tokenize.tokenizer_info_route(models),
            props.props_route(models),
            metrics_route(observer.metrics, models, settings.gpu_hour_cost),
            *page.routes,
            docs_route(page.assets),
        ],
        settings.root_path or "",
    )
    observer.set_routes(routes)
    open_paths = OPEN_PATHS | page.paths | {DOCS_PATH}
    middleware = partial(_middleware, settings, drain, observer, open_paths)
    app = Application(routes, middleware, lifespan)
    app.state.drain, app.state.models = drain, models
    app.state.note_end = observer.note_end
    app.state.admin = build_admin_app(loader, settings)
    return app


def _middleware(
    settings: ServerSettings,
    drain: Drain,
    observer: RequestObserver,
    open_paths: frozenset[str],
    inner: ASGIApp,
) -> ASGIApp:
    """The routes `inner` with all that requests pass before and after them."""
    enveloped = Envelope(
        DrainGate(inner, drain),
        keys=settings.keys,
        hosts=settings.hosts,
        open_paths=open_paths,
        on_end=observer.note_end,
        probes_have_id=settings.enable_request_id_headers,
    )
    served = with_cors(enveloped, settings.origins) if settings.origins else enveloped
    return served if settings.root_path is None else RootPath(served, settings.root_path)
