"""schemathesis over /openapi.json of a running server, with valid and with wrong data.

python benchmarks/api_fuzz.py --save           # 1,000 examples for each operation
python benchmarks/api_fuzz.py --examples 20 --seed 3

Three servers take their turns: one without a model (`--load-format null`) whose chat template has
tools and thoughts; the admin listener of another; and one with the bundled model. The last two get
a tenth of the examples, since models take their time to come, to go and to answer, and the last one
not the phase that covers each bound. Making requests costs more than answering them, so the
operations of the first are shared out to two processes. What counts as a failure, besides
schemathesis' own checks, is in api_fuzz_hooks.py. Needs `pip install -e '.[fuzz]'`.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import record
from server_process import end_server, running_server

from quire.processes import die_with_parent

record.require("schemathesis")

ROOT = Path(__file__).parents[1]
HOOKS = Path(__file__).with_name("api_fuzz_hooks.py")
TEMPLATE = ROOT / "tests" / "tokenizer" / "templates" / "qwen.jinja"
BUNDLED = ROOT / "src" / "quire" / "bundled" / "quire-tiny"
SERVE = ["--served-model-name", "quire", "--max-model-len", "128", "--log-level", "warning"]

ADMIN_KEY = "fuzz"
HALF = "completions|tokenize"  # about half of the work
REPORT_SECONDS = 15.0  # between lines of progress

# These two know less than the hooks about which refusals and 408s are right.
REPLACED = "positive_data_acceptance,not_a_server_error"

# Wrong data that gives itself no time is refused for that: schemathesis' own list has no 408.
REFUSALS = ["400", "401", "404", "405", "408", "413", "415", "429", "431", "503"]
CONFIG = f"[checks.negative_data_rejection]\nexpected-statuses = {json.dumps(REFUSALS)}\n"


@dataclass(frozen=True, slots=True)
class Run:
    """One row of the table. share: of the examples. groups: how operations are shared out."""

    name: str
    serve: tuple[str, ...]
    share: float = 0.1
    phases: str = "examples,coverage,fuzzing"
    groups: tuple[tuple[str, str], ...] = (("--include-path-regex", "."),)
    is_admin: bool = False


@contextmanager
def server(*options: str) -> Iterator[str]:
    """A server's address; it is stopped at the end, and must then end well."""
    with running_server(*options, *SERVE, stderr=None, preexec_fn=die_with_parent) as (
        process,
        url,
    ):
        yield url
        assert process.poll() is None, "the server has died"
        end_server(process)


def model_with_tools(folder: Path) -> Path:
    """The bundled model's configuration and tokenizer, with a template for tools and thoughts."""
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        shutil.copy(BUNDLED / name, folder)
    config = json.loads((BUNDLED / "tokenizer_config.json").read_text())
    config["chat_template"] = TEMPLATE.read_text()
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def free_port() -> int:
    """A port that is not in use."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@contextmanager
def target(run: Run) -> Iterator[tuple[str, list[str]]]:
    """The address of a run's document, and the options that schemathesis needs there."""
    port = free_port()
    admin = ["--admin-port", str(port), "--admin-api-key", ADMIN_KEY] if run.is_admin else []
    with server(*run.serve, *admin) as url:
        if run.is_admin:
            yield f"http://127.0.0.1:{port}", ["--header", f"Authorization: Bearer {ADMIN_KEY}"]
        else:
            yield url, []


class Shard:
    """schemathesis for some of the operations, in a process of its own."""

    def __init__(self, folder: Path, command: list[str]) -> None:
        folder.mkdir()
        (folder / "schemathesis.toml").write_text(CONFIG)
        self._report, self._counts = folder / "report.json", folder / "counts.json"
        self._log = folder / "log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*command, "--report", "json", "--report-json-path", str(self._report)],
                cwd=folder,  # it leaves a cache behind
                env=os.environ
                | {"SCHEMATHESIS_HOOKS": str(HOOKS), "API_FUZZ_COUNTS": str(self._counts)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def is_done(self) -> bool:
        return self._process.poll() is not None

    @property
    def seen(self) -> Counter[str]:
        """The hooks' figures so far."""
        return Counter(json.loads(self._counts.read_text()) if self._counts.exists() else {})

    def result(self) -> dict[str, Any]:
        """The figures at the end; prints failures."""
        if self._process.returncode:
            print(self._log.read_text(), flush=True)
        report = json.loads(self._report.read_text())
        return {
            "schemathesis": report["schemathesis_version"],
            "exit_code": self._process.returncode,
            "operations": report["operations"]["tested"],
            "cases": Counter(report["test_cases"]),
        }


def fuzz(run: Run, examples: int, seed: int, folder: Path) -> dict[str, Any]:
    """Run schemathesis on a run's server; returns its figures and the hooks'."""
    begin = time.monotonic()
    with target(run) as (url, options):
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json", *options),
            *("--max-examples", str(examples), "--seed", str(seed), "--continue-on-failure"),
            *("--phases", run.phases, "--exclude-checks", REPLACED, "--no-color"),
            *("--generation-database", "none", "--request-timeout", "60"),
            *("--suppress-health-check", "too_slow"),  # it tells of the machine
        ]
        shards = [
            Shard(folder / f"{run.name}-{number}", [*command, *group])
            for number, group in enumerate(run.groups)
        ]
        follow(run.name, shards, begin)
    results = [shard.result() for shard in shards]
    return {
        "model": run.name,
        "examples_per_operation": examples,
        "schemathesis": results[0]["schemathesis"],
        "seed": seed,
        "exit_code": max(result["exit_code"] for result in results),
        "seconds": round(time.monotonic() - begin),
        "operations": sum(result["operations"] for result in results),
        "cases": sum((result["cases"] for result in results), Counter()),
        "seen": sum((shard.seen for shard in shards), Counter()),
    }


def follow(name: str, shards: list[Shard], begin: float) -> None:
    """Wait for the end, and tell now and then how far it is."""
    reported = begin
    while not all(shard.is_done for shard in shards):
        time.sleep(0.5)
        if time.monotonic() - reported > REPORT_SECONDS:
            reported = time.monotonic()
            seen = sum((shard.seen for shard in shards), Counter[str]())
            statuses = {k.split()[1]: n for k, n in sorted(seen.items()) if k.startswith("status")}
            total = sum(statuses.values())
            print(f"{name}: {reported - begin:.0f} s, {total:,} requests, {statuses}", flush=True)


def main() -> None:
    parser = record.parser(__doc__, "api_fuzz")
    parser.add_argument("--examples", type=int, default=1000, help="for each operation")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        null = (str(model_with_tools(folder)), "--load-format", "null")
        halves = (("--include-path-regex", HALF), ("--exclude-path-regex", HALF))
        runs = [
            Run("null, with tools", null, share=1.0, groups=halves),
            Run("null, admin listener", null, is_admin=True),
            Run("quire-tiny", ("quire-tiny",), phases="examples,fuzzing"),
        ]
        for run in runs:
            rows.append(fuzz(run, max(1, int(args.examples * run.share)), args.seed, folder))
            print(json.dumps(rows[-1], indent=1), flush=True)
            record.save(args.name, {"rows": rows}, args.out)
    sys.exit(any(row["exit_code"] for row in rows))


if __name__ == "__main__":
    main()
