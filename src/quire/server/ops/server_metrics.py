"""Metrics: the sums over all API processes of a server and over the restarts of its engines.

The metrics' names are in metric_families.py. The counting is done in
engine/frontend/request_metrics.py, engine/core/step_log.py and the scheduler. Why this is not
prometheus_client's multiprocess mode: docs/decisions/server.md.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from pathlib import Path

from quire.core.histogram import STEP_SECONDS_BOUNDS, STEP_TOKEN_BOUNDS, Histogram
from quire.core.messages import EngineStats
from quire.engine.frontend.async_engine import AsyncEngine
from quire.engine.frontend.request_metrics import RequestMetrics
from quire.logs import num_dropped_lines
from quire.server.http.request_record import RequestRecord
from quire.server.ops.metric_snapshots import (
    MAX_EPOCHS,
    EngineFigures,
    Snapshot,
    SnapshotFolder,
    summed,
)

SHARE_SECONDS = 0.5
OTHER = "other"  # stands for unknown paths: clients must not create metric series


class EngineTotal:
    """One engine, over all API processes.

    latest: its newest statistics, for gauges. counted: its counters, summed over all epochs.
    """

    def __init__(self, figures: EngineFigures) -> None:
        self.num_blocks, self.block_size = figures.num_blocks, figures.block_size
        self.kv_cache_bytes, self.max_model_len = figures.kv_cache_bytes, figures.max_model_len
        self.requests = RequestMetrics()
        self.requests.add(figures.requests)
        epochs = figures.stats
        self.latest = epochs[max(epochs)] if epochs else EngineStats()
        self.counted = summed(epochs.values())
        self.step_tokens = Histogram(STEP_TOKEN_BOUNDS)
        self.step_tokens.add(self.counted.step_tokens)
        self.step_seconds = Histogram(STEP_SECONDS_BOUNDS)
        self.step_seconds.add(self.counted.step_seconds)


class Metrics:
    """The metrics of this process, and those of all others.

    folder: shared with the server's other API processes; None for a single one. endpoints: paths
    with metric series of their own. templates: paths with a variable, and the label of each.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.endpoints: frozenset[str] = frozenset()
        self.templates: list[tuple[re.Pattern[str], str]] = []
        self._folder = None if folder is None else SnapshotFolder(folder)
        self._started = time.monotonic()
        self._engines: dict[str, AsyncEngine] = {}
        self._stats: dict[str, dict[int, EngineStats]] = {}
        self._http_requests: Counter[tuple[str, str, int]] = Counter()
        self._errors: Counter[str] = Counter()

    def add_engine(self, engine: AsyncEngine) -> None:
        """Include the metrics of an engine."""
        name = engine.info.model_name
        self._engines[name] = engine
        self._stats.setdefault(name, {})

    def count(self, record: RequestRecord) -> None:
        """Count a request that has ended."""
        path = record.path
        if path not in self.endpoints:
            path = next((name for known, name in self.templates if known.match(path)), OTHER)
        self._http_requests[path, record.method, record.status] += 1
        if record.error_code is not None:
            self._errors[record.error_code] += 1

    def snapshot(self) -> Snapshot:
        """The current metrics of this process."""
        return Snapshot(
            started=self._started,
            engines={name: self._figures(name, e) for name, e in self._engines.items()},
            http_requests=dict(self._http_requests),
            errors=dict(self._errors),
            dropped_log_lines=num_dropped_lines(),
        )

    async def share_forever(self) -> None:
        """Write the snapshot of this process periodically, until cancelled."""
        while True:
            self.share()
            await asyncio.sleep(SHARE_SECONDS)

    def fold_dead(self) -> None:
        """Join the files of dead processes, so that they do not accumulate."""
        if self._folder is not None:
            self._folder.fold_dead()

    def share(self) -> None:
        """Write the snapshot of this process. Sums up old epochs when there are many."""
        if self._folder is None:
            return
        self._folder.write(self.snapshot())
        if max(map(len, self._stats.values()), default=0) > 2 * MAX_EPOCHS:
            summed_up = self._folder.sum_epochs(self.snapshot())
            for name, known in self._stats.items():
                last = summed_up.get(name, -1)
                self._stats[name] = {epoch: s for epoch, s in known.items() if epoch > last}

    def requests(self, model: str) -> RequestMetrics:
        """The request metrics of a model, over all processes."""
        return EngineTotal(self.total().engines[model]).requests

    def total(self) -> Snapshot:
        """The metrics of all processes."""
        others = [] if self._folder is None else self._folder.read_others()
        return Snapshot.joined([*others, self.snapshot()])

    def _figures(self, name: str, engine: AsyncEngine) -> EngineFigures:
        info, stats = engine.info, engine.stats
        self._stats[name][stats.epoch] = stats
        return EngineFigures(
            num_blocks=info.num_blocks,
            block_size=info.block_size,
            kv_cache_bytes=info.kv_cache_bytes,
            max_model_len=info.limits.max_model_len,
            requests=engine.metrics.figures(),
            stats=self._stats[name],
        )
