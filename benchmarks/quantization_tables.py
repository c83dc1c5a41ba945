"""Tables of the quantization benchmarks. Not a program: `tables.py` fills documents with them."""

from __future__ import annotations

from typing import Any

from markdown_table import markdown_table
from record import tracked

Result = dict[str, Any]

_LEVELS = (1, 16, 64, 256)  # answers at a time, on a GPU
_ON_CPU = (1, 16, 256)
# weights by name; the row of `quantization_trained` with their loss; what a run's label calls them
_CHOICES = (
    ("16 bits", None, "bfloat16"),
    ("FP8", "FP8", "fp8"),
    ("FP8 W8A16", "FP8 W8A16", "fp8_w8a16"),
    ("FP8 W8A16, GPTQ", "FP8 + GPTQ W8A16", "fp8_w8a16"),
    ("INT8", "INT8", "int8"),
    ("INT8 W8A16", None, "w8a16"),
    ("INT4, RTN", "RTN", "int4"),
    ("INT4, AWQ + GPTQ", "AWQ + GPTQ", "int4"),
    ("NF4", "NF4", "nf4"),
    ("MXFP4", "MXFP4", "mxfp4"),
)


def quantization_quality(result: Result) -> str:
    """Table of the change of a model's predictions by fewer bits."""
    head = ["", "perplexity", "mean KL", "p99 KL", "same top-1", "95 %", "hidden cosine, mean"]
    rows = []
    for row in result["rows"]:
        cells = [row["what"], f"{row['perplexity_change']:+.2%}", f"{row['mean_kl']:.4f}"]
        low, high = row["same_top_1_95"]
        cells += [f"{row['p99_kl']:.3f}", f"{row['same_top_1']:.1%}", f"{low:.1%} to {high:.1%}"]
        rows.append([*cells, f"{row['mean_cosine']:.4f}", f"{row['p1_cosine']:.4f}"])
    caption = f"{result['model']}, {result['tokens']:,} held-out tokens, against float32:"
    return markdown_table([*head, "p1"], rows, caption)


def quantization_trained(result: Result) -> str:
    """Table of the loss by each method of `quire quantize`, and its time."""
    head = ["", "perplexity", "95 %", "mean KL", "same top-1", "hidden cosine", "seconds"]
    rows = []
    for row in result["rows"]:
        low, high = row["perplexity"]["change_95"]
        cells = [row["what"], f"{row['perplexity']['change']:+.2%}", f"{low:+.1%} to {high:+.1%}"]
        cells += [f"{row['kl_divergence']['mean']:.4f}", f"{row['same_top_1']['share']:.1%}"]
        rows.append([*cells, f"{row['hidden_cosine']['mean']:.4f}", f"{row['seconds']:.0f}"])
    caption = (
        f"{result['model']}, groups of {result['group_size']}, {result['tokens']:,} held-out "
        f"tokens, calibrated on {result['calibration_tokens']:,}:"
    )
    return markdown_table(head, rows, caption)


def quantization_peers(result: Result) -> str:
    """Table of the loss of other libraries' methods beside Quire's, with the same text."""
    pairs: dict[str, list[Result]] = {}
    for row in sorted(result["rows"], key=lambda row: row["by"] != "Quire"):
        pairs.setdefault(row["what"], []).append(row)
    rows = []
    for what, pair in pairs.items():
        cells = [what, *(f"{row['perplexity']['change']:+.2%}" for row in pair)]
        cells += [f"{row['kl_divergence']['mean']:.4f}" for row in pair]
        cells += [f"{row['same_top_1']['share']:.1%}" for row in pair]
        cells += [f"{row['hidden_cosine']['mean']:.4f}" for row in pair]
        if len(pair) == 2:  # else the other one is not done yet
            rows.append(cells)
    caption = (
        f"{result['model']}, {result['tokens']:,} held-out tokens, calibrated on "
        f"{result['calibration_tokens']:,}, groups of {result['group_size']}; learned rounding in "
        f"{result['steps']} steps (Quire's in twice as many, of half the samples). "
        "Quire, the other:"
    )
    head = ["", "perplexity", "", "mean KL", "", "same top-1", "", "hidden cosine", ""]
    return markdown_table(head, rows, caption)


def gguf_quality(result: Result) -> str:
    """Table of the loss of GGUF files, and of their conversion."""
    head = ["file", "file", "INT8, INT4 for Q4_0", "same top-1", "in all", "`int4`", "in all"]
    rows = []
    for row in result["rows"]:
        cells = [row["file"], f"{row['of_file']['mean_kl']:.4f}"]
        cells += [f"{row['none']['mean_kl']:.4f}", f"{row['none']['same_top_1']:.1%}"]
        cells += [f"{row[key]['mean_kl']:.4f}" for key in ("none_in_all", "int4", "int4_in_all")]
        rows.append(cells)
    return markdown_table(head, rows, f"quire-tiny, {result['tokens']:,} held-out tokens; mean KL:")


def quantization_choice(serving: Result) -> str:
    """Quality, memory and speed of weights side by side. serving: an 8B's on a GPU, by label."""
    quality, cpu = tracked("quantization_trained"), tracked("cpu_weights")
    losses = {row["what"]: row for row in quality["rows"]}
    on_gpu = {(row["label"], row["level"]): row["tok_s"] for row in serving["levels"]}
    starts = {row["label"]: row["num_blocks"] for row in serving["starts"]}
    on_cpu = {row["weights"]: row for row in cpu["rows"]}
    levels = [n for n in _LEVELS if any(level == n for _, level in on_gpu)]
    head = ["weights", "perplexity", "cosine", "same top-1"]
    head += [f"GPU, {n}" for n in levels]
    head += ["KV blocks", *(f"CPU, {n}" for n in _ON_CPU), "GB"]
    rows, shown = [], set[str]()
    for name, method, label in _CHOICES:
        if method not in losses and label in shown:
            continue  # its speed stands there already
        cells = [*_loss(losses.get(method or "")), *(_rate(on_gpu.get((label, n))) for n in levels)]
        cells.append(_rate(starts.get(label)))
        own = on_cpu.get(label)
        rates = own["decode_tokens_per_s"] if own else {}
        cells += [_rate(rates.get(str(n))) for n in _ON_CPU]
        cells.append(f"{own['weights_gb']:.2f}" if own else "")
        if any(cells):
            shown.add(label)
            rows.append([name, *cells])
    columns = [
        "Columns (empty: not measured):",
        "",
        f"- perplexity, cosine, same top-1: {quality['model']}, {quality['tokens']:,} held-out "
        "tokens, in float32 arithmetic, with activations rounded for FP8 and INT8 alone;",
        "- GPU: tokens/s of an 8B by answers at a time, prompts of 1,950 tokens included, which "
        "may round activations to FP8; keys and values in FP8; how many KV blocks fit;",
        f"- CPU: decode of a 1B by answers at a time, {cpu['threads']} cores (with AMX: cpu.md).",
    ]
    return markdown_table(head, rows, "\n".join(columns))


def _loss(row: Result | None) -> tuple[str, str, str]:
    if row is None:
        return "", "", ""
    share, cosine = row["same_top_1"]["share"], row["hidden_cosine"]["mean"]
    return f"{row['perplexity']['change']:+.2%}", f"{cosine:.4f}", f"{share:.1%}"


def _rate(rate: float | None) -> str:
    return "" if rate is None else f"{rate:,.0f}"
