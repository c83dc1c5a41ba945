"""The tables of the documents, made from the result files.

python benchmarks/tables.py            # write them between their markers
python benchmarks/tables.py --check    # only tell whether they are up to date
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from cpu_tables import (
    cpu_attention,
    cpu_growth,
    cpu_linear,
    cpu_peers,
    cpu_peers_brief,
    cpu_start,
)
from gpu_tables import (
    gemm_timings,
    gpu_chain,
    gpu_decode,
    gpu_decode_hopper,
    gpu_fp8_rows,
    gpu_int4,
    gpu_int4_serving,
    gpu_invariance,
    gpu_kv_dtype,
    gpu_layers,
    gpu_linear,
    gpu_prefill,
    gpu_rounds,
    gpu_rows,
    gpu_weights,
    gpu_weights_bytes,
    gpu_weights_w8a16,
)
from markdown_table import markdown_table
from quantization_tables import (
    quantization_choice,
    quantization_methods,
    quantization_parts,
    quantization_peers,
    quantization_quality,
)
from record import TRACKED as RESULTS
from serving_table import saturated, serving, step_profile, varied
from suite_tables import endpoint_suites, endpoint_suites_others

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    "README.md",
    "docs/cpu.md",
    "docs/decisions/gemm-configs.md",
    "docs/gguf.md",
    "docs/gpu-kernels.md",
    "docs/kv-cache.md",
    "docs/performance.md",
    "docs/profile.md",
    "docs/quantization.md",
    "docs/reliability.md",
    "docs/serving.md",
    "docs/testing.md",
]

MARKED = re.compile(r"<!-- table:(\w+) -->\n(?:.*?\n)??<!-- end -->", re.DOTALL)

Result = dict[str, Any]


class TableError(Exception):
    """A document asks for a table that cannot be made."""


def prefix_caching(result: Result) -> str:
    """Hit rate and time to first token, caching on and off."""
    on, off = result["rows"]
    rows = []
    for key, name in (
        ("one_by_one_ttft_ms", "TTFT p50, one after the other, ms"),
        ("together_ttft_p50_ms", "TTFT p50, all at once, ms"),
    ):
        ratio = result["off_over_on"][key]
        rows.append([name, f"{on[key]:,.0f}", f"{off[key]:,.0f}", f"{ratio:.1f}"])
    for key, name in (
        ("one_by_one_hit_rate", "hit rate of full blocks looked up, one after the other"),
        ("together_hit_rate", "the same, all at once"),
        ("together_share_of_prompt_tokens", "hits over all prompt tokens, all at once"),
    ):
        rows.append([name, f"{on[key]:.1%}", "", ""])
    caption = (
        f"{result['prompts']} voice-bot prompts of {result['input_len']:,} tokens that share "
        f"{result['shared_len']:,}, bundled model:"
    )
    return markdown_table(["", "caching on", "off", "off / on"], rows, caption)


def faults(result: Result) -> str:
    """Table of the bystanders' answers, by fault."""
    how = f" ({result['circumstances']})" if "circumstances" in result else ""
    head = ["fault", "answers identical", "p99 ITL, ms", "of quiet", "longest gap, s"]
    head += ["5xx to others", "blocks leaked", "fds, threads, tasks"]
    rows = []
    for row in result["rows"]:
        leaked, same = row["leaked"], "all" if row["identical"] else "**no**"
        cells = [row["what"], f"{same} {row['answers']}", f"{row['p99_itl_ms']:.1f}"]
        cells += [f"{row['p99_ratio']:.2f}", f"{row['longest_gap_seconds']:.2f}"]
        cells += [str(row["5xx_to_others"]), str(row["leaked_blocks"])]
        rows.append(
            [*cells, ", ".join(f"{leaked[kind]:+d}" for kind in ("fds", "threads", "tasks"))]
        )
    caption = f"{result['streams']} greedy streams of {result['tokens_per_answer']} tokens{how}:"
    return markdown_table(head, rows, caption)


def overload(result: Result) -> str:
    """Refusals and goodput at five times the capacity."""
    best = statistics.median(result["best_requests_per_second"])
    refused = sum(result["statuses"].get(status, 0) for status in ("429", "503"))
    rows = {
        "offered, requests/s": f"{result['offered_requests_per_second']:,.0f}",
        "best goodput without overload, requests/s": f"{best:.1f}",
        "goodput in the overload, requests/s": f"{result['goodput_requests_per_second']:.1f}",
        "of the best": f"{result['goodput_over_best']:.1%}",
        "refused": f"{refused:,}, {result['refused_without_retry_after']} without `Retry-After`",
        "time to a refusal, p50 / p99, ms": f"{result['refused_p50_ms']:.1f} / "
        f"{result['refused_p99_ms']:.1f}",
        "the client's own delay in sending, p99, ms": f"{result['client_lateness_p99_ms']:.1f}",
        "accepted / completed": f"{result['accepted']:,} / {result['accepted_and_whole']:,}",
        "time to a whole answer, p99, s": f"{result['accepted_p99_seconds']:.2f}",
    }
    return markdown_table(["", ""], rows.items())


def soak(result: Result) -> str:
    """Table of the resources held after half an hour."""
    grown, leaked = result["growth_mb"], result["leaked"]
    rows = {
        "time, minutes": f"{result['minutes']:g}",
        "requests / of them left early": f"{result['requests']:,} / {result['left_early']:,}",
        "tokens generated": f"{result['generated_tokens']:,.0f}",
        "memory growth after the warm-up, MB": ", ".join(
            f"{name} {megabytes:+.1f}" for name, megabytes in grown.items()
        ),
        "KV blocks in use at rest": f"{result['used_blocks_at_rest']}",
        "file descriptors, threads, tasks at rest": ", ".join(
            f"{leaked[kind]:+d}" for kind in ("fds", "threads", "tasks")
        ),
        "unexplained answers": f"{len(result['unexplained'])}",
    }
    return markdown_table(["", ""], rows.items())


def server_overhead(result: Result) -> str:
    """Requests per core-second of the API process, beside bare stacks."""
    rows = []
    for row, (unit, name) in zip(
        result["rows"],
        (("requests", "requests of 15 tokens"), ("tokens", "streamed tokens")),
        strict=True,
    ):
        servers, key = row["servers"], f"{unit}_per_api_core_second"
        cells = [name, f"{servers['quire'][key]:,.0f}"]
        for stack in ("raw", "starlette"):
            cells += [f"{servers[stack][key]:,.0f}", f"{row['ratios'][stack]:.2f}"]
        rows.append([*cells, f"{servers['quire'][f'{unit}_per_engine_core_second']:,.0f}"])
    head = ["", "Quire's API process", "raw ASGI", "ratio", "starlette, msgspec", "ratio"]
    caption = (
        f"Per second of processor time, {result['connections']} connections, medians of "
        f"{result['rounds']} rounds in turns and of their ratios:"
    )
    return markdown_table([*head, "the engine"], rows, caption)


def server_profile(result: Result) -> str:
    """The dearest functions of the API process."""
    rows = [
        [cell for name, share in pair for cell in (f"`{name}`", f"{share:.1%}")]
        for pair in zip(*result["profiles"], strict=True)
    ]
    caption = "What remains, by own time of the event loop's thread:"
    return markdown_table(["whole requests", "share", "streams", "share"], rows, caption)


def api_fuzz(result: Result) -> str:
    """Table of the servers' answers to generated requests."""
    head = ["server", "requests", "valid ones", "2xx", "408", "other 4xx", "503", "other 5xx"]
    rows = []
    for row in result["rows"]:
        seen = {int(k.split()[1]): n for k, n in row["seen"].items() if k.startswith("status ")}
        of = {
            hundred: sum(n for s, n in seen.items() if s // 100 == hundred) for hundred in (2, 4, 5)
        }
        late, unavailable = seen.get(408, 0), seen.get(503, 0)
        figures = (
            row["cases"]["generated"], row["seen"]["positive"], of[2], late, of[4] - late,
            unavailable, of[5] - unavailable, row["cases"].get("unique_failures", 0),
        )  # fmt: skip
        rows.append([row["model"], *(f"{n:,}" for n in figures)])
    return markdown_table([*head, "failed"], rows)


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


TABLES: dict[str, Callable[[Result], str]] = {
    "cpu_attention": cpu_attention,
    "cpu_growth": cpu_growth,
    "endpoint_suites": endpoint_suites,
    "endpoint_suites_others": endpoint_suites_others,
    "cpu_peers": cpu_peers,
    "cpu_peers_amx": cpu_peers,
    "cpu_peers_brief": cpu_peers_brief,
    "cpu_linear": cpu_linear,
    "cpu_start": cpu_start,
    "prefix_caching": prefix_caching,
    "api_fuzz": api_fuzz,
    "faults": faults,
    "faults_two_cores": faults,
    "quantization_quality": quantization_quality,
    "quantization_methods": quantization_methods,
    "quantization_methods_cpu": quantization_methods,
    "quantization_trained": quantization_methods,
    "quantization_choice": quantization_choice,
    "quantization_parts": quantization_parts,
    "quantization_peers": quantization_peers,
    "gguf_quality": gguf_quality,
    "overload": overload,
    "soak": soak,
    "server_overhead": server_overhead,
    "server_profile": server_profile,
    "gpu_int4": gpu_int4,
    "gpu_int4_serving": gpu_int4_serving,
    "gpu_kv_dtype": gpu_kv_dtype,
    "gpu_weights": gpu_weights,
    "gpu_weights_bytes": gpu_weights_bytes,
    "gpu_weights_w8a16": gpu_weights_w8a16,
    "gpu_invariance": gpu_invariance,
    "gpu_linear": gpu_linear,
    "gpu_rounds": gpu_rounds,
    "gpu_rows": gpu_rows,
    "gpu_fp8_rows": gpu_fp8_rows,
    "gemm_timings": gemm_timings,
    "gpu_chain": gpu_chain,
    "gpu_layers": gpu_layers,
    "gpu_decode": gpu_decode,
    "gpu_decode_hopper": gpu_decode_hopper,
    "gpu_prefill": gpu_prefill,
    "step_profile": step_profile,
    "gpu_varied": varied,
    "vllm_serving": serving,
    "published_saturated": saturated,
}


# the result files of tables that are not made of the one of their name alone, its function's first
FILES = {
    "cpu_peers_brief": ("cpu_peers_amx",),
    "quantization_choice": ("gpu_int4_serving", "quantization_trained", "cpu_weights"),
    "endpoint_suites_others": ("endpoint_suites",),
    "vllm_serving": ("vllm_serving", "gpu_serving_server", "gpu_first_start"),
    "published_saturated": ("published_saturated", "gpu_saturated"),
}


def fill(text: str, up: str = "") -> str:
    """Replace the text between each pair of markers. up: see `source`. Raises TableError."""
    num_markers, num_pairs = text.count("<!-- table:"), len(MARKED.findall(text))
    if num_markers != num_pairs:
        raise TableError(
            f"{num_markers} table markers, but {num_pairs} of them end; add <!-- end --> after each"
        )
    return MARKED.sub(
        lambda found: f"<!-- table:{found[1]} -->\n{make(found[1], up)}\n<!-- end -->", text
    )


def make(name: str, up: str) -> str:
    """The named table, below where it was measured and above the commands. Raises TableError."""
    if name not in TABLES:
        raise TableError(f"{name} is no table; known: {', '.join(TABLES)}")
    results = {file: _read(RESULTS / f"{file}.json") for file in FILES.get(name, (name,))}
    first, *_ = results.values()
    own = {file: found for file, found in results.items() if "source" not in found}  # not others'
    sources = [source(file, found, up) for file, found in own.items()]
    origin = sources[0] if len(sources) == 1 else "\n".join(f"- {each}" for each in sources)
    return f"{origin}\n\n{TABLES[name](first)}\n\n{commands(own.values())}"


def _read(path: Path) -> Result:
    if not path.is_file():
        raise TableError(f"{path} is missing; run the benchmark that writes it")
    result: Result = json.loads(path.read_text())
    if not result.get("rows", True):
        raise TableError(f"{path} has no rows, so the table is empty; run its benchmark again")
    return result


def source(name: str, result: Result, up: str) -> str:
    """When and where a file's figures were measured. up: from the document to the repository."""
    days = sorted({run["date"] for run in _runs(result)})
    when = " to ".join(dict.fromkeys((days[0], days[-1])))
    hardware, versions = result["hardware"], result["versions"]
    where = f"{hardware['cores']} cores"
    if "gpu" in result:
        where = f"{result['gpu']}, {where}, torch {versions['torch']}, Triton {versions['triton']}"
    else:
        sets = ", ".join(hardware.get("instructions") or ["none of AVX-512, VNNI, BF16"])
        cpu = hardware["cpu"].replace("(R)", "")
        where = f"{cpu}, {where} ({sets}), torch {versions['torch']}"
    return f"{when}, {where} ([{name}.json]({up}benchmarks/results/{name}.json))."


def commands(results: Iterable[Result]) -> str:
    """The commands that measured these results, one a line, in a block that readers open.

    What a file says before one, such as the rows that it measured, is a comment above it.
    """
    found = dict.fromkeys(run["command"] for result in results for run in _runs(result))
    lines = "\n".join(line for command in found for line in command.split("; "))
    text = re.sub(r"\bpython (?=\w+\.py)", "python benchmarks/", lines)
    text = re.sub(r"(?m)^((?:(?!python ).)+): (?=python )", r"# \1:\n", text)
    return f"<details><summary>Commands</summary>\n\n```\n{text}\n```\n\n</details>"


def _runs(result: Result) -> list[Result]:
    """Rows that have date and command of the run that measured them, and the last run."""
    lists = (result.get(key) for key in ("rows", "levels", "starts"))
    rows = [row for rows in lists if isinstance(rows, list) for row in rows]
    dicts = [row for row in rows if isinstance(row, dict)]
    return [*(row for row in dicts if {"date", "command"} <= row.keys()), result]


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
        if (filled := fill(text, "../" * name.count("/"))) != text:
            stale.append(name)
            if write:
                path.write_text(filled)
    return stale


if __name__ == "__main__":
    main()
