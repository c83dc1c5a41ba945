"""The tables of what was measured kernel by kernel on a GPU. Not a program; tables.py uses it."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

Result = dict[str, Any]

MOST_FP8_ROWS = 16  # more are another kernel's (gpu_rows); result files from before it have them


def served(rows: list[Result]) -> list[Result]:
    """Linears of the kernels for few rows."""
    return [row for row in rows if row.get("itemsize", 2) == 2 or row["m"] <= MOST_FP8_ROWS]


def gpu_linear(result: Result) -> str:
    """Linears as their layers take them, beside the library's with nothing fused."""
    bandwidth = result["read_bandwidth"]
    figures = {(_named(row), row["linear"], row["m"]): row for row in served(result["tune"])}
    sizes = sorted({row["m"] for row in result["tune"]})
    lines = [
        "Linears with the norm, the residual or SiLU that their layers fuse into them, us, / the "
        "library's with nothing fused, by rows; **bold** where that was faster; bytes: what these "
        f"take to be read ({bandwidth / 1e12:.2f} TB/s):",
        "",
        f"| model, linear | [N, K] | bytes | {' | '.join(map(str, sizes))} |",
        f"|---|---|---|{'---|' * len(sizes)}",
    ]
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
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def gpu_rows(result: Result) -> str:
    """Layers whose GEMMs have the best configs, beside the library's."""
    linears = ("qkv", "o", "gate_up", "down")
    lines = [
        "All layers in FP8 but for attention, ms, with the best config of each linear and with "
        "the library's; and by how many us a layer the best config of each linear is quicker "
        "(-: the library's is):",
        "",
        f"| model | rows | ms | library | {' | '.join(linears)} |",
        f"|---|---|---|---|{'---|' * len(linears)}",
    ]
    for row in sorted(result["rows"], key=lambda row: (row["model"] != "8b", row["m"])):
        cells = [row["model"], str(row["m"])]
        cells += [f"{row[name] / 1e3:.2f}" for name in ("us", "library_us")]
        for linear in linears:
            found = row["linears"][linear]
            gain = found["library_us"] - found["configs"][0]["us"]
            cells.append(f"{gain:.1f}" if gain > 0 else "-")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def gemm_timings(_: Result) -> str:
    """Table of the loss by a similar shape's config, of GEMMs of shapes that nobody tuned."""
    from gemm_similar import losses
    from gpu_shapes import HELD_OUT, TIMED

    groups = [losses(list(models)) for models in (TIMED, HELD_OUT)]
    lines = [
        "By how much the config chosen takes longer than the best, mean and worst GEMM:",
        "",
        "| weights | rows | one model left out at a time | models held out |",
        "|---|---|---|---|",
    ]
    for itemsize, m in sorted({(each.itemsize, each.m) for found in groups for each in found}):
        cells = ["FP8" if itemsize == 1 else "bf16", str(m)]
        for found in groups:
            part = [each.loss for each in found if (each.itemsize, each.m) == (itemsize, m)]
            cells.append(f"{sum(part) / len(part):.1%}, {max(part):.1%}" if part else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def gpu_chain(result: Result) -> str:
    """The table of all layers' linears in sequence."""
    sizes = sorted({row["m"] for row in result["chain"]})
    figures = {(_named(row), row["m"]): row for row in served(result["chain"])}
    lines = [
        f"| ms, share of the bandwidth, by rows | {' | '.join(map(str, sizes))} |",
        f"|---|{'---|' * len(sizes)}",
    ]
    for model in dict.fromkeys(key[0] for key in figures):
        rows = [figures.get((model, m)) for m in sizes]
        cells = [
            f"{row['us'] / 1e3:.2f}, {row['share_of_bandwidth']:.0%}" if row else "" for row in rows
        ]
        lines.append(f"| {' | '.join([model, *cells])} |")
    return "\n".join(lines)


def gpu_layers(result: Result) -> str:
    """The table of all layers with attention, with RoPE as a kernel and inside the GEMM."""
    lines = [
        "| model | requests | ms | RoPE in a separate kernel, attention launched after it | "
        "of the bandwidth |",
        "|---|---|---|---|---|",
    ]
    for row in sorted(result["layers"], key=lambda row: (row["model"] == "1b", row["m"])):
        cells = [_named(row), str(row["m"]), f"{row['joined_us'] / 1e3:.2f}"]
        cells += [f"{row['apart_us'] / 1e3:.2f}", f"{row['share_of_bandwidth']:.0%}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


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
    lines = [title, "", "| | 8b bf16 | 8b fp8 | 1b bf16 | 1b fp8 |", "|---|---|---|---|---|"]
    cases = {(row["batch"], row["model"], row["kv_dtype"]): row for row in rows}
    for batch in dict.fromkeys(batch for batch, *_ in cases):
        kinds = itertools.product(("8b", "1b"), ("bf16", "fp8"))
        cells = [batch, *(cell(cases.get((batch, model, kv_dtype))) for model, kv_dtype in kinds)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


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
    lines = [
        "Attention of prefill chunks, a layer, TFLOP/s: as the engine takes them, in brackets by "
        "the kernel of all GPUs. The library is cuDNN through PyTorch, which has no form for "
        "chunks on cached prefixes:",
        "",
        "| | 8b bf16 | 8b fp8 | library | 1b bf16 | 1b fp8 | library |",
        "|---|---|---|---|---|---|---|",
    ]
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
        lines.append(f"| {' | '.join(cells)} |")
    title = "Of prompts with up to 128 keys, us a layer; in brackets by Hopper's kernel:"
    short = [row for row in result["prefill"] if row["has_few_keys"]]
    return "\n".join([*lines, "", _by_batch(title, short, _short_cell)])


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
    lines = [
        "Random weights in bfloat16 or FP8, temperature 0; answers that are not the same alone and "
        "among others, and how long steps take:",
        "",
        "| model | kernels | answers that differ | prefill of 1,950, ms | decode of 1 | of 64 |",
        "|---|---|---|---|---|---|",
    ]
    usual: Result = {}
    for row in result["rows"]:
        model = row["shape"] + (" fp8" if row.get("quantization", "none") == "fp8" else "")
        name = "batch-invariant" if row["batch_invariant"] else "usual"
        cells = [model, name, f"{row['differing']} of {row['compared']}"]
        ours = usual.setdefault(model, row["ms"])  # which come first
        for what, ms in row["ms"].items():
            ratio = f" ({ms / ours[what]:.2f})" if row["batch_invariant"] else ""
            cells.append(f"{ms:.2f}{ratio}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def gpu_int4(result: Result) -> str:
    """Linears with few rows and four-bit weights, against bandwidth."""
    few = result["few"]
    rows = sorted({row["m"] for row in few})
    bandwidth = result["read_bandwidth"] / 1e12
    text = [
        f"By the engine's rule, us (share of {bandwidth:.2f} TB/s, the GPU's bandwidth), by rows:\n"
    ]
    text += [f"| [N, K] | {' | '.join(map(str, rows))} |", "|---|" + "---|" * len(rows)]
    for n, k in dict.fromkeys((row["n"], row["k"]) for row in few):
        own = {row["m"]: row for row in few if (row["n"], row["k"]) == (n, k)}
        cells = [
            f"{own[m]['rule_us']:.1f} ({own[m]['share'] * own[m]['us'] / own[m]['rule_us']:.0%})"
            for m in rows
        ]
        text.append(f"| {n}, {k} | {' | '.join(cells)} |")
    more = result["rows_in_fp8"]
    rows = sorted({row["m"] for row in more})
    text += [
        "\nMore rows, in FP8, us (times faster than bfloat16):\n",
        f"| [N, K] | {' | '.join(map(str, rows))} |",
        "|---|" + "---|" * len(rows),
    ]
    for n, k in dict.fromkeys((row["n"], row["k"]) for row in more):
        own = {row["m"]: row for row in more if (row["n"], row["k"]) == (n, k)}
        cells = [
            f"{own[m]['rule_us']:.1f} ({own[m]['bf16_us'] / own[m]['rule_us']:.2f})" for m in rows
        ]
        text.append(f"| {n}, {k} | {' | '.join(cells)} |")
    return "\n".join(text)


def gpu_kv_dtype(result: Result) -> str:
    """Attention by the data type of keys and values, beside bfloat16."""
    text = ["Attention, us (times faster than with bfloat16):\n",
            "| | bfloat16 | FP8 | INT8 |", "|---|---|---|---|"]  # fmt: skip
    for row in result["attention"]:
        us = row["us"]
        cells = [f"{us[kind]:.1f} ({us['bf16'] / us[kind]:.2f})" for kind in ("fp8", "int8")]
        text.append(f"| {row['case']} | {us['bf16']:.1f} | {' | '.join(cells)} |")
    ratios = result["capacity"]
    text.append(f"\nTokens in the same memory: FP8 {ratios['fp8']:.2f}, INT8 {ratios['int8']:.2f}.")
    return "\n".join(text)


def gpu_weights(result: Result) -> str:
    """Linears with weights in each format, by rows, beside bfloat16."""
    found, bandwidth = result["rows"], result["read_bandwidth"] / 1e12
    rows = sorted({row["m"] for row in found})
    text = [
        f"Time in us (share of {bandwidth:.2f} TB/s by the weight's bytes), times faster than "
        "bfloat16, by rows:\n",
        f"| [N, K] | format | {' | '.join(map(str, rows))} |",
        "|---|---|" + "---|" * len(rows),
    ]
    for n, k, name in dict.fromkeys((row["n"], row["k"], row["format"]) for row in found):
        own = {
            row["m"]: row for row in found if (row["n"], row["k"], row["format"]) == (n, k, name)
        }
        cells = [
            f"{own[m]['us']:.1f} ({own[m]['share']:.0%}), {own[m]['ratio']:.2f}" if m in own else ""
            for m in rows
        ]
        text.append(f"| {n}, {k} | {name} | {' | '.join(cells)} |")
    return "\n".join(text)


BYTE_FORMATS = {
    "int8_group": "INT8 by 128", "int8_group:exact": "x not rounded", "int8_row": "INT8 by channel",
    "fp8_block": "FP8 blocks",
}  # fmt: skip


def gpu_weights_bytes(result: Result) -> str:
    """Times faster than bfloat16 with weights of a byte each, by rows."""
    found = {(row["n"], row["k"], row["format"], row["m"]): row["ratio"] for row in result["rows"]}
    rows = sorted({row["m"] for row in result["rows"]})
    text = [
        f"| [N, K] | weights | {' | '.join(map(str, rows))} |",
        "|---|---|" + "---|" * len(rows),
    ]
    for n, k in dict.fromkeys((row["n"], row["k"]) for row in result["rows"]):
        for name, label in BYTE_FORMATS.items():
            ratios = [found.get((n, k, name, m)) for m in rows]
            cells = ["" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
            text.append(f"| {n}, {k} | {label} | {' | '.join(cells)} |")
    return "\n".join(text)


def gpu_weights_w8a16(result: Result) -> str:
    """Times faster than bfloat16 of a layer's linears together, with activations in 16 bits."""
    names = {
        "fp8": "`fp8`, activations rounded", "fp8_w8a16": "`fp8_w8a16`", "w8a16": "`w8a16`",
    }  # fmt: skip
    us: Counter[tuple[str, int]] = Counter()
    for row in result["rows"]:
        us[row["format"], row["m"]] += row["us"]
    rows = sorted({m for _, m in us})
    text = [f"| tokens of a step | {' | '.join(f'{m:,}' for m in rows)} |"]
    text.append("|---" * (len(rows) + 1) + "|")
    for name, label in names.items():
        cells = [f"{us['bf16', m] / us[name, m]:.2f}" for m in rows]
        text.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(text)


def gpu_int4_serving(result: Result) -> str:
    """INT4 and FP8 weights in the engine alone."""
    text = ["Llama 3.1 8B's shape, 1,950 tokens in and 200 out, keys and values in FP8:\n"]
    text += [
        "| weights | at a time | tokens/s | TTFT p50, ms | ITL p50, ms |",
        "|---|---|---|---|---|",
    ]
    for row in sorted(result["levels"], key=lambda row: (row["label"], row["level"])):
        text.append(
            f"| {row['label']} | {row['level']:g} | {row['tok_s']:,.0f} "
            f"| {row['ttft_p50']:.0f} | {row['itl_p50']:.2f} |"
        )
    return "\n".join(text)
