"""The tables of what was measured kernel by kernel on a GPU. Not a program; tables.py uses it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from markdown_table import markdown_table

Result = dict[str, Any]

MOST_FP8_ROWS = 16  # more are another kernel's (gpu_rows); result files from before it have them


def _served(rows: list[Result]) -> list[Result]:
    """Linears of the kernels for few rows."""
    return [row for row in rows if row.get("itemsize", 2) == 2 or row["m"] <= MOST_FP8_ROWS]


def gpu_linear(result: Result) -> str:
    """Linears as an 8B's layers take them, beside the library's with nothing fused."""
    bandwidth = result["read_bandwidth"]
    found = [row for row in _served(result["tune"]) if row["model"] == "8b"]
    figures = {(_named(row), row["linear"], row["m"]): row for row in found}
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
    """Weights of each format, with activations in 16 bits in few rows."""
    names = {
        "fp8": "FP8", "int8": "INT8", "int4": "INT4", "nf4": "NF4", "mxfp4": "MXFP4",
        "nvfp4": "NVFP4",
    }  # fmt: skip
    return _by_format(result, names)


def gpu_weights_bytes(result: Result) -> str:
    """Weights of a byte each with scales of groups."""
    names = {
        "int8_group": "INT8 by 128", "int8_group:exact": "INT8 by 128, activations not rounded",
        "int8_row": "INT8 by channel", "fp8_block": "FP8 in blocks",
    }  # fmt: skip
    return _by_format(result, names)


def gpu_weights_w8a16(result: Result) -> str:
    """Weights of a byte each, with activations in 16 bits, beside rounded ones."""
    names = {
        "fp8": "`fp8`, activations rounded", "fp8_w8a16": "`fp8_w8a16`", "w8a16": "`w8a16`",
    }  # fmt: skip
    return _by_format(result, names)


def _by_format(result: Result, names: dict[str, str]) -> str:
    """Times faster than bfloat16 of a layer's linears together, where all were measured."""
    found: dict[tuple[str, int], list[Result]] = {}
    for row in result["rows"]:
        found.setdefault((row["format"], row["m"]), []).append(row)
    rows = sorted({m for _, m in found})
    lines = [[label, *(_speed(found.get((name, m), [])) for m in rows)]
             for name, label in names.items()]  # fmt: skip
    caption = "Times faster than bfloat16, the four linears of an 8B's layer together, by tokens:"
    return markdown_table(["weights", *(f"{m:,}" for m in rows)], lines, caption)


def _speed(linears: list[Result]) -> str:
    """bfloat16's time in the same run over that of these; empty if not all four are there."""
    if len(linears) < 4:
        return ""
    us, bf16_us = np.sum([(row["us"], row["us"] * row["ratio"]) for row in linears], axis=0)
    return f"{bf16_us / us:.2f}"


def gpu_int4_serving(result: Result) -> str:
    """Time between tokens by the format of weights, in the engine alone."""
    itl = {(row["label"], row["level"]): row["itl_p50"] for row in result["levels"]}
    levels = sorted({level for _, level in itl})
    rows = []
    for label in dict.fromkeys(label for label, _ in sorted(itl)):
        cells = [f"{itl[label, at]:.2f}" if (label, at) in itl else "" for at in levels]
        rows.append([f"`{label}`", *cells])
    caption = (
        "Llama 3.1 8B's shape, 1,950 tokens in and 200 out, keys and values in FP8; milliseconds "
        "between tokens (p50), by answers at a time:"
    )
    return markdown_table(["weights", *(f"{level:g}" for level in levels)], rows, caption)
