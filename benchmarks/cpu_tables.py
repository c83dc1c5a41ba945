"""Tables of speed on a CPU: engines side by side, growth, attention."""

from __future__ import annotations

from typing import Any

from markdown_table import markdown_table
from peers.disturbance import is_disturbed
from peers.worker import ENGINES

Result = dict[str, Any]

SHOWN_CONTEXTS, SHOWN_ROWS = (512, 4096, 16384), (1, 8, 64, 512)  # of more that were measured


def cpu_peers(result: Result) -> str:
    """One table for each context: every engine and weight format."""
    rates = result["rates"]
    parts = [
        f"Llama-3.2-1B shape, {result['threads']} threads, medians. The machine in the "
        f"same run: reading {rates['read_gb_per_s']:.1f} GB/s, products "
        f"{rates['float32_tflops']:.2f} (float32), {rates['bfloat16_tflops']:.2f} (bfloat16) and "
        f"{rates['int8_tops']:.2f} (int8) T(FL)OP/s.",
        "Speeds in tokens/s; seconds from the start of the process to the first token; gigabytes "
        "resident at most, with one stream and with all; the last column is what one stream reads "
        "of its weights a second, over the bandwidth at that time.",
    ]
    for context in dict.fromkeys(row["context"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["context"] == context]
        parts += [_peers_at(context, rows), _behind(rows)]
    versions = dict.fromkeys((row["engine"], row["version"]) for row in result["rows"])
    shown = ", ".join(f"{ENGINES[engine]} {version}" for engine, version in versions)
    disturbed = [row["others_cores"] for row in result["rows"] if _is_disturbed(row)]
    if disturbed:
        parts.append(f"\\* disturbed: others kept up to {max(disturbed):.1f} cores busy beside it.")
    return "\n\n".join([*parts, f"Versions: {shown}."])


def cpu_peers_brief(result: Result) -> str:
    """The first context alone, with the figures that most people ask for."""
    context = result["rows"][0]["context"]
    rows = [row for row in result["rows"] if row["context"] == context]
    one, *_, most = rows[0]["decode_tokens_per_s"]
    found = []
    for row in rows:
        rates = row["prefill_tokens_per_s"], *(row["decode_tokens_per_s"][n] for n in (one, most))
        name = f"{ENGINES[row['engine']]} {row['weights']}{' *' if _is_disturbed(row) else ''}"
        cells = [name, *(f"{rate:,.1f}" for rate in rates)]
        found.append([*cells, f"{row['first_token_s']:.1f}", f"{row['peak_gb']:.2f}"])
    caption = (
        f"Llama-3.2-1B shape, {context:,} tokens of context, {result['threads']} threads; prompts "
        f"and decodes of {one} and {most} streams in tokens/s, memory at most:"
    )
    head = [
        "engine, weights", "prompts", f"decode, {one}", f"decode, {most}", "first token, s", "GB",
    ]  # fmt: skip
    table = markdown_table(head, found, caption)
    if any(map(_is_disturbed, rows)):
        table += "\n\n\\* disturbed: others kept cores busy beside it."
    return table


def _is_disturbed(row: Result) -> bool:
    found: bool = row.get("disturbed", is_disturbed(row))  # older files do not tell
    return found


def _peers_at(context: int, rows: list[Result]) -> str:
    streams, found = list(rows[0]["decode_tokens_per_s"]), []
    best = {n: max(row["decode_tokens_per_s"][n] for row in rows) for n in streams}
    fastest = max(row["prefill_tokens_per_s"] for row in rows)
    for row in rows:
        speeds = [_figure(row["prefill_tokens_per_s"], fastest)]
        speeds += [_figure(row["decode_tokens_per_s"][n], best[n]) for n in streams]
        share = f"{row['weights_gb'] * row['decode_tokens_per_s']['1'] / row['read_gb_per_s']:.0%}"
        rest = [f"{row['first_token_s']:.1f}", f"{row['peak_gb']:.2f}"]
        rest += [f"{row['peak_gb_all_streams']:.2f}", share]
        mark = " *" if _is_disturbed(row) else ""
        found.append([f"{ENGINES[row['engine']]} {row['weights']}{mark}", *speeds, *rest])
    head = ["engine, weights", "prefill", *(f"decode, {n}" for n in streams)]
    head += ["first token, s", "GB", "GB, all streams", "of the bandwidth"]
    return markdown_table(head, found, f"**{context:,} tokens of context**:")


def _behind(rows: list[Result]) -> str:
    """Every cell in which a peer with as many bits does better than Quire."""
    shown = []
    for ours in (row for row in rows if row["engine"] == "quire"):
        peers = [row for row in rows if row["engine"] != "quire" and _bits(row) == _bits(ours)]
        cells = []
        for what, (mine, sign) in _cells(ours).items():
            best = max(peers, key=lambda row: sign * _cells(row)[what][0], default=ours)
            theirs = _cells(best)[what][0]
            if sign * theirs > sign * mine:
                name = f"{ENGINES[best['engine']]} {best['weights']}"
                cells.append(f"{what} {mine:,.2f} ({name} {theirs:,.2f})")
        if cells:
            shown.append(f"{ours['weights']}: {', '.join(cells)}")
    return f"Behind a peer with as many bits: {'; '.join(shown) or 'in no cell'}."


def _bits(row: Result) -> int:
    weights = row["weights"].split(",")[0]
    return {"float32": 32, "Q8_0": 8, "int8": 8, "Q4_0": 4, "int4": 4}.get(weights, 16)


def _cells(row: Result) -> dict[str, tuple[float, int]]:
    """A row's figures by what they are, and 1 where more is better, else -1."""
    found = {"prefill": (row["prefill_tokens_per_s"], 1)}
    found |= {f"decode of {n}": (rate, 1) for n, rate in row["decode_tokens_per_s"].items()}
    found["seconds to a first token"] = row["first_token_s"], -1
    return found | {"GB": (row["peak_gb"], -1), "GB, all streams": (row["peak_gb_all_streams"], -1)}


def _figure(value: float, best: float) -> str:
    text = f"{value:,.1f}"
    return f"**{text}**" if value == best else text


def cpu_growth(result: Result) -> str:
    """Speed by streams, by context and by length of prompts, each beside its floor; memory."""
    rows = result["rows"]
    by_streams = [
        [same[0]["streams"]]
        + [f"{at[key]:.1f}" for at in same for key in ("tokens_per_s", "floor_tokens_per_s")]
        for same in zip(*(row["by_streams"] for row in rows), strict=True)
    ]
    by_context = []
    for row in rows:
        for at in (at for at in row["by_context"] if at["context"] in SHOWN_CONTEXTS):
            cells = [row["weights"], f"{at['context']:,}"]
            cells.append(f"{at['prefill_s']:.2f} ({at['prefill_floor_s']:.2f})")
            cells.append(f"{at['decode_s'] * 1e3:.0f} ({at['decode_floor_s'] * 1e3:.0f})")
            cells += [f"{at['peak_gb']:.2f}", f"{at['weights_gb'] + at['kv_gb']:.2f}"]
            by_context.append(cells)
    streams = markdown_table(
        ["streams", *(name for row in rows for name in (row["weights"], "floor"))],
        by_streams,
        "Decoding, tokens/s, by streams of 128 tokens of context each:",
    )
    contexts = markdown_table(
        ["weights", "context", "prompt, s", "decode step, ms", "resident, GB", "weights + KV, GB"],
        by_context,
        "Prompts and one stream, by context; floors in brackets. Memory: resident at most, beside "
        "the weights as they are read and the KV cache that this run was given:",
    )
    return f"{streams}\n\n{contexts}"


def cpu_attention(result: Result) -> str:
    """A layer's attention: compiled beside PyTorch's and the floor."""
    rows = []
    for row in result["rows"]:
        what = f"{row['tokens']:,} tokens"
        what = f"decode, {row['batch']} x {what}" if row["decodes"] else f"prompt, {what}"
        ours, theirs, floor = (row[f"{path}_us"] / 1e3 for path in ("compiled", "torch", "floor"))
        cells = [row["model"], what, f"{ours:.2f}", f"{theirs:.2f}", f"{theirs / ours:.1f}"]
        rows.append([*cells, f"{floor / ours:.0%}"])
    return markdown_table(
        ["heads of", "", "compiled", "PyTorch", "times as fast", "of the floor"],
        rows,
        f"Attention of one layer, bfloat16 keys and values, {result['threads']} threads, ms:",
    )


def cpu_linear(result: Result) -> str:
    """Ours by the best set of instructions, the best of PyTorch's kernels, and the floor."""
    limits = dict(result["limits"])
    rates = ", ".join(
        f"{name.rsplit('_', 1)[0].replace('_', ' ').upper()} {rate / 1e3:.2f}"
        for name, rate in limits.items()
        if not name.startswith("read")
    )
    formats = list(dict.fromkeys(row["weights"] for row in result["rows"]))
    caption = (
        f"Linear layers of Llama-3.2-1B, {result['threads']} threads, ms: ours, the best of "
        "PyTorch's kernels, and how much of the time ours would take at the machine's limits. "
        f"These are: reading {limits['read_gb_per_s']:.1f} GB/s; T(FL)OP/s in registers: {rates}."
    )
    found: dict[tuple[str, int], dict[str, list[Result]]] = {}
    for row in result["rows"]:
        found.setdefault((row["layer"], row["rows"]), {}).setdefault(row["weights"], []).append(row)
    rows = [
        [layer, count, *(cell for fmt in formats for cell in _beside(by_format.get(fmt, [])))]
        for (layer, count), by_format in found.items()
        if count in SHOWN_ROWS
    ]
    head = [name for fmt in formats for name in (fmt, "theirs", "of the floor")]
    return markdown_table(["layer", "rows", *head], rows, caption)


def _beside(rows: list[Result]) -> list[str]:
    theirs = [row["ms"] for row in rows if row["kernel"] in ("torch", "onednn")]
    ours = [row for row in rows if row["kernel"] not in ("torch", "onednn")]
    if not ours or not theirs:
        return ["", "", ""]
    best = ours[-1]  # what the engine takes: sets come in order, the best one last
    text = f"{best['ms']:.2f}"
    text = f"**{text}**" if best["ms"] <= min(theirs) else text
    return [text, f"{min(theirs):.2f}", f"{best['floor_ms'] / best['ms']:.0%}"]


def cpu_start(result: Result) -> str:
    """Seconds by phase, and memory beside what was planned."""
    phases = ("imports", "weights", "tuning", "first step")
    rows = []
    for row in result["rows"]:
        cells = [row["weights"], row["start"], f"{row['first_token_s']:.2f}"]
        taken = row.get("phases", {})  # a command tells none
        cells += [f"{taken[phase]:.2f}" if phase in taken else "" for phase in phases]
        planned = f"{row['weights_gb'] + row['kv_gb']:.2f}" if taken else ""
        rows.append([*cells, f"{row['peak_gb']:.2f}", planned])
    return markdown_table(
        ["weights", "start", "first token, s", *phases, "GB", "weights + KV"],
        rows,
        f"Llama-3.2-1B shape, {result['threads']} threads, files in the page cache; seconds since "
        "the process began, of which these; GB resident at most, beside weights and KV cache:",
    )
