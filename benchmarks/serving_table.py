"""Tables of speed: gpu_serving.py's figures beside vLLM's with their ratios, and profiled steps."""

from __future__ import annotations

from typing import Any

from markdown_table import markdown_table
from record import tracked
from workloads.peer_figures import ratios, vllm_figures
from workloads.plan import WORKLOADS, Workload

SERVED, FIRST = "gpu_serving_server", "gpu_first_start"  # files: of levels, of first starts

VARIED_TIMES = "ttft_p50", "ttft_p99", "tpot_p50", "lat_p50"

Row = dict[str, Any]

_OPERATION = (
    "operation", "of", "calls", "MB", "GFLOP", "ms", "of the step", "of the roofline", "bound",
)  # fmt: skip


def step_profile(result: Row) -> str:
    """The operations of each profiled step."""
    parts = []
    for profile in result["profiles"]:
        step, best, whole = profile["step"], profile["roofline"], profile["seconds"]
        what = "decoding" if step["num_new"] == 1 else "prefill"
        fp8 = best.get("fp8_flops_per_second")
        weights = " with weights in FP8" if profile.get("quantization") == "fp8" else ""
        caption = (
            f"**{profile['model']}, {profile['dtype']}{weights} on {profile['device']}, {what}, "
            f"{step['num_requests']} x {step['context']:,} tokens**; measured: "
            f"{best['bytes_per_second'] / 1e9:,.0f} GB/s, "
            f"{best['flops_per_second'] / 1e12:,.2f} TFLOP/s"
            + (f", in FP8 {fp8 / 1e12:,.2f}" if fp8 else "")
        )
        rows = [
            (
                op["name"], op["shape"], op["count"], f"{op['num_bytes'] / 1e6:,.1f}",
                f"{op['flops'] / 1e9:,.2f}", f"{op['seconds'] * 1e3:,.2f}",
                f"{op['seconds'] / whole:.0%}", f"{op['floor'] / op['seconds']:.0%}",
                "memory" if op["memory_bound"] else "compute",
            )
            for op in profile["operations"]
        ]  # fmt: skip
        floor = sum(op["floor"] for op in profile["operations"]) / whole
        step_row = ["the step", "", "", "", "", f"{whole * 1e3:,.2f}", "100%", f"{floor:.0%}", ""]
        parts.append(markdown_table(_OPERATION, [*rows, step_row], caption))
    return "\n\n".join(parts)


def vllm_serving(peer: Row) -> str:
    """One table a workload and kind of weights. peer: vLLM's result file."""
    ours = tracked(SERVED)
    parts = [f"vLLM's figures: {peer['source']}", _starts(peer, ours, tracked(FIRST))]
    for workload in WORKLOADS:
        ours_too = {r["label"] for r in ours["levels"] if r["workload"] == workload.name}
        labels = [row["label"] for row in peer["levels"] if row["workload"] == workload.name]
        shown = [label for label in dict.fromkeys(labels) if label in ours_too]
        parts += [_table(workload, label, peer, ours) for label in shown]
    return "\n\n".join(parts)


def published_saturated(published: Row) -> str:
    """Rates at saturation, of the engine alone. published: what others tell."""
    ours = tracked("gpu_saturated")
    rows = []
    for row in published["rows"]:
        name = f"saturated-{row['input_len']}-{row['output_len']}"
        mine: Row = next((r for r in reversed(ours["levels"]) if r["workload"] == name), {})
        rate, peers = mine.get("tok_s"), [row.get(peer) for peer in ("tensorrt_llm", "vllm")]
        ratios = [f"{rate / peer:.2f}" if rate else "-" for peer in peers if peer]
        level = f"{mine['level']:g}" if mine else "-"
        cells = [f"{row['input_len']:,} / {row['output_len']:,}", *map(_number, (*peers, rate))]
        rows.append([*cells, level, " · ".join(ratios)])
    head = ("tokens in / out", "TensorRT-LLM", "vLLM", "Quire", "at a time", "ratio")
    return markdown_table(head, rows, published["source"])


def gpu_varied(ours: Row) -> str:
    """Loads with varied lengths and open ones that vLLM ran, too. ours: gpu_varied."""
    rows = []
    for row in ours["levels"]:
        if peer := vllm_figures(row["workload"], row["label"], row["level"]):
            name = f"{row['workload']}, {row['label']}"
            found = " · ".join(ratios(row, peer))
            rows.append([name, f"{row['level']:g}", _varied(peer), _varied(row), found])
    head = (
        "load", "level", "vLLM: requests/s · TTFT p50 / p99 · TPOT p50 · latency p50", "Quire",
        "ratio: requests/s · TTFT p50 · TPOT p50",
    )  # fmt: skip
    return markdown_table(head, rows)


def _varied(row: Row) -> str:
    if not row:
        return "-"
    rate, *times = (_number(row.get(key)) for key in ("req_s", *VARIED_TIMES))
    return f"{rate} · {times[0]} / {times[1]} · {times[2]} · {times[3]}"


def _find(rows: list[Row], workload: str, label: str, level: float | None) -> Row:
    wanted = (workload, label, level)
    return next(
        (r for r in rows if (r["workload"], r["label"], r.get("level")) == wanted),
        {},
    )


def _starts(peer: Row, ours: Row, first: Row) -> str:
    """The times of starts. ours: kernels were on disk. first: nothing was compiled."""
    rows = []
    for row in peer["starts"]:
        key = (row["workload"], row["label"], None)
        starts = (_find(result["starts"], *key) for result in (ours, first))
        cells = [_number(start.get("first_token_s")) for start in starts]
        model = row["workload"].removeprefix("voice-")
        rows.append([f"{model}, {row['label']}", row["first_token_s"], *cells])
    head = ("model, weights", "vLLM", "Quire", "Quire, the first start on a machine")
    return markdown_table(head, rows, "Start of the process to the first token served, seconds:")


def _table(workload: Workload, label: str, peer: Row, ours: Row) -> str:
    shared = f", {workload.shared_prefix:,} of them shared" if workload.shared_prefix else ""
    unit = "requests/s" if workload.is_open else "at a time"
    names = "latency p50 / p99" if workload.is_open else "TTFT p50 / p99 · ITL p50 / p99 · tok/s"
    ratio = "latency" if workload.is_open else "TTFT · ITL · tok/s"
    caption = (
        f"**{workload.name}, {label}**: {workload.input_len:,} tokens in{shared}, "
        f"{workload.output_len} out; ms. Ratios above 1 are in Quire's favour."
    )
    rows = []
    levels = {
        row["level"]
        for row in (*peer["levels"], *ours["levels"])
        if (row["workload"], row["label"]) == (workload.name, label)
    }
    for level in sorted(levels):
        key = (workload.name, label, level)
        theirs, served = (_find(result["levels"], *key) for result in (peer, ours))
        cells = [_cell(theirs, workload), _cell(served, workload)]
        rows.append([f"{level:g}", *cells, _ratios(theirs, served, workload)])
    table = markdown_table((unit, f"vLLM: {names}", "Quire", f"ratio: {ratio}"), rows, caption)
    if workload.is_open:
        table += f"\n\nvLLM saturates at {peer['saturation'][workload.name]:,} requests/s."
    return table


def _cell(row: Row, workload: Workload) -> str:
    if row.get("errors") and not row.get("ok"):
        return "failed"
    if failed := sum(row.get("errors", {}).values()):
        return f"{_figures(row, workload)} ({failed} of {row['n']} failed)"
    return _figures(row, workload) if row else "-"


def _figures(row: Row, workload: Workload) -> str:
    if workload.is_open:
        return f"{_number(row.get('lat_p50'))} / {_number(row.get('lat_p99'))}"
    ttft, itl = (
        " / ".join(_number(row.get(f"{name}_p{percent}")) for percent in (50, 99))
        for name in ("ttft", "itl")
    )
    return f"{ttft} · {itl} · {_number(row.get('tok_s'))}"


def _ratios(theirs: Row, ours: Row, workload: Workload) -> str:
    """Ratios by which ours are better: times the one way round, rates the other."""
    names = ["lat_p50", "lat_p99"] if workload.is_open else ["ttft_p50", "itl_p50", "tok_s"]
    cells = []
    for name in names:
        if name not in theirs or name not in ours:
            cells.append("-")
        elif name == "tok_s":
            cells.append(f"{ours[name] / theirs[name]:.2f}")
        else:
            cells.append(f"{theirs[name] / ours[name]:.2f}")
    return " · ".join(cells) if set(cells) != {"-"} else "-"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
