"""Tables of speed on a CPU: cpu_peers.py's engines side by side, and cpu_growth.py's figures."""

from __future__ import annotations

from typing import Any

from peers.worker import ENGINES

Result = dict[str, Any]


def cpu_peers(result: Result) -> str:
    """One table for each context: every engine and form of weights."""
    rates = result["rates"]
    parts = [
        f"Llama-3.2-1B shape, {result['threads']} threads, medians. The machine in the "
        f"same run: reading {rates['read_gb_per_s']:.1f} GB/s, products "
        f"{rates['float32_tflops']:.2f} (float32), {rates['bfloat16_tflops']:.2f} (bfloat16) and "
        f"{rates['int8_tops']:.2f} (int8) T(FL)OP/s."
    ]
    for context in dict.fromkeys(row["context"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["context"] == context]
        parts.append("\n".join(_peers_at(context, rows)))
    versions = dict.fromkeys((row["engine"], row["version"]) for row in result["rows"])
    told = ", ".join(f"{ENGINES[engine]} {version}" for engine, version in versions)
    return "\n\n".join([*parts, f"Versions: {told}."])


def _peers_at(context: int, rows: list[Result]) -> list[str]:
    streams = list(rows[0]["decode_tokens_per_s"])
    lines = [
        f"**{context:,} tokens of context**; tokens/s; seconds from the start of the process to "
        "the first token; gigabytes resident at most, with one stream and with "
        f"{streams[-1]}; the last column is what one stream reads of its weights' file a second, "
        "over the bandwidth at that time:",
        "",
        "| engine, weights | prefill | "
        + " | ".join(f"decode, {n}" for n in streams)
        + " | first token, s | GB | GB, all streams | of the bandwidth |",
        f"|---|{'---|' * (len(streams) + 5)}",
    ]
    best = {n: max(row["decode_tokens_per_s"][n] for row in rows) for n in streams}
    fastest = max(row["prefill_tokens_per_s"] for row in rows)
    for row in rows:
        speeds = [_figure(row["prefill_tokens_per_s"], fastest)]
        speeds += [_figure(row["decode_tokens_per_s"][n], best[n]) for n in streams]
        share = row["weights_gb"] * row["decode_tokens_per_s"]["1"] / row["read_gb_per_s"]
        rest = [f"{row['first_token_s']:.1f}", f"{row['peak_gb']:.2f}"]
        rest += [f"{row['peak_gb_all_streams']:.2f}", f"{share:.0%}"]
        cells = [f"{ENGINES[row['engine']]} {row['weights']}", *speeds, *rest]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _figure(value: float, best: float) -> str:
    text = f"{value:,.1f}"
    return f"**{text}**" if value == best else text
