"""The tables of what was measured kernel by kernel on a GPU. Not a program; tables.py uses it."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from markdown_table import markdown_table

Result = dict[str, Any]

MOST_FP8_ROWS = 16  # more are another kernel's (gpu_rows); result files from before it have them


def _served(rows: list[Result]) -> list[Result]:
    """Linears of the kernels for few rows."""
    return [row for row in rows if row.get("itemsize", 2) == 2 or row["m"] <= MOST_FP8_ROWS]


def gpu_linear(result: Result) -> str:
    """Linears as their layers take them, beside the library's with nothing fused."""
    bandwidth = result["read_bandwidth"]
    figures = {(_named(row), row["linear"], row["m"]): row for row in _served(result["tune"])}
    sizes = sorted({row["m"] for row in result["tune"]})
    rows = []
    for model, linear in dict.fromkeys(key[:2] for key in figures):
        row = figures[model, linear, sizes[0]]
        floor = row["itemsize"] * row["n"] * row["k"] / bandwidth * 1e6
        cells = [f"{model} {linear}", f"{row['n']}, {row['k']}", f"{floor:.1f}"]
        for m in sizes:
            row = figures.get((model, linear, m))
            if row is None:  # many rows in FP8 are another table's
                cells.append("")
                continue
            mark = "**" if row["library_us"] < row["alone_us"] else ""
            cells.append(f"{mark}{row['alone_us']:.1f} / {row['library_us']:.1f}{mark}")
        rows.append(cells)
    return markdown_table(
        ["model, linear", "[N, K]", "bytes", *sizes],
        rows,
        "Linears with the norm, the residual or SiLU that their layers fuse into them, us, / the "
        "library's with nothing fused, by rows; **bold** where that was faster; bytes: what these "
        f"take to be read ({bandwidth / 1e12:.2f} TB/s):",
    )


def gpu_rows(result: Result) -> str:
    """Layers whose GEMMs have the best configs, beside the library's."""
    linears = ("qkv", "o", "gate_up", "down")
    rows = []
    for row in sorted(result["rows"], key=lambda row: (row["model"] != "8b", row["m"])):
        cells = [row["model"], str(row["m"])]
        cells += [f"{row[name] / 1e3:.2f}" for name in ("us", "library_us")]
        for linear in linears:
            found = row["linears"][linear]
            gain = found["library_us"] - found["configs"][0]["us"]
            cells.append(f"{gain:.1f}" if gain > 0 else "-")
        rows.append(cells)
    return markdown_table(
        ["model", "rows", "ms", "library", *linears],
        rows,
        "All layers in FP8 but for attention, ms, with the best config of each linear and with "
        "the library's; and by how many us a layer the best config of each linear is quicker "
        "(-: the library's is):",
    )


def gpu_rounds(result: Result) -> str:
    """Layers with room for one round of programs, beside those without regard to that."""
    us = {(row["format"], row["m"], row["model"]): row["us"] for row in result["rows"]}
    models = list(dict.fromkeys(row["model"] for row in result["rows"]))
    names = {"int4": "INT4, groups of 64", "int4_128": "INT4, 128", "nf4": "NF4", "mxfp4": "MXFP4"}
    rows = []
    for kind, m in dict.fromkeys((row["format"], row["m"]) for row in result["rows"]):
        both = [us[kind, m, model] for model in models]
        cells = [f"{each['plain']:.1f} / {each['rule']:.1f}" for each in both]
        if any(abs(each["rule"] / each["plain"] - 1) > 0.04 for each in both):
            rows.append([names.get(kind, f"`{kind}`"), str(m), *cells])
    return markdown_table(
        ["weights", "rows", *models],
        rows,
        "The four linears of a layer in a chain, us: without regard to how many programs a round "
        "has / with room for one round; formats and rows that differ by more than 4 %:",
    )


def gpu_fp8_rows(result: Result) -> str:
    """GEMMs in FP8 by the rule, against the library and the best config, by rows."""
    rows = []
    for m in sorted({row[2] for row in result["rows"]}):
        own = [row[3:] for row in result["rows"] if row[2] == m]
        gains = [library / (rule or library) for library, rule, _ in own]
        losses = [(rule or library) / min(library, best) - 1 for library, rule, best in own]
        mean = sum(gains) / len(gains), sum(losses) / len(losses)
        rows.append([str(m), str(len(own)), f"{mean[0]:.2f} ({min(gains):.2f})",
                     f"{mean[1]:.1%} ({max(losses):.0%})"])  # fmt: skip
    return markdown_table(
        ["rows", "shapes", "times faster than the library", "slower than the best"],
        rows,
        "GEMMs in FP8 by the rule, of shapes with at most as many tiles of 64 outputs as "
        "multiprocessors: mean, and in brackets the worst of them:",
    )


def gemm_timings(_: Result) -> str:
    """Table of the loss by a similar shape's config, of GEMMs of shapes that nobody tuned."""
    from gemm_similar import losses
    from gpu_shapes import HELD_OUT, TIMED

    groups = [losses(list(models)) for models in (TIMED, HELD_OUT)]
    rows = []
    for itemsize, m in sorted({(each.itemsize, each.m) for found in groups for each in found}):
        cells = ["FP8" if itemsize == 1 else "bf16", str(m)]
        for found in groups:
            part = [each.loss for each in found if (each.itemsize, each.m) == (itemsize, m)]
            cells.append(f"{sum(part) / len(part):.1%}, {max(part):.1%}" if part else "")
        rows.append(cells)
    caption = "By how much the config chosen takes longer than the best, mean and worst GEMM:"
    head = ["weights", "rows", "one model left out at a time", "models held out"]
    return markdown_table(head, rows, caption)


def gpu_chain(result: Result) -> str:
    """The table of all layers' linears in sequence."""
    sizes = sorted({row["m"] for row in result["chain"]})
    figures = {(_named(row), row["m"]): row for row in _served(result["chain"])}
    rows = []
    for model in dict.fromkeys(key[0] for key in figures):
        own = [figures.get((model, m)) for m in sizes]
        cells = [f"{r['us'] / 1e3:.2f}, {r['share_of_bandwidth']:.0%}" if r else "" for r in own]
        rows.append([model, *cells])
    return markdown_table(["ms, share of the bandwidth, by rows", *sizes], rows)


def gpu_layers(result: Result) -> str:
    """The table of all layers with attention, with RoPE as a kernel and inside the GEMM."""
    head = ["model", "requests", "ms", "RoPE in a separate kernel, attention launched after it"]
    rows = []
    for row in sorted(result["layers"], key=lambda row: (row["model"] == "1b", row["m"])):
        cells = [_named(row), str(row["m"]), f"{row['joined_us'] / 1e3:.2f}"]
        rows.append([*cells, f"{row['apart_us'] / 1e3:.2f}", f"{row['share_of_bandwidth']:.0%}"])
    return markdown_table([*head, "of the bandwidth"], rows)


def _named(row: Result) -> str:
    """The model, and the format of its weights where it is not the usual one."""
    return row["model"] + (" fp8" if row.get("itemsize", 2) == 1 else "")


def gpu_decode(result: Result) -> str:
    """Attention of decodes by the best config of each case and by the one that serves all."""

    def cell(row: Result | None) -> str:
        assert row is not None
        best, us = row["configs"][0]["us"], _decode_us(row)
        return f"{us:.1f}, {row['share_of_bandwidth'] * best / us:.0%} ({best:.1f})"

    title = (
        "Attention of decodes by the kernel of all GPUs, us a layer and share of the bandwidth, by "
        "requests x keys, in brackets the best of all configs that were tried:"
    )
    return _by_batch(title, result["decode"], cell)


def gpu_decode_hopper(result: Result) -> str:
    """Attention of decodes as Hopper takes them, and by the kernel of all GPUs."""
    title = (
        "Attention of decodes by Hopper's kernel, us a layer and share of the bandwidth, in "
        "brackets by the kernel of all GPUs, by requests x keys:"
    )
    cell = functools.partial(_hopper_cell, bandwidth=result["read_bandwidth"])
    return _by_batch(title, result["decode_hopper"], cell)


def _by_batch(title: str, rows: list[Result], cell: Callable[[Result | None], str]) -> str:
    """A line for each batch: both models, each with keys in both types."""
    lines = []
    cases = {(row["batch"], row["model"], row["kv_dtype"]): row for row in rows}
    for batch in dict.fromkeys(batch for batch, *_ in cases):
        kinds = itertools.product(("8b", "1b"), ("bf16", "fp8"))
        lines.append([batch, *(cell(cases.get((batch, *kind))) for kind in kinds)])
    return markdown_table(["", "8b bf16", "8b fp8", "1b bf16", "1b fp8"], lines, title)


def _hopper_cell(row: Result | None, bandwidth: float) -> str:
    """The cell of a case, with the split that the engine uses now; empty if not measured."""
    from gpu_decode_hopper import config_name

    from quire.kernels.triton.launch import attention_config

    if row is None:
        return ""
    config = attention_config.hopper_decode_config(_cache(row), 4, int(row["batch"].split()[0]))
    us = row["us"][config_name(config)]
    return f"{us:.1f}, {row['bytes'] / us * 1e6 / bandwidth:.0%} ({row['us']['all GPUs']:.1f})"


def gpu_prefill(result: Result) -> str:
    """Attention of prefill chunks as the engine takes them, by the kernel of all GPUs, by cuDNN."""
    lines = []
    long = [row for row in result["prefill"] if not row["has_few_keys"]]
    rows = {(row["batch"], row["model"], row["kv_dtype"]): row for row in long}
    for batch in dict.fromkeys(batch for batch, *_ in rows):
        cells = [batch]
        for model in ("8b", "1b"):
            cells += [
                _prefill_cell(rows.get((batch, model, kv_dtype))) for kv_dtype in ("bf16", "fp8")
            ]
            library = rows[batch, model, "bf16"]["library_us"]
            cells.append(_tflops(rows[batch, model, "bf16"], library) if library else "")
        lines.append(cells)
    table = markdown_table(
        ["", "8b bf16", "8b fp8", "library", "1b bf16", "1b fp8", "library"],
        lines,
        "Attention of prefill chunks, a layer, TFLOP/s: as the engine takes them, in brackets by "
        "the kernel of all GPUs. The library is cuDNN through PyTorch, which has no form for "
        "chunks on cached prefixes:",
    )
    title = "Of prompts with up to 128 keys, us a layer; in brackets by Hopper's kernel:"
    short = [row for row in result["prefill"] if row["has_few_keys"]]
    return f"{table}\n\n{_by_batch(title, short, _short_cell)}"


def _short_cell(row: Result | None) -> str:
    """The cell of a case; empty if not measured."""
    return f"{row['us']['few keys']:.1f} ({row['us'][_prefill_kernel(row)]:.1f})" if row else ""


def _prefill_cell(row: Result | None) -> str:
    """The cell of a case; empty if not measured. The run takes the most important first."""
    if row is None:
        return ""
    taken, plain = row["us"][_prefill_kernel(row)], row["us"]["all GPUs"]
    return f"{_tflops(row, taken)} ({_tflops(row, plain)})"


def _tflops(row: Result, us: float) -> str:
    return f"{row['flops'] / us / 1e6:.0f}"


def _prefill_kernel(row: Result) -> str:
    """Name of the Hopper kernel that runs on a GPU with 132 multiprocessors."""
    from quire.kernels.triton.launch import attention_config

    return (
        "keys"
        if attention_config.choose_hopper_config(_cache(row), row["tokens"], 4, 132).split
        else "queries"
    )


def _cache(row: Result) -> Any:
    """Without memory; of a layer with what the row says."""
    import torch

    from quire.kernels import reference

    head_dim = 128 if row["model"] == "8b" else 64
    dtype = reference.FP8 if row["kv_dtype"] == "fp8" else torch.bfloat16
    return torch.empty(1, 16, 8, head_dim, dtype=dtype, device="meta")


def _decode_us(row: Result) -> float:
    """Microseconds of the config that the engine takes."""
    from quire.kernels.triton.launch import attention_config

    config = asdict(attention_config.decode_config(_cache(row), int(row["batch"].split()[0])))
    return next(float(each["us"]) for each in row["configs"] if each["config"] == config)


def gpu_invariance(result: Result) -> str:
    """Table of the cost of batch-invariant kernels, beside the usual ones."""
    rows = []
    usual: Result = {}
    for row in result["rows"]:
        model = row["shape"] + (" fp8" if row.get("quantization", "none") == "fp8" else "")
        name = "batch-invariant" if row["batch_invariant"] else "usual"
        cells = [model, name, f"{row['differing']} of {row['compared']}"]
        ours = usual.setdefault(model, row["ms"])  # which come first
        for what, ms in row["ms"].items():
            ratio = f" ({ms / ours[what]:.2f})" if row["batch_invariant"] else ""
            cells.append(f"{ms:.2f}{ratio}")
        rows.append(cells)
    head = ["model", "kernels", "answers that differ", "prefill of 1,950, ms", "decode of 1"]
    caption = (
        "Random weights in bfloat16 or FP8, temperature 0; answers that are not the same alone and "
        "among others, and how long steps take:"
    )
    return markdown_table([*head, "of 64"], rows, caption)


def gpu_int4(result: Result) -> str:
    """Linears with few rows and four-bit weights, against bandwidth."""
    bandwidth = result["read_bandwidth"] / 1e12
    few = _by_shape(
        f"By the engine's rule, us (share of {bandwidth:.2f} TB/s, the GPU's bandwidth), by rows:",
        result["few"],
        lambda row: f"{row['rule_us']:.1f} ({row['share'] * row['us'] / row['rule_us']:.0%})",
    )
    more = _by_shape(
        "More rows, in FP8, us (times faster than bfloat16):",
        result["rows_in_fp8"],
        lambda row: f"{row['rule_us']:.1f} ({row['bf16_us'] / row['rule_us']:.2f})",
    )
    return f"{few}\n\n{more}"


def _by_shape(caption: str, found: list[Result], cell: Callable[[Result], str]) -> str:
    """A line for each shape of a weight, a column for each number of rows."""
    by_key = {(row["n"], row["k"], row["m"]): row for row in found}
    rows = sorted({row["m"] for row in found})
    lines = [
        [f"{n}, {k}", *(cell(by_key[n, k, m]) for m in rows)]
        for n, k in dict.fromkeys((row["n"], row["k"]) for row in found)
    ]
    return markdown_table(["[N, K]", *rows], lines, caption)


def gpu_kv_dtype(result: Result) -> str:
    """Attention by the data type of keys and values, beside bfloat16."""
    rows = []
    for row in result["attention"]:
        us = row["us"]
        cells = [f"{us[kind]:.1f} ({us['bf16'] / us[kind]:.2f})" for kind in ("fp8", "int8")]
        rows.append([row["case"], f"{us['bf16']:.1f}", *cells])
    caption = "Attention, us (times faster than with bfloat16):"
    table = markdown_table(["", "bfloat16", "FP8", "INT8"], rows, caption)
    fp8, int8 = (result["capacity"][kind] for kind in ("fp8", "int8"))
    return f"{table}\n\nTokens in the same memory: FP8 {fp8:.2f}, INT8 {int8:.2f}."


def gpu_weights(result: Result) -> str:
    """Linears with weights in each format, by rows, beside bfloat16."""
    found, bandwidth = result["rows"], result["read_bandwidth"] / 1e12
    rows, lines = sorted({row["m"] for row in found}), []
    for n, k, name in dict.fromkeys((row["n"], row["k"], row["format"]) for row in found):
        own = {
            row["m"]: row for row in found if (row["n"], row["k"], row["format"]) == (n, k, name)
        }
        cells = [
            f"{own[m]['us']:.1f} ({own[m]['share']:.0%}), {own[m]['ratio']:.2f}" if m in own else ""
            for m in rows
        ]
        lines.append([f"{n}, {k}", name, *cells])
    caption = (
        f"Time in us (share of {bandwidth:.2f} TB/s by the weight's bytes), times faster than "
        "bfloat16, by rows:"
    )
    return markdown_table(["[N, K]", "format", *rows], lines, caption)


BYTE_FORMATS = {
    "int8_group": "INT8 by 128", "int8_group:exact": "x not rounded", "int8_row": "INT8 by channel",
    "fp8_block": "FP8 blocks",
}  # fmt: skip


def gpu_weights_bytes(result: Result) -> str:
    """Times faster than bfloat16 with weights of a byte each, by rows."""
    found = {(row["n"], row["k"], row["format"], row["m"]): row["ratio"] for row in result["rows"]}
    rows, lines = sorted({row["m"] for row in result["rows"]}), []
    for n, k in dict.fromkeys((row["n"], row["k"]) for row in result["rows"]):
        for name, label in BYTE_FORMATS.items():
            ratios = [found.get((n, k, name, m)) for m in rows]
            cells = ["" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
            lines.append([f"{n}, {k}", label, *cells])
    return markdown_table(["[N, K]", "weights", *rows], lines)


def gpu_weights_w8a16(result: Result) -> str:
    """Times faster than bfloat16 of a layer's linears together, with activations in 16 bits."""
    names = {
        "fp8": "`fp8`, activations rounded", "fp8_w8a16": "`fp8_w8a16`", "w8a16": "`w8a16`",
    }  # fmt: skip
    us, bf16_us = (Counter[tuple[str, int]]() for _ in range(2))  # the latter in the same run
    for row in result["rows"]:
        us[row["format"], row["m"]] += row["us"]
        bf16_us[row["format"], row["m"]] += row["us"] * row["ratio"]
    rows = sorted({m for _, m in us})
    lines = [
        [label, *(f"{bf16_us[name, m] / us[name, m]:.2f}" if us[name, m] else "" for m in rows)]
        for name, label in names.items()
    ]
    return markdown_table(["tokens of a step", *(f"{m:,}" for m in rows)], lines)


def gpu_int4_serving(result: Result) -> str:
    """INT4 and FP8 weights in the engine alone."""
    rows = [
        (row["label"], f"{row['level']:g}", f"{row['tok_s']:,.0f}", f"{row['ttft_p50']:.0f}",
         f"{row['itl_p50']:.2f}")
        for row in sorted(result["levels"], key=lambda row: (row["label"], row["level"]))
    ]  # fmt: skip
    return markdown_table(
        ["weights", "at a time", "tokens/s", "TTFT p50, ms", "ITL p50, ms"],
        rows,
        "Llama 3.1 8B's shape, 1,950 tokens in and 200 out, keys and values in FP8:",
    )
