"""Health checks for orchestrators, and the load for balancers, answered without the engine.

`/health` (and `/ping`): whether the server works or should be killed. `/ready`: whether it should
be sent requests. A server that drains, or whose engine is being restarted, is healthy but not
ready.
"""

from __future__ import annotations

import asyncio
import math

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.engine.frontend.async_engine import AsyncEngine
from quire.server.admission.drain import Drain
from quire.server.http.openapi_entry import ApiRoute, JsonResponse, OpenApiEntry
from quire.server.model_registry import ModelRegistry

RETRY_AFTER = "5"
NOT_STORED = {"cache-control": "no-store"}
SECOND_LOOK = 0.3  # seconds; an engine that works gives a sign of life within 0.1 s


class HealthReply(msgspec.Struct, omit_defaults=True):
    """The reply of a health check. status: ok or unavailable.

    reason: why it is unavailable, or which weight makes answers fail or wrong although it is ok.
    """

    status: str
    reason: str | None = None


class LoadReply(msgspec.Struct):
    """The reply. server_load: answers that run or wait, of all models and API processes."""

    server_load: int


class Health:
    """The endpoints. They need no API key, so they reveal only a short reason.

    hang_timeout: seconds that an engine may give no sign of life; 0: no limit.
    """

    def __init__(self, models: ModelRegistry, drain: Drain, hang_timeout: float) -> None:
        self._hang_timeout = hang_timeout
        self._models = models
        self._drain = drain

    @property
    def routes(self) -> list[ApiRoute]:
        """The routes of all three health checks, and /load in vLLM's format."""
        same = "The same as /health."
        load = OpenApiEntry("/load", "How many answers run or wait.", reply=LoadReply)
        return [
            ApiRoute(self.health, _entry("/health", "Whether the engine makes progress.")),
            ApiRoute(self.health, _entry("/ping", same), _entry("/ping", same, method="post")),
            ApiRoute(self.ready, _entry("/ready", "Whether the server accepts requests.")),
            ApiRoute(self.load, load),
        ]

    async def health(self, _request: Request) -> Response:
        """200 while the engine works or is being restarted, else 503."""
        return _answer(await self._failure(), self._weight_fault())

    async def ready(self, _request: Request) -> Response:
        """200 while requests are accepted, else 503."""
        return _answer(await self._failure() or self._not_ready())

    async def load(self, _request: Request) -> Response:
        """The number of answers."""
        reply = LoadReply(self._models.entrance.in_flight.num_answers)
        return JsonResponse(reply, headers=NOT_STORED.copy())

    async def _failure(self) -> str | None:
        if self._is_silent():  # perhaps all processes were stopped, and it goes on as this one does
            await asyncio.sleep(SECOND_LOOK)
        for engine in self._engines():
            if not engine.is_alive and not engine.is_restarting:
                return "the engine has stopped"
        return "the engine gives no sign of life" if self._is_silent() else None

    def _is_silent(self) -> bool:
        limit = self._hang_timeout or math.inf
        return any(engine.seconds_since_heartbeat > limit for engine in self._engines())

    def _not_ready(self) -> str | None:
        if self._drain.is_draining:
            return "draining"
        for entry in self._models.entries():
            status = entry.status
            is_missing = status.at_start and not entry.is_usable
            is_on_purpose = status.state in ("unloading", "unloaded") and not status.failure
            if is_missing and not is_on_purpose:
                return f"model {entry.name} is {entry.state}"
        is_restarting = any(engine.is_restarting for engine in self._engines())
        return "the engine is being restarted" if is_restarting else None

    def _weight_fault(self) -> str | None:
        """The weight that is not as it was written, or not finite: other requests may work."""
        return next((fault for e in self._engines() if (fault := e.stats.weight_fault)), None)

    def _engines(self) -> list[AsyncEngine]:
        return [model.engine for model in self._models.loaded()]


def _answer(reason: str | None, warning: str | None = None) -> Response:
    body = HealthReply("ok", warning) if reason is None else HealthReply("unavailable", reason)
    status, headers = (200, {}) if reason is None else (503, {"retry-after": RETRY_AFTER})
    return JsonResponse(body, status, headers | NOT_STORED)


def _entry(path: str, summary: str, method: str = "get") -> OpenApiEntry:
    return OpenApiEntry(
        path,
        summary,
        method,
        reply=HealthReply,
        errors=(503,),
        failures={503: HealthReply},
        needs_key=False,
    )
