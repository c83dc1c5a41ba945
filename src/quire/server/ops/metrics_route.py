"""The route of `GET /metrics`. `expose` makes its text."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from quire.server.http.openapi_entry import ApiRoute, OpenApiEntry
from quire.server.model_registry import ModelRegistry
from quire.server.ops.server_metrics import Metrics


def metrics_route(metrics: Metrics, models: ModelRegistry, gpu_hour_cost: float | None) -> ApiRoute:
    """The route that is scraped. gpu_hour_cost: cost of an hour of this server."""

    async def answer(request: Request) -> Response:
        from quire.server.ops.prometheus_page import expose  # brings prometheus_client: 20 ms

        accept = request.headers.get("accept", "")
        statuses = [entry.status for entry in models.entries()]
        # This process writes its file first, so that another process, if scraped next, reports no
        # smaller counts of it: Prometheus would take them for a restart.
        metrics.share()
        total = metrics.total()
        content, media_type = expose(total, gpu_hour_cost, accept, statuses)
        started = time.time() - (time.monotonic() - total.started)
        headers = {
            "content-type": media_type,
            "cache-control": "no-store",
            "process-start-time-unix": str(int(started)),  # as llama.cpp's server says it
        }
        return Response(content, headers=headers)

    entry = OpenApiEntry("/metrics", "Metrics for Prometheus.", media="text/plain")
    return ApiRoute(answer, entry)
