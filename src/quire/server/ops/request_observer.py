"""RequestObserver: passes each ended request to metrics, access log and traces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.routing import BaseRoute, Route

from quire.server.http.application import UNVERSIONED
from quire.server.http.request_record import RequestRecord
from quire.server.ops.access_log import log_access
from quire.server.ops.server_metrics import Metrics
from quire.server.ops.tracing import Tracer
from quire.server.settings import ServerSettings

# Requested all the time by orchestrators, by Prometheus and by the web page.
PROBES = frozenset({"/health", "/ping", "/ready", "/metrics", "/live"})


class RequestObserver:
    """Observes the requests of one process. Raises ConfigError if OpenTelemetry is missing."""

    def __init__(self, settings: ServerSettings, metrics_folder: Path | None) -> None:
        self.metrics = Metrics(metrics_folder)
        endpoint = settings.otlp_traces_endpoint
        self._tracer = None if endpoint is None else Tracer.sending_to(endpoint)
        self._logs_access = settings.access_log
        self._ended: list[RequestRecord] = []

    def set_routes(self, routes: Iterable[BaseRoute]) -> None:
        """Set which paths have metric series of their own; paths with a variable share one."""
        known = [route for route in routes if isinstance(route, Route)]
        self.metrics.endpoints = UNVERSIONED.union(r.path for r in known if "{" not in r.path)
        self.metrics.templates = [(r.path_regex, r.path_format) for r in known if "{" in r.path]

    def note_end(self, record: RequestRecord) -> None:
        """Note that a request has ended.

        All requests that end in one turn of the event loop are observed together after it: that
        is quicker, and their log lines are one write.
        """
        record.end = time.monotonic()
        if not self._ended:
            asyncio.get_running_loop().call_soon(self._observe)
        self._ended.append(record)

    def _observe(self) -> None:
        ended, self._ended = self._ended, []
        for record in ended:
            self.metrics.count(record)
            if self._logs_access:
                is_probe = record.path in PROBES or record.path.startswith("/page/")
                log_access(record, is_probe=is_probe)
            if self._tracer is not None:
                self._tracer.trace(record)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Share the metrics while the server runs; send the last metrics and traces at its end."""
        self.metrics.fold_dead()
        share_task = asyncio.create_task(self.metrics.share_forever())
        try:
            yield
        finally:
            share_task.cancel()
            await asyncio.gather(share_task, return_exceptions=True)
            self._observe()
            self.metrics.share()
            if self._tracer is not None:
                await asyncio.to_thread(self._tracer.close)
