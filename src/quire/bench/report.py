"""Summary of a benchmark run: rates, percentiles, and a table for people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from quire.bench.client import RequestResult


@dataclass(frozen=True, slots=True)
class Summary:
    """One run. Times in milliseconds; None where nothing was measured.

    TTFT: request sent to first token event. ITL: between two token events of one stream, where
    those that come in one read share the time since the one before. Rates count from the first
    request sent to the last token received. prefix_cache_hit_rate: share of prompt tokens that the
    prefix cache gave.
    """

    num_requests: int
    num_failed: int
    seconds: float
    requests_per_second: float
    tokens_per_second: float
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    itl_p50_ms: float | None
    itl_p99_ms: float | None
    num_prompt_tokens: int
    num_tokens: int
    prefix_cache_hit_rate: float


def summarize(results: Sequence[RequestResult]) -> Summary:
    """Figures of the requests that succeeded, and how many failed."""
    whole = [result for result in results if result.error is None]
    ends = [result.last for result in whole if result.last is not None]
    seconds = max(ends) - min(result.sent for result in whole) if ends else 0.0
    ttfts = [ttft for result in whole if (ttft := result.ttft) is not None]
    gaps = [gap for result in whole for gap in result.gaps]
    num_prompt_tokens = sum(result.num_prompt_tokens for result in whole)
    num_tokens = sum(result.num_tokens for result in whole)
    num_cached_tokens = sum(result.num_cached_tokens for result in whole)
    return Summary(
        num_requests=len(results),
        num_failed=len(results) - len(whole),
        seconds=round(seconds, 4),
        requests_per_second=round(len(whole) / seconds, 2) if seconds else 0.0,
        tokens_per_second=round(num_tokens / seconds, 1) if seconds else 0.0,
        ttft_p50_ms=percentile_ms(ttfts, 50),
        ttft_p99_ms=percentile_ms(ttfts, 99),
        itl_p50_ms=percentile_ms(gaps, 50),
        itl_p99_ms=percentile_ms(gaps, 99),
        num_prompt_tokens=num_prompt_tokens,
        num_tokens=num_tokens,
        prefix_cache_hit_rate=round(num_cached_tokens / max(num_prompt_tokens, 1), 4),
    )


def percentile_ms(seconds: Sequence[float], percent: float) -> float | None:
    """Nearest-rank percentile, in milliseconds."""
    if not seconds:
        return None
    rank = math.ceil(percent / 100 * len(seconds))
    return round(sorted(seconds)[max(rank, 1) - 1] * 1000, 3)


def table(summary: Summary) -> Table:
    """The summary as a table for a terminal."""
    shown = Table(show_header=False, box=None, padding=(0, 2))
    shown.add_column(style="dim")
    shown.add_column(justify="right")
    shown.add_column(style="dim")
    shown.add_column(justify="right")
    rows = (
        ("time to first token, p50", _ms(summary.ttft_p50_ms), "p99", _ms(summary.ttft_p99_ms)),
        ("between tokens, p50", _ms(summary.itl_p50_ms), "p99", _ms(summary.itl_p99_ms)),
        (
            "requests/s",
            f"{summary.requests_per_second:,.1f}",
            "tokens/s",
            f"{summary.tokens_per_second:,.0f}",
        ),
        (
            "prefix-cache hit rate",
            f"{summary.prefix_cache_hit_rate:.0%}",
            "failed",
            f"{summary.num_failed} of {summary.num_requests}",
        ),
    )
    for row in rows:
        shown.add_row(*row)
    return shown


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f} ms"
