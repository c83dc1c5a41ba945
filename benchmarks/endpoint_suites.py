"""vLLM's and llama.cpp's own server tests, adapted only in how the server is started.

    pip download vllm==0.33.0 llama-cpp-python==0.3.36 --no-deps --no-binary :all:     # or clones
    python endpoint_suites.py --source vllm-0.33.0 --llama-cpp llama.cpp

Needs `pip install fastapi pytest-asyncio pillow pybase64 requests` besides the extra `test`.
Nothing of them is stored: test files are copied to a temporary folder, beside stand-ins for the few
names that they import (endpoint_suites/). The model is the bundled one under a template with tools
(endpoint_suites/suite_model.py), served under the name that a test asks for. A test that fails has
a reason if its name and its message are those of one (endpoint_suites/reasons.py); else it counts
as missing. One run makes one result; with --only it is shown and not saved. --rows: judge the
outcomes of an earlier run, which it left there, by the reasons of now.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import record

HERE = Path(__file__).parent
STAND_INS = HERE / "endpoint_suites"
sys.path.insert(0, str(STAND_INS))

import llama_cpp_tests  # noqa: E402 - of that folder
import vllm_tests  # noqa: E402
from reasons import Reason, reason_of  # noqa: E402
from suite_model import make_model  # noqa: E402

Row = dict[str, str]  # of a test: its name, its outcome, and why
LLAMA_CPP = "llama.cpp/"  # before names of its tests
VERSIONS = "vLLM 0.33.0, llama.cpp of llama-cpp-python 0.3.36"
ROWS = Path(tempfile.gettempdir()) / "endpoint_suites.jsonl"
KINDS = (
    *("passed", "missing", "differs", "standard", "choice"),
    *("model", "internals", "skipped"),
)


def main() -> None:
    """Run the suites and write results/endpoint_suites.json."""
    parser = record.parser(__doc__, "endpoint_suites")
    parser.add_argument("--source", type=Path, help="vLLM's source tree")
    parser.add_argument("--llama-cpp", type=Path, help="llama.cpp's source tree")
    parser.add_argument("--only", nargs="*", default=(), help="parts of file names")
    parser.add_argument(
        "--rows", type=Path, help=f"outcomes of a run, as JSON lines; a run's default: {ROWS}"
    )
    args = parser.parse_args()
    suites = [(args.source, run_vllm), (args.llama_cpp, run_llama_cpp)]
    runs = [(source, run) for source, run in suites if source]
    if not (runs or (args.rows and args.rows.is_file())):
        parser.error("name a source tree by --source or --llama-cpp, or a run's outcomes by --rows")
    file = args.rows or ROWS
    if runs:
        rows = [row for source, run in runs for row in _run(source, run, args.only)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    files, failed = counts(rows), failures(rows)
    files.sort(key=lambda row: str(row["file"]))
    if not args.only:
        measured = {"versions_of_tests": VERSIONS, "files": files, "failed": failed}
        record.save(args.name, measured, args.out)
    show(files, failed)


def _run(source: Path, run: Callable[..., list[Row]], only: Sequence[str]) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder) / "model", reasons=run is run_vllm)
        return run(source, Path(folder), only)


def run_vllm(source: Path, folder: Path, only: Sequence[str]) -> list[Row]:
    """Copy vLLM's tests and run them, a folder at a time; one row for each test."""
    shutil.copytree(STAND_INS, folder, dirs_exist_ok=True)
    rows: list[Row] = []
    for files in vllm_tests.copy(source, folder).values():
        chosen = [name for name in files if not only or any(part in name for part in only)]
        for name in chosen:
            vllm_tests.copy_file(source / "tests", folder / "tests", f"entrypoints/{name}")
        names = [f"tests/entrypoints/{name}" for name in chosen]
        rows += _run_files(folder, folder, names) if chosen else []
    return rows


def run_llama_cpp(source: Path, folder: Path, only: Sequence[str]) -> list[Row]:
    """Copy llama.cpp's server tests and run them; one row for each test."""
    files = llama_cpp_tests.copy(source, folder)
    names = [f"{LLAMA_CPP}{name}" for name in files]
    chosen = [name for name in names if not only or any(part in name for part in only)]
    inner = [name.removeprefix(LLAMA_CPP) for name in chosen]
    rows = _run_files(folder, folder / llama_cpp_tests.FOLDER, inner) if chosen else []
    return [row | {"test": LLAMA_CPP + row["test"]} for row in rows]


def _run_files(folder: Path, where: Path, names: list[str]) -> list[Row]:
    """Run files in the folder `where`. folder: with the model and the stand-ins."""
    report = folder / "report.jsonl"
    report.unlink(missing_ok=True)
    paths = [*map(str, (where, folder, STAND_INS, HERE.parent / "src"))]
    paths.append(os.environ.get("PYTHONPATH", ""))
    environment = os.environ | {
        "PYTHONPATH": ":".join(paths),
        "SUITE_REPORT": str(report),
        "SUITE_MODEL": str(folder / "model"),
        "SUITE_LOG": str(folder / "server.log"),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "suite_report", "-p", "no:cacheprovider"]
    command += ["-W", "ignore", "--tb=short", "-c", "/dev/null", "--rootdir", str(where)]
    command += ["-o", "asyncio_mode=auto", "--continue-on-collection-errors"]
    command += ["-k", "not watermarked"]  # the same tests once more, with an option that is refused
    command += ["-m", "not slow"]  # these download models
    subprocess.run([*command, *names], cwd=where, env=environment, timeout=1800, check=False)
    return [json.loads(line) for line in report.read_text().splitlines()]


def kind_of(row: Row) -> str:
    """One of KINDS."""
    if row["outcome"] in ("passed", "skipped"):
        return row["outcome"]
    return _reason(row).kind


def counts(rows: list[Row]) -> list[dict[str, str | int]]:
    """Numbers of tests of each file, by outcome."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        found[_short(row).partition("::")[0]][kind_of(row)] += 1
    return [{"file": file} | {kind: count[kind] for kind in KINDS} for file, count in found.items()]


def failures(rows: list[Row]) -> list[dict[str, Any]]:
    """The tests that failed, those of one function with one reason together.

    why: the reason; where there is none, the message.
    """
    found = Counter(
        (_short(row).partition("[")[0], kind_of(row), _reason(row).why)
        for row in rows
        if row["outcome"] not in ("passed", "skipped")
    )
    names = ("test", "kind", "why", "count")
    return [dict(zip(names, (*key, count), strict=True)) for key, count in sorted(found.items())]


def _reason(row: Row) -> Reason:
    """The reason of a test that failed."""
    suite = llama_cpp_tests if row["test"].startswith(LLAMA_CPP) else vllm_tests
    found = reason_of(row["test"], row["why"], suite.REASONS)
    return found or Reason(row["test"], "", "missing", row["why"][:160])


def _short(row: Row) -> str:
    return row["test"].removeprefix("tests/entrypoints/")


def show(files: list[dict[str, Any]], failed: list[dict[str, Any]]) -> None:
    """Print counts by file, and the failures that count."""
    for row in files:
        print(f"{row['file']:60s}", {kind: row[kind] for kind in KINDS if row[kind]})
    print("all:", {kind: sum(row[kind] for row in files) for kind in KINDS})
    for row in failed:
        if row["kind"] in ("missing", "differs"):
            print(row["kind"], row["count"], row["test"], "\n   ", row["why"])


if __name__ == "__main__":
    main()
