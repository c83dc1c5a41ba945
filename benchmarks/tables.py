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

import cpu_tables
import gpu_tables
import quantization_tables
import server_tables
import serving_table
import suite_tables
from record import TRACKED as RESULTS

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    "README.md",
    "docs/cpu.md",
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

DAY = re.compile(r"\b\d{4}-\d\d-\d\d\b")
MARKED = re.compile(r"<!-- table:(\w+) -->\n(?:.*?\n)??<!-- end -->", re.DOTALL)

Result = dict[str, Any]


class TableError(Exception):
    """A document asks for a table that cannot be made."""


MODULES = cpu_tables, gpu_tables, quantization_tables, server_tables, serving_table, suite_tables
# tables that are made by the function of another
LIKE = {
    "cpu_peers_amx": "cpu_peers",
}


def table_maker(name: str) -> Callable[[Result], str]:
    """The function of a table's name, in one of the modules of tables. Raises TableError.

    All public functions that they define are tables; what they import is none.
    """
    made_by = LIKE.get(name, name)
    for module in MODULES:
        found: Callable[[Result], str] | None = vars(module).get(made_by)
        is_own = getattr(found, "__module__", None) == module.__name__
        if found is not None and is_own and not made_by.startswith("_"):
            return found
    raise TableError(f"{name} is no table: no module of tables has a function of that name")


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
        lambda found: f"<!-- table:{found[1]} -->\n{make(found[1], up)}\n\n<!-- end -->", text
    )


def make(name: str, up: str) -> str:
    """The named table, below where it was measured. Raises TableError."""
    maker = table_maker(name)
    results = {file: _read(RESULTS / f"{file}.json") for file in FILES.get(name, (name,))}
    first, *_ = results.values()
    own = {file: found for file, found in results.items() if "source" not in found}  # not others'
    sources = [source(file, found, up) for file, found in own.items()]
    origin = sources[0] if len(sources) == 1 else "\n".join(f"- {each}" for each in sources)
    return f"{origin}\n\n{maker(first)}"


def _read(path: Path) -> Result:
    if not path.is_file():
        raise TableError(f"{path} is missing; run the benchmark that writes it")
    result: Result = json.loads(path.read_text())
    if not result.get("rows", True):
        raise TableError(f"{path} has no rows, so the table is empty; run its benchmark again")
    return result


def source(name: str, result: Result, up: str) -> str:
    """When and where a file's figures were measured. up: from the document to the repository.

    A command says the day of those before it that measured other rows.
    """
    runs = _runs(result)
    days = sorted({day for run in runs for day in (run["date"], *DAY.findall(run["command"]))})
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
