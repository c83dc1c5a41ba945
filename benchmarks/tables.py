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

MARKED = re.compile(r"<!-- table:(\w+) -->\n(?:.*?\n)??<!-- end -->", re.DOTALL)

Result = dict[str, Any]


class TableError(Exception):
    """A document asks for a table that cannot be made."""


def cpu_model(result: Result) -> str:
    """Ours beside transformers, by batch size."""
    rows = {(row["engine"], row["batch"]): row for row in result["rows"]}
    ratios = {row["batch"]: row for row in result["ratios"]}
    lines = [
        f"Llama-3.2-1B shape, bfloat16, random weights, prompts of {result['input_len']} tokens, "
        f"tokens/s, medians of {result['rounds']} rounds and of their ratios:",
        "",
        "| batch | prefill | transformers | ratio | decode | transformers | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for batch in sorted({batch for _, batch in rows}):
        ours, theirs = rows["quire", batch], rows["transformers", batch]
        cells = [str(batch)]
        for phase in ("prefill", "decode"):
            key = f"{phase}_tokens_per_s"
            cells += [f"{ours[key]:.1f}", f"{theirs[key]:.1f}", f"{ratios[batch][phase]:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


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
    return "\n".join(lines)


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
    "cpu_model_amx": cpu_model,
    "prefix_caching": prefix_caching,
}


def fill(text: str) -> str:
    """Replace what stands between each pair of markers. Raises TableError."""
    num_markers, num_pairs = text.count("<!-- table:"), len(MARKED.findall(text))
    if num_markers != num_pairs:
        raise TableError(
            f"{num_markers} table markers, but {num_pairs} of them end; add <!-- end --> after each"
        )
    return MARKED.sub(
        lambda found: f"<!-- table:{found[1]} -->\n{make(found[1])}\n<!-- end -->", text
    )


def make(name: str) -> str:
    """The named table. Raises TableError."""
    if name not in TABLES:
        raise TableError(f"{name} is no table; known: {', '.join(TABLES)}")
    path = RESULTS / f"{name}.json"
    if not path.is_file():
        raise TableError(f"{path} is missing; run the benchmark that writes it")
    result = json.loads(path.read_text())
    if not result["rows"]:
        raise TableError(f"{path} has no rows, so the table is empty; run its benchmark again")
    return f"{TABLES[name](result)}\n\n{source(name, result)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    try:
        stale = update(write=not args.check)
    except TableError as error:
        sys.exit(str(error))
    if args.check and stale:
        sys.exit(f"stale tables in {', '.join(stale)}; run python benchmarks/tables.py")


def update(*, write: bool) -> list[str]:
    """Fill all documents; returns the names of those whose tables were stale. Raises TableError."""
    stale = []
    for name in DOCUMENTS:
        path = ROOT / name
        text = path.read_text()
        if (filled := fill(text)) != text:
            stale.append(name)
            if write:
                path.write_text(filled)
    return stale


if __name__ == "__main__":
    main()
