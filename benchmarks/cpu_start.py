"""From the start of a process to its first token on a CPU: phases, and memory beside the plan.

    python benchmarks/cpu_start.py --threads 2
    python benchmarks/cpu_start.py --formats bfloat16 --rounds 1 --profile

For each weight format of the checkpoint that cpu_peers.py writes: a cold start, which finds no
prepared weights and leaves some, and warm ones, which find them; files are in the page cache. Each
is a process of its own (peers/start.py), which loads, draws a first token after 16, and tells what
was resident at most. Beside them, `quire generate` with one token, warm, from its start to its end.
`--profile` shows what Python imports, the slowest first.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import chain
from pathlib import Path
from typing import Any

import record
from peers.install import BENCHMARKS, PeerCache
from peers.rows import Row

SHAPE = BENCHMARKS / "shapes" / "llama-3.2-1b"
FORMATS: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
    "int4": {"dtype": "bfloat16", "quantization": "int4"},
}
MAX_LEN, BLOCKS, STREAMS = 640, 640, 16  # tokens, KV blocks for all of them, requests at a time

Answer = dict[str, Any]


def start(fmt: str, model: Path, folder: Path, args: argparse.Namespace) -> Answer:
    """Times of a start. folder: of prepared weights. Ends the program if it fails."""
    settings = {"model": str(model), "device": "cpu", "threads": args.threads} | FORMATS[fmt]
    settings |= {"max_model_len": MAX_LEN, "num_blocks": BLOCKS, "max_num_seqs": STREAMS}
    settings["prepared_weights"] = str(folder)
    python = [sys.executable, *(["-X", "importtime"] if args.profile else [])]
    done = subprocess.run(
        [*python, "-m", "peers.start", json.dumps(settings)],
        cwd=BENCHMARKS,
        env=record.installed(OMP_NUM_THREADS=str(args.threads), HF_HUB_OFFLINE="1"),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(done.stderr)
    if args.profile:
        print(slowest(done.stderr))
    found: Answer = json.loads(done.stdout.splitlines()[-1])
    return found


def generate(fmt: str, model: Path, folder: Path, args: argparse.Namespace) -> Answer:
    """Times of the whole command. Ends the program if it fails."""
    given = FORMATS[fmt] | {"threads": args.threads, "max_model_len": MAX_LEN, "num_blocks": BLOCKS}
    given |= {"device": "cpu", "max_tokens": 1, "prompt": "a", "prepared_weights": str(folder)}
    flags = [(f"--{name.replace('_', '-')}", str(value)) for name, value in given.items()]
    command = [sys.executable, "-m", "quire", "generate", str(model), *chain(*flags)]
    begin = time.monotonic()
    process = subprocess.Popen(command, env=record.installed(), stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(command)}: {status}")
    seconds = time.monotonic() - begin
    return {"first_token_s": seconds, "peak_gb": usage.ru_maxrss * 1024 / 1e9}


def slowest(report: str, most: int = 25) -> str:
    """The lines of an import report with the most time of their own."""
    parts = [line.split("|") for line in report.splitlines() if line.startswith("import time:")]
    own = {"|".join(part): part[0].removeprefix("import time:").strip() for part in parts}
    timed = [line for line, time in own.items() if time.isdigit()]
    return "\n".join(sorted(timed, key=lambda line: -int(own[line]))[:most])


def medians(starts: list[Answer]) -> Answer:
    """Medians of each figure, and of each phase."""
    first = starts[0]
    found = {
        name: medians([each[name] for each in starts])
        if isinstance(value, dict)
        else round(statistics.median(each[name] for each in starts), 3)
        for name, value in first.items()
    }
    return found


def main() -> None:
    parser = record.parser(__doc__, "cpu_start")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "quire-bench")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--formats", nargs="+", default=list(FORMATS), choices=FORMATS)
    parser.add_argument("--rounds", type=int, default=3, help="warm starts of each formatat")
    parser.add_argument("--profile", action="store_true", help="what Python imports")
    args = parser.parse_args()
    models = PeerCache(args.cache).models([Row("quire", "bfloat16", "checkpoint")], SHAPE)
    rows = []
    for fmt in args.formats:
        with tempfile.TemporaryDirectory(dir=args.cache) as name:
            for kind, count in (("cold", 1), ("warm", args.rounds)):
                found = [start(fmt, models / "checkpoint", Path(name), args) for _ in range(count)]
                rows.append({"weights": fmt, "start": kind} | medians(found))
                print(rows[-1], flush=True)
            found = [generate(fmt, models / "checkpoint", Path(name), args) for _ in range(count)]
            rows.append({"weights": fmt, "start": "quire generate"} | medians(found))
            print(rows[-1], flush=True)
    record.save(args.name, {"threads": args.threads, "rows": rows}, args.out)


if __name__ == "__main__":
    main()
