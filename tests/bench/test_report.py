"""Figures from hand-made results."""

from __future__ import annotations

import io
import itertools

import pytest
from rich.console import Console

from quire.bench.client import RequestResult
from quire.bench.report import percentile_ms, summarize, table


def result(sent: float, times: list[float], *, error: str | None = None) -> RequestResult:
    gaps = [b - a for a, b in itertools.pairwise(times)]
    return RequestResult(
        sent,
        first=times[0] if times else None,
        last=times[-1] if times else None,
        gaps=gaps,
        num_tokens=len(times),
        num_prompt_tokens=10,
        num_cached_tokens=4,
        error=error,
    )


def test_summary() -> None:
    runs = [result(0.0, [1.0, 1.5]), result(1.0, [1.5, 2.0, 4.0]), result(0, [], error="no")]
    summary = summarize(runs)
    assert (summary.num_requests, summary.num_failed) == (3, 1)
    assert summary.seconds == 4.0
    assert summary.requests_per_second == 0.5
    assert summary.tokens_per_second == 1.2
    assert (summary.ttft_p50_ms, summary.ttft_p99_ms) == (500.0, 1000.0)
    assert (summary.itl_p50_ms, summary.itl_p99_ms) == (500.0, 2000.0)
    assert summary.prefix_cache_hit_rate == 0.4


@pytest.mark.parametrize("runs", [[], [result(0.0, [], error="no")]])
def test_nothing_worked(runs: list[RequestResult]) -> None:
    summary = summarize(runs)
    assert summary.ttft_p50_ms is None
    assert summary.requests_per_second == 0.0
    assert rendered(summary)


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 1000.0), (50, 5000.0), (90, 9000.0), (99, 10000.0), (100, 1e4)]
)
def test_nearest_rank(percent: float, expected: float) -> None:
    assert percentile_ms([float(n) for n in range(10, 0, -1)], percent) == expected


def test_table_shows_every_figure() -> None:
    text = rendered(summarize([result(0.0, [0.25, 0.5])]))
    for figure in ("250.0 ms", "2.0", "40%", "0 of 1"):
        assert figure in text


def rendered(summary: object) -> str:
    out = io.StringIO()
    Console(file=out, width=100).print(table(summary))  # type: ignore[arg-type]
    return out.getvalue()
