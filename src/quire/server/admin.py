"""The admin endpoints: an application of its own, for a listener of its own, off by default.

Nothing here is reachable on the public port. What would harm others when anybody may ask for it
belongs here.
"""

from __future__ import annotations

import asyncio

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.core.messages import EngineStats
from quire.server.application import Application
from quire.server.envelope import Envelope
from quire.server.served import ServedModels
from quire.server.settings import ServerSettings


class AdmissionStats(msgspec.Struct):
    """What this server process has let in, and what it may."""

    num_answers: int
    num_waiting: int
    num_prompt_tokens: int
    num_refused: int
    max_answers: int


class AdminStats(msgspec.Struct):
    """All that is counted. num_tasks: asyncio tasks of this server process."""

    engine: EngineStats
    admission: AdmissionStats
    num_tasks: int


def build_admin_app(models: ServedModels, settings: ServerSettings) -> Starlette:
    """Make the ASGI application; every path of it asks for the admin key, if there is one."""
    endpoints = _Endpoints(models)
    routes = [
        Route("/stats", endpoints.stats),
        Route("/reset_prefix_cache", endpoints.reset_prefix_cache, methods=["POST"]),
    ]
    return Application(routes, lambda inner: Envelope(inner, keys=settings.admin_keys))


class _Endpoints:
    def __init__(self, models: ServedModels) -> None:
        self._models = models

    async def stats(self, request: Request) -> Response:
        served = self._models.find(request.query_params.get("model"))
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
        for served in self._models.all():
            await served.engine.reset_prefix_cache()
        return _json({"status": "ok"})


def _json(content: object) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")
