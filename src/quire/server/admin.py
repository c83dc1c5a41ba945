"""The admin endpoints: an application of its own, for a listener of its own, off by default.

Nothing here is reachable on the public port. What would harm others when anybody may ask for it
belongs here.
"""

from __future__ import annotations

import asyncio
import math
import time

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.core.messages import EngineStats
from quire.engine.control import ModelState
from quire.errors import InvalidRequestError
from quire.server import body
from quire.server.application import Application
from quire.server.envelope import Envelope
from quire.server.http_errors import HttpError
from quire.server.loading import Loader
from quire.server.served import Entry
from quire.server.settings import ServerSettings

MAX_BODY_BYTES = 4096


class AdmissionStats(msgspec.Struct):
    """What this server process has let in, and what it may."""

    num_answers: int
    num_waiting: int
    num_prompt_tokens: int
    num_refused: int
    max_answers: int


class AdminStats(msgspec.Struct):
    """All that is counted of one model. num_tasks: asyncio tasks of this server process."""

    engine: EngineStats
    admission: AdmissionStats
    num_tasks: int


class ModelStatus(msgspec.Struct, kw_only=True):
    """One model. num_bytes: what it takes while it is loaded. failure: of the latest loading.

    idle_seconds: since it had work; None if it never had. running, waiting: its requests in the
    engine; waiting_for_load: those of this process that it is being loaded for.
    """

    name: str
    state: ModelState
    at_start: bool
    num_bytes: int | None
    idle_seconds: float | None
    running: int
    waiting: int
    waiting_for_load: int
    failure: str | None


class ModelStatuses(msgspec.Struct):
    """All models. num_bytes: of the loaded ones; limit_bytes: what those may take together."""

    models: list[ModelStatus]
    num_bytes: int
    limit_bytes: int | None


class ModelRequest(msgspec.Struct, kw_only=True):
    """Which model to load or unload. grace: seconds that its requests have to end."""

    model: str
    grace: float | None = None


_decoder = msgspec.json.Decoder(ModelRequest)


def build_admin_app(loader: Loader, settings: ServerSettings) -> Starlette:
    """Make the ASGI application; every path of it asks for the admin key, if there is one."""
    endpoints = _Endpoints(loader, settings)
    routes = [
        Route("/stats", endpoints.stats),
        Route("/reset_prefix_cache", endpoints.reset_prefix_cache, methods=["POST"]),
        Route("/admin/models", endpoints.models),
        Route("/admin/models/load", endpoints.load, methods=["POST"]),
        Route("/admin/models/unload", endpoints.unload, methods=["POST"]),
    ]
    return Application(routes, lambda inner: Envelope(inner, keys=settings.admin_keys))


class _Endpoints:
    def __init__(self, loader: Loader, settings: ServerSettings) -> None:
        self._loader = loader
        self._models = loader.models
        self._settings = settings

    async def stats(self, request: Request) -> Response:
        served = self._models.find(request.query_params.get("model"))
        await served.engine.view()  # brings the figures of now; this process may have had no news
        found = served.admission
        admission = AdmissionStats(
            num_answers=found.num_answers,
            num_waiting=found.num_waiting,
            num_prompt_tokens=found.num_prompt_tokens,
            num_refused=found.num_refused,
            max_answers=found.capacity.max_running + found.capacity.max_waiting,
        )
        tasks = len(asyncio.all_tasks())
        return _json(AdminStats(served.engine.stats, admission, tasks))

    async def reset_prefix_cache(self, _request: Request) -> Response:
        for served in self._models.loaded():
            await served.engine.reset_prefix_cache()
        return _json({"status": "ok"})

    async def models(self, _request: Request) -> Response:
        await asyncio.gather(*(served.engine.view() for served in self._models.loaded()))
        statuses = [_status(entry) for entry in self._models.entries()]
        loaded = sum(s.num_bytes or 0 for s in statuses if s.state != "unloaded")
        return _json(ModelStatuses(statuses, loaded, self._settings.model_memory_bytes))

    async def load(self, request: Request) -> Response:
        """Answers once requests can come. Raises ModelNotLoadedError."""
        asked, entry = await self._asked(request)
        if asked.grace is not None:
            raise _wrong("grace", "it belongs to unloading; remove it")
        await self._loader.load(entry.name, self._settings.model_load_timeout)
        return _json(_status(entry))

    async def unload(self, request: Request) -> Response:
        """Answers once the engine has ended."""
        asked, entry = await self._asked(request)
        if entry.condition.state == "loading":
            text = f"model: {entry.name} is being loaded; unload it when it is there"
            raise HttpError(409, text, code="model_is_loading")
        if entry.condition.state != "unloaded":
            grace = self._settings.shutdown_timeout if asked.grace is None else asked.grace
            await self._loader.unload(entry.name, grace)
        return _json(_status(entry))

    async def _asked(self, request: Request) -> tuple[ModelRequest, Entry]:
        """Raises InvalidRequestError, ModelNotFoundError."""
        data = await body.read_body(request.scope, request.receive, MAX_BODY_BYTES)
        asked = body.decode(data, _decoder)
        body.check_names(body.read_names(data), ModelRequest.__struct_fields__, {})
        if asked.grace is not None and not 0.0 <= asked.grace < math.inf:
            raise _wrong("grace", "give seconds, 0 or more")
        return asked, self._models.entry(asked.model)


def _status(entry: Entry) -> ModelStatus:
    found, engine = entry.condition, None if entry.served is None else entry.served.engine
    stats = None if engine is None or found.state == "unloaded" else engine.stats
    last_work = 0.0 if engine is None else engine.last_work
    return ModelStatus(
        name=found.name,
        state=found.state,
        at_start=found.at_start,
        num_bytes=found.num_bytes,
        idle_seconds=round(time.monotonic() - last_work, 1) if last_work else None,
        running=0 if stats is None else stats.num_running,
        waiting=0 if stats is None else stats.num_waiting,
        waiting_for_load=entry.num_waiting,
        failure=found.failure or None,
    )


def _wrong(field: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"{field}: {problem}", param=field, code="invalid_value")


def _json(content: object) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")
