"""Who looks at a request when it has ended: metrics, the access log, traces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.routing import BaseRoute, Route

from quire.server.http.request_record import RequestRecord
from quire.server.ops.access_log import log_access
from quire.server.ops.server_metrics import Metrics
from quire.server.ops.tracing import Tracer
from quire.server.settings import ServerSettings

# Asked all the time by machines, and by the page.
PROBES = frozenset({"/health", "/ping", "/ready", "/metrics", "/live"})


class Observer:
    """Made once for each process. Raises ConfigError where traces are asked for in vain."""

    def __init__(self, settings: ServerSettings, metrics_folder: Path | None) -> None:
        self.metrics = Metrics(metrics_folder)
        endpoint = settings.otlp_traces_endpoint
        self._tracer = None if endpoint is None else Tracer.sending_to(endpoint)
        self._ended: list[RequestRecord] = []

    def know_endpoints(self, routes: Iterable[BaseRoute]) -> None:
        """Paths that have series of their own; those with a part that varies share one."""
        known = [route for route in routes if isinstance(route, Route)]
        self.metrics.endpoints = frozenset(r.path for r in known if "{" not in r.path)
        self.metrics.templates = [(r.path_regex, r.path_format) for r in known if "{" in r.path]

    def note_end(self, record: RequestRecord) -> None:
        """A request has ended. It is looked at when the loop ends its turn, with all others that
        ended in it: that is quicker, and their lines are one write."""
        record.end = time.monotonic()
        if not self._ended:
            asyncio.get_running_loop().call_soon(self._look)
        self._ended.append(record)

    def _look(self) -> None:
        ended, self._ended = self._ended, []
        for record in ended:
            self.metrics.count(record)
            log_access(record, is_probe=record.path in PROBES or record.path.startswith("/page/"))
            if self._tracer is not None and record.job is not None:
                self._tracer.trace(record)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Share the figures while the server runs, and the last ones and all traces at its end."""
        self.metrics.fold_dead()
        keeping = asyncio.create_task(self.metrics.keep_sharing())
        try:
            yield
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            self._look()
            self.metrics.share()
            if self._tracer is not None:
                await asyncio.to_thread(self._tracer.close)
