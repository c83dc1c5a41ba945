"""A quality report in the terminal: a table of figures, and a bar for each decoder layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

_BAR = 40  # columns of the longest bar
_FEW = 10  # windows; intervals of fewer have the true value in less than 90 of 100 cases


def print_report(
    report: Mapping[str, Any], console: Console | None = None, *, is_stored: bool = True
) -> None:
    """Print a report's figures, then the loss of each layer, then whether it passed.

    is_stored: whether serving goes by it.
    """
    console = console or Console()
    table = Table(
        "figure", "value", "95 %, base", title=f"{report['quantized']} against {report['base']}"
    )
    for row in _rows(report):
        table.add_row(*row)
    console.print(table)
    if "tokens_per_second_range" in report.get("speed", {}).get("quantized", {}):
        console.print("tokens/s: median (least to most) of several runs", highlight=False)
    if (windows := report.get("windows", _FEW)) < _FEW and "perplexity" in report:
        text = f"the 95 % intervals are too narrow, as they are of {windows} windows of text"
        console.print(f"{text}; take more (--samples {4 * _FEW})", highlight=False, soft_wrap=True)
    for line in layer_bars(report["layers"]):
        console.print(line, highlight=False)
    for failure in report["failures"]:
        console.print(f"FAILED: {failure}", style="red", highlight=False)
    if report["passed"]:
        console.print("passed")
    elif is_stored:
        console.print("The quality gate refuses these weights.")


def layer_bars(layers: list[Mapping[str, float]]) -> Iterator[str]:
    """One line for each layer: 1 - cosine of the hidden states after it."""
    losses = [1.0 - layer["mean"] for layer in layers]
    most = max(*losses, 1e-9)
    for index, loss in enumerate(losses):
        yield f"layer {index:>3}  {'█' * round(_BAR * loss / most):<{_BAR}} 1 - cosine {loss:.2e}"


def _rows(report: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    yield "text, tokens", f"{report['tokens']:,}", report["text"]
    if "perplexity" in report:
        perplexity = report["perplexity"]
        yield "perplexity, base", f"{perplexity['base']:.4f}", ""
        yield "perplexity, quantized", f"{perplexity['quantized']:.4f}", ""
        yield "change", f"{perplexity['change']:+.2%}", _between(perplexity["change_95"], "+.2%")
        yield "KL divergence", f"{report['kl_divergence']['mean']:.4f}", ""
        yield "KL divergence, p99", f"{report['kl_divergence']['p99']:.3f}", ""
        same = report["same_top_1"]
        yield "same top-1", f"{same['share']:.1%}", _between(same["share_95"], ".1%")
    cosine = report["hidden_cosine"]
    yield "hidden cosine, mean", f"{cosine['mean']:.5f}", ""
    yield "hidden cosine, p1", f"{cosine['p1']:.5f}", ""
    if "pooled_cosine" in report:
        yield "pooled cosine, least", f"{report['pooled_cosine']['least']:.5f}", ""
    if "tasks" in report:
        tasks = report["tasks"]
        found = f"{tasks['right_quantized']} / {tasks['count']}"
        yield "right answers", found, f"base: {tasks['right_base']}"
    sizes = report["bytes"]
    yield "bytes", f"{sizes['quantized']:,}", f"base: {sizes['base']:,}"
    if "speed" in report:
        yield from _speed_rows(report["speed"])


def _speed_rows(speed: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    base, own = speed["base"], speed["quantized"]
    for streams, rate in own["tokens_per_second"].items():
        before = base["tokens_per_second"][streams]
        ratio = f"{rate / max(before, 1e-9):.2f} times"
        ours, theirs = (_rate(speed, streams) for speed in (own, base))
        yield f"tokens/s, streams: {streams}", ours, f"base: {theirs}, {ratio}"
    for key, name in (("weight_bytes", "bytes in memory"), ("kv_tokens", "KV cache, tokens")):
        yield name, f"{own[key]:,}", f"base: {base[key]:,}"


def _rate(speed: Mapping[str, Any], streams: str) -> str:
    """A median rate with its range, which older reports do not have."""
    bounds = speed.get("tokens_per_second_range", {}).get(streams)
    rate = speed["tokens_per_second"][streams]
    kind = ",.0f" if rate >= 100 else ".1f"
    return f"{rate:{kind}}" + ("" if bounds is None else f" ({_between(bounds, kind)})")


def _between(bounds: list[float], kind: str) -> str:
    return f"{bounds[0]:{kind}} to {bounds[1]:{kind}}"
