"""The load of an engine as a header of its answers, for load balancers that read ORCA's reports.

A request asks for it by a header with the format; the answer's header is as vLLM's. A stream has
none: its headers are sent before it has caused any load.
"""

from __future__ import annotations

import json

from starlette.types import Scope

from quire.engine.frontend.async_engine import AsyncEngine
from quire.server.http.request_reader import first_headers

ASKED_BY = "endpoint-load-metrics-format"
HEADER = "endpoint-load-metrics"
_ASKED_BY = ASKED_BY.encode()


def load_headers(scope: Scope, engine: AsyncEngine) -> dict[str, str]:
    """The header with the engine's load; nothing if none is asked for, or in an unknown format."""
    asked = first_headers(scope).get(_ASKED_BY)
    if asked is None:
        return {}
    stats = engine.stats  # by vLLM's names, as of the latest step
    named = {
        "kv_cache_usage_perc": stats.num_used_blocks / max(1, stats.num_blocks),
        "num_requests_waiting": float(stats.num_waiting),
    }
    match asked.strip().lower():
        case b"text":
            report = ", ".join(f"named_metrics.{name}={value}" for name, value in named.items())
            return {HEADER: f"TEXT {report}"}
        case b"json":
            return {HEADER: f"JSON {json.dumps({'named_metrics': named})}"}
    return {}
