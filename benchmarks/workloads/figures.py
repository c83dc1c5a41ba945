"""Figures of a level of load: rates and percentiles, and a line for people.

Times are in milliseconds. TTFT: request sent to first token event. ITL: gap between token events
of one stream. TPOT: (last - first token event) / (tokens - 1), by request. Latency: from the moment
a request was due (open) or sent (closed) to its last byte. Rates are from the first request sent to
the last byte: tok_s of the answers' tokens, prompt_tok_s of prompts' (cached ones too), total_tok_s
of both.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from workloads.plan import Level

COLUMNS = (
    ("level", 7), ("ok", 5), ("req_s", 9), ("tok_s", 10), ("prompt_tok_s", 12),
    ("ttft_p50", 9), ("ttft_p99", 9), ("itl_p50", 8), ("itl_p99", 8), ("tpot_p50", 8),
    ("lat_p50", 10), ("lat_p99", 10), ("seconds", 8), ("client_cpu", 10),
)  # fmt: skip


@dataclass(slots=True)
class RequestResult:
    """A request and what came of it. Times in seconds of the machine's monotonic clock."""

    due: float
    sent: float = 0.0
    first: float = 0.0
    last: float = 0.0
    done: float = 0.0
    tokens: int = 0
    prompt_tokens: int = 0
    events: int = 0
    gaps: list[float] = field(default_factory=list)
    error: str | None = None

    def take_event(self, moment: float) -> None:
        """Note that a part of the answer came."""
        if self.events:
            self.gaps.append(moment - self.last)
        else:
            self.first = moment
        self.events += 1
        self.last = moment

    def end(self, moment: float, wanted: int) -> None:
        """Record a request's end. wanted: the number of tokens that it should have."""
        self.done = moment
        if self.error is None and self.tokens != wanted:
            self.error = f"got {self.tokens} tokens, asked for {wanted}"


def summarize(level: Level, results: Sequence[RequestResult], client_cpu: float) -> dict[str, Any]:
    """The figures of a level. client_cpu: cores used by the busiest process that made the load."""
    workload = level.workload
    whole = [result for result in results if result.error is None]
    errors = Counter(result.error[:120] for result in results if result.error is not None)
    found: dict[str, Any] = {
        "mode": "open" if workload.is_open else "closed",
        "level": level.level,
        "n": len(results),
        "ok": len(whole),
        "errors": dict(errors),
        "client_cpu": round(client_cpu, 3),
        "input_len": workload.input_len,
        "output_len": workload.output_len,
        "shared_prefix": workload.shared_prefix,
        "jitter": workload.jitter,
        "stream": workload.stream,
    }
    if whole:
        found |= _rates(whole) | _percentiles(whole, stream=workload.stream)
    return found


def _rates(whole: Sequence[RequestResult]) -> dict[str, float]:
    span = max(e.done for e in whole) - min(e.sent for e in whole)
    tokens, prompt_tokens = sum(e.tokens for e in whole), sum(e.prompt_tokens for e in whole)
    return {
        "seconds": round(span, 3),
        "req_s": round(len(whole) / span, 3),
        "tok_s": round(tokens / span, 2),
        "prompt_tok_s": round(prompt_tokens / span, 1),
        "total_tok_s": round((tokens + prompt_tokens) / span, 1),
        "tok_per_event": round(tokens / max(1, sum(e.events for e in whole)), 3),
    }


def _percentiles(whole: Sequence[RequestResult], *, stream: bool) -> dict[str, float]:
    series = {
        "lat": [e.done - e.due for e in whole],
        "send_lag": [e.sent - e.due for e in whole],
    }
    if stream:
        series["ttft"] = [e.first - e.sent for e in whole]
        series["itl"] = [gap for e in whole for gap in e.gaps]
        series["tpot"] = [(e.last - e.first) / (e.tokens - 1) for e in whole if e.tokens > 1]
    return {
        f"{name}_p{percent}": round(percentile(sorted(seconds), percent) * 1e3, 3)
        for name, seconds in series.items()
        if seconds
        for percent in (50, 99)
    }


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Nearest rank; NaN of nothing."""
    return ordered[max(1, math.ceil(percent / 100 * len(ordered))) - 1] if ordered else math.nan


def heading() -> str:
    """Names over the lines of `line`."""
    return " ".join(name.rjust(width) for name, width in COLUMNS)


def line(figures: dict[str, Any]) -> str:
    """A level's figures, and its errors if it has any."""
    cells = []
    for name, width in COLUMNS:
        value = figures.get(name, "-")
        if isinstance(value, float):
            value = f"{value:.2f}" if abs(value) < 1000 else f"{value:.0f}"
        cells.append(str(value).rjust(width))
    text = " ".join(cells)
    return f"{text}\n    errors: {figures['errors']}" if figures.get("errors") else text
