"""MetricsPage: the route of `GET /metrics`. `expose` makes its text."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from quire.server.http.openapi_entry import ApiRoute, OpenApiEntry
from quire.server.model_registry import ModelRegistry
from quire.server.ops.server_metrics import Metrics


class MetricsPage:
    """The endpoint that is scraped. gpu_hour_cost: cost of an hour of this server."""

    def __init__(
        self, metrics: Metrics, models: ModelRegistry, gpu_hour_cost: float | None
    ) -> None:
        self._metrics = metrics
        self._models = models
        self._gpu_hour_cost = gpu_hour_cost

    @property
    def route(self) -> ApiRoute:
        """The route of /metrics."""
        entry = OpenApiEntry(path="/metrics", summary="Metrics for Prometheus.", media="text/plain")
        return ApiRoute(self.answer, entry)

    async def answer(self, request: Request) -> Response:
        """The metrics, summed over all processes."""
        from quire.server.ops.prometheus_page import expose  # brings prometheus_client: 20 ms

        accept = request.headers.get("accept", "")
        statuses = [entry.status for entry in self._models.entries()]
        # This process writes its file first, so that another process, if scraped next, reports no
        # smaller counts of it: Prometheus would take them for a restart.
        self._metrics.share()
        total = self._metrics.total()
        content, media_type = expose(total, self._gpu_hour_cost, accept, statuses)
        started = time.time() - (time.monotonic() - total.started)
        headers = {
            "content-type": media_type,
            "cache-control": "no-store",
            "process-start-time-unix": str(int(started)),  # as llama.cpp's server says it
        }
        return Response(content, headers=headers)
