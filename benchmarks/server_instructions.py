"""Instructions of the API process for a chat request, counted by valgrind: no clock, little noise.

    python benchmarks/server_instructions.py [--before OLD] [--save]

Keeps `quire serve --load-format null` busy as server_overhead.py does, with the API process under
callgrind, which a sitecustomize module puts it under as it starts. Its counter is read after each
round. What is left of noise is how many requests meet in a turn of the event loop.

--before: a checkout of another commit, with its native library built, to be counted as well.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import record
import uvloop
from server_overhead import ANSWER_TOKENS, SERVE, STREAM_TOKENS, Server, load, start

SITE = """
import os, sys
if "quire.server.worker" in sys.orig_argv and "CALLGRIND_RUNS" not in os.environ:
    os.environ["CALLGRIND_RUNS"] = "1"
    out = "--callgrind-out-file=" + os.environ["CALLGRIND_COUNTS"]
    command = ["valgrind", "-q", "--tool=callgrind", out, sys.executable, *sys.orig_argv[1:]]
    os.execvp("valgrind", command)
"""


@contextmanager
def counted_server(name: str, checkout: str, folder: Path) -> Iterator[Server]:
    """A server whose API process runs under callgrind, which writes its counts into a folder."""
    (folder / "sitecustomize.py").write_text(SITE)
    os.environ |= {"CALLGRIND_COUNTS": f"{folder}/counts", "PYTHONHASHSEED": "0"}
    os.environ["PYTHONPATH"] = str(folder)
    with tempfile.TemporaryFile("w") as log:
        server = start(name, SERVE, log, checkout)
        try:
            yield server
        finally:
            server.stop()


def take_count(server: Server, folder: Path) -> int:
    """Instructions since the last call."""
    command = ["callgrind_control", "--dump", str(server.api.pid)]
    subprocess.run(command, check=True, capture_output=True)
    (file,) = folder.glob("counts.*")
    found = re.search(r"^(?:summary|totals): (\d+)", file.read_text(errors="replace"), re.M)
    file.unlink()
    if found is None:
        sys.exit("callgrind has written no total")
    return int(found[1])


def measure(name: str, checkout: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Thousands of instructions for a request, with and without streaming: a row each."""
    rows = []
    with (
        tempfile.TemporaryDirectory() as folder,
        counted_server(name, checkout, Path(folder)) as server,
    ):
        for stream in (False, True):
            requests = args.streams if stream else args.requests
            counts = []
            for _ in range(args.rounds + 1):  # the first one warms up
                uvloop.run(load(server.url, args.connections, requests, stream=stream))
                counts.append(take_count(server, Path(folder)) / requests / 1000)
            row = {"server": name, "stream": stream, "kilo_instructions": _rounded(counts[1:])}
            rows.append(row | {"median": round(statistics.median(counts[1:]), 1)})
    return rows


def _rounded(counts: list[float]) -> list[float]:
    return [round(count, 1) for count in counts]


def main() -> None:
    parser = record.parser(__doc__, "server_instructions")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--requests", type=int, default=400, help="in each round")
    parser.add_argument("--streams", type=int, default=80, help="in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before", metavar="FOLDER", help="count the Quire of a checkout, too")
    args = parser.parse_args()
    if shutil.which("valgrind") is None:
        sys.exit("valgrind: not installed; install it with the system's package manager")
    rows = measure("quire", str(Path(__file__).parents[1]), args)
    found: dict[str, Any] = {"tokens": [ANSWER_TOKENS, STREAM_TOKENS], "rows": rows}
    if args.before:
        rows += (old := measure("before", args.before, args))
        pairs = zip(rows, old, strict=False)
        found["ratios"] = [round(new["median"] / before["median"], 3) for new, before in pairs]
    print(json.dumps(found, indent=1))
    record.save(args.name, found, args.out)


if __name__ == "__main__":
    main()
