"""vLLM's figures, where known, under a load with varied lengths, and the ratios to them."""

from __future__ import annotations

from typing import Any

from record import tracked

Row = dict[str, Any]


def vllm_figures(workload: str, label: str, level: float) -> Row:
    """vLLM's row of this level; empty if none is known. label: of the weights."""
    rows: list[Row] = tracked("vllm_serving")["varied"]
    wanted = (workload, label, level)
    return next((r for r in rows if (r["workload"], r["label"], r["level"]) == wanted), {})


def ratios(ours: Row, peer: Row) -> list[str]:
    """Requests a second, then medians of times to and between tokens: above 1: Quire is ahead."""
    pairs = (("req_s", ours, peer), ("ttft_p50", peer, ours), ("tpot_p50", peer, ours))
    return [f"{a[key] / b[key]:.2f}" if key in a and key in b else "-" for key, a, b in pairs]
