"""vLLM's and llama.cpp's own server tests, adapted only in how the server is started.

    pip download vllm==0.33.0 llama-cpp-python --no-deps --no-binary :all:     # or clones
    python endpoint_suites.py --source vllm-0.33.0 [--llama-cpp FOLDER] [--only PART ...]

Needs `pip install fastapi pytest-asyncio pillow pybase64 requests` besides the extra `test`.
Nothing of them is stored: test files are copied to a temporary folder, beside stand-ins for the few
names that they import (endpoint_suites/). The model is the bundled one under a template with tools
(endpoint_suites/suite_model.py), served under the name that a test asks for. Tests that need a
clever model, an image or an adapter cannot pass; REASONS of each suite (endpoint_suites/*_tests.py)
says which failures are Quire's choice or the model's. With --only, rows of earlier runs stay.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import record

HERE = Path(__file__).parent
STAND_INS = HERE / "endpoint_suites"
sys.path.insert(0, str(STAND_INS))

import llama_cpp_tests  # noqa: E402 - of that folder
import vllm_tests  # noqa: E402
from suite_model import make_model  # noqa: E402

Row = dict[str, str]  # of a test: its name, its outcome, and why
LLAMA_CPP = "llama.cpp/"  # before names of its tests
# "choice": refused by name (docs/http-api.md); "model": needs another model; "vllm": tests vLLM's
# own insides
KINDS = ("passed", "missing", "choice", "model", "vllm", "skipped")


def main() -> None:
    """Run the suite and write results/endpoint_suites.json."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--source", type=Path, help="vLLM's source tree")
    parser.add_argument("--llama-cpp", type=Path, help="llama.cpp's source tree")
    parser.add_argument("--only", nargs="*", default=(), help="parts of file names")
    parser.add_argument("--results", type=Path, default=record.RESULTS, help="where they are saved")
    args = parser.parse_args()
    earlier: dict[str, Any] = _saved(args.results) if args.only else {"files": [], "failed": []}
    rows: list[Row] = []
    for source, run in ((args.source, run_vllm), (args.llama_cpp, run_llama_cpp)):
        if source is not None:
            with tempfile.TemporaryDirectory() as folder:
                make_model(Path(folder) / "model", reasons=source is args.source)
                rows += run(source, Path(folder), args.only)
    files, failed = counts(rows), failures(rows)
    ran = {row["file"] for row in files}
    files += [row for row in earlier["files"] if row["file"] not in ran]
    failed += [row for row in earlier["failed"] if row["test"].partition("::")[0] not in ran]
    files.sort(key=lambda row: str(row["file"]))
    failed.sort(key=lambda row: row["test"])
    measured = {
        "source": earlier.get("source") or args.source.name,
        "files": files,
        "failed": failed,
    }
    record.save("endpoint_suites", measured, args.results)
    show([row for row in files if row["file"] in ran], failed, ran)


def _saved(folder: Path) -> dict[str, list[Row]]:
    file = folder / "endpoint_suites.json"
    return json.loads(file.read_text()) if file.exists() else {"files": [], "failed": []}


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
    return _known(row)[0]


def counts(rows: list[Row]) -> list[dict[str, str | int]]:
    """How many tests of each file came out how."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        found[_short(row).partition("::")[0]][kind_of(row)] += 1
    return [{"file": file} | {kind: count[kind] for kind in KINDS} for file, count in found.items()]


def failures(rows: list[Row]) -> list[Row]:
    """A reason for each test that failed."""
    return [
        {"test": _short(row), "kind": kind_of(row), "why": _reason(row)}
        for row in rows
        if row["outcome"] not in ("passed", "skipped")
    ]


def _reason(row: Row) -> str:
    return _known(row)[1]


def _known(row: Row) -> tuple[str, str]:
    """The kind and the reason of a test that failed."""
    suite = llama_cpp_tests if row["test"].startswith(LLAMA_CPP) else vllm_tests
    text = row["test"] + " " + row["why"]
    found = (known for part, known in suite.REASONS.items() if part in text)
    return next(found, ("missing", row["why"][:160]))


def _short(row: Row) -> str:
    return row["test"].removeprefix("tests/entrypoints/")


def show(files: list[dict[str, Any]], failed: list[Row], ran: set[str]) -> None:
    """Print counts by file, and the failures that are nobody's choice."""
    for row in files:
        print(f"{row['file']:60s}", {kind: row[kind] for kind in KINDS if row[kind]})
    print("all:", {kind: sum(row[kind] for row in files) for kind in KINDS})
    for row in failed:
        if row["kind"] == "missing" and row["test"].partition("::")[0] in ran:
            print(row["test"], "\n   ", row["why"])


if __name__ == "__main__":
    main()
