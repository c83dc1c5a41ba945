"""schemathesis over /openapi.json of a running server, with valid and with wrong data.

python benchmarks/api_fuzz.py                  # 1,000 examples for each operation, and saves them
python benchmarks/api_fuzz.py --examples 20 --seed 3 --no-save

Two servers take their turns: one without a model (`--load-format null`) whose chat template has
tools and thoughts, and one with the bundled model, for a tenth of the examples and without the
phase that covers each bound, since a model takes its time. What counts as a failure, besides
schemathesis' own checks, is in api_fuzz_hooks.py. Needs `pip install quire[fuzz]`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import record

ROOT = Path(__file__).parents[1]
HOOKS = Path(__file__).with_name("api_fuzz_hooks.py")
TEMPLATE = ROOT / "tests" / "tokenizer" / "templates" / "qwen.jinja"
BUNDLED = ROOT / "src" / "quire" / "bundled" / "quire-tiny"
SERVE = ["--port", "0", "--served-model-name", "quire", "--max-model-len", "128"]

# These two know less than the hooks about which refusals and 504s are right.
REPLACED = "positive_data_acceptance,not_a_server_error"


@contextmanager
def server(*options: str) -> Iterator[str]:
    """A server's address; it is stopped at the end, and must then end well."""
    command = [sys.executable, "-m", "quire", "serve", *options, *SERVE]
    process = subprocess.Popen(
        [*command, "--log-level", "warning"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    ready = re.search(r"ready at (http://\S+)", process.stdout.readline())
    if ready is None:
        raise SystemExit("the server did not start; its messages stand above")
    try:
        yield ready[1]
        assert process.poll() is None, "the server has died"
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0, f"the server ended with status {process.returncode}"


def model_with_tools(folder: Path) -> Path:
    """The bundled model's configuration and tokenizer, with a template for tools and thoughts."""
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        shutil.copy(BUNDLED / name, folder)
    config = json.loads((BUNDLED / "tokenizer_config.json").read_text())
    config["chat_template"] = TEMPLATE.read_text()
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def fuzz(url: str, examples: int, seed: int, phases: str, folder: Path) -> dict[str, Any]:
    """Run schemathesis; returns its figures and the hooks'."""
    report, counts = folder / "report.json", folder / "counts.json"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json"),
            *("--max-examples", str(examples), "--seed", str(seed), "--continue-on-failure"),
            *("--phases", phases, "--exclude-checks", REPLACED, "--no-color"),
            *("--generation-database", "none"),
            *("--request-timeout", "60", "--report", "json", "--report-json-path", str(report)),
        ],
        cwd=folder,  # it leaves a cache behind
        env=os.environ | {"SCHEMATHESIS_HOOKS": str(HOOKS), "API_FUZZ_COUNTS": str(counts)},
        check=False,
    )
    told = json.loads(report.read_text())
    return {
        "schemathesis": told["schemathesis_version"],
        "seed": seed,
        "exit_code": done.returncode,
        "seconds": round(told["running_time"]),
        "operations": told["operations"]["tested"],
        "cases": told["test_cases"],
        "seen": json.loads(counts.read_text()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=1000, help="for each operation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-save", action="store_true")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tools = (str(model_with_tools(folder)), "--load-format", "null")
        runs = [
            ("null, with tools", options.examples, "examples,coverage,fuzzing", tools),
            ("quire-tiny", options.examples // 10, "examples,fuzzing", ("quire-tiny",)),
        ]
        for model, examples, phases, serve in runs:
            with server(*serve) as url:
                told = fuzz(url, examples, options.seed, phases, folder)
            row = {"model": model, "examples_per_operation": examples} | told
            rows.append(row)
            print(json.dumps(row, indent=1))
            if not options.no_save:
                record.save("api_fuzz", {"rows": rows})
    sys.exit(any(row["exit_code"] for row in rows))


if __name__ == "__main__":
    main()
