"""The tables of the documents, made from the result files.

python benchmarks/tables.py            # write them between their markers
python benchmarks/tables.py --check    # only tell whether they are up to date
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
DOCUMENTS = ["README.md"]

Result = dict[str, Any]


def cpu_model(result: Result) -> str:
    """Ours beside transformers, by batch size."""
    rows = {(row["engine"], row["batch"]): row for row in result["rows"]}
    lines = [
        "Llama-3.2-1B shape, bfloat16, random weights, 512-token prompts, tokens/s:",
        "",
        "| batch | prefill | transformers | ratio | decode | transformers | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for batch in sorted({batch for _, batch in rows}):
        ours, theirs = rows["quire", batch], rows["transformers", batch]
        cells = [str(batch)]
        for key in ("prefill_tokens_per_s", "decode_tokens_per_s"):
            cells += [f"{ours[key]:.1f}", f"{theirs[key]:.1f}", f"{ours[key] / theirs[key]:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", source("cpu_model", result)])


def prefix_caching(result: Result) -> str:
    """Hit rate and time to first token, caching on and off."""
    on, off = result["rows"]
    lines = [
        "100 voice-bot prompts of 1,950 tokens that share 1,750, bundled model:",
        "",
        "| | caching on | off | off / on |",
        "|---|---|---|---|",
    ]
    for key, name in (
        ("one_by_one_ttft_ms", "TTFT p50, one after the other, ms"),
        ("together_ttft_p50_ms", "TTFT p50, all at once, ms"),
    ):
        ratio = result["off_over_on"][key]
        lines.append(f"| {name} | {on[key]:,.0f} | {off[key]:,.0f} | {ratio:.1f} |")
    for key, name in (
        ("one_by_one_hit_rate", "hit rate of full blocks looked up, one after the other"),
        ("together_hit_rate", "the same, all at once"),
        ("together_share_of_prompt_tokens", "hits over all prompt tokens, all at once"),
    ):
        lines.append(f"| {name} | {on[key]:.1%} | | |")
    return "\n".join([*lines, "", source("prefix_caching", result)])


def source(name: str, result: Result) -> str:
    """Where the figures come from."""
    hardware, versions = result["hardware"], result["versions"]
    instructions = hardware.get("instructions") or ["none of AVX-512, VNNI, BF16"]
    return (
        f"{result['date']}, {hardware['cpu']}, {hardware['cores']} cores ({', '.join(instructions)}"
        f"), torch {versions['torch']}: `{result['command']}`, "
        f"[results/{name}.json](benchmarks/results/{name}.json)."
    )


TABLES: dict[str, Callable[[Result], str]] = {
    "cpu_model": cpu_model,
    "prefix_caching": prefix_caching,
}


def fill(text: str) -> str:
    """Replace what stands between each pair of markers."""

    def table(found: re.Match[str]) -> str:
        name = found[1]
        result = json.loads((RESULTS / f"{name}.json").read_text())
        return f"<!-- table:{name} -->\n{TABLES[name](result)}\n<!-- end -->"

    return re.sub(r"<!-- table:(\w+) -->\n.*?<!-- end -->", table, text, flags=re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    stale = []
    for name in DOCUMENTS:
        path = ROOT / name
        text = path.read_text()
        if (filled := fill(text)) != text:
            stale.append(name)
            if not args.check:
                path.write_text(filled)
    if args.check and stale:
        sys.exit(f"stale tables in {', '.join(stale)}; run python benchmarks/tables.py")


if __name__ == "__main__":
    main()
