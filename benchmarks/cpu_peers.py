"""Quire beside llama.cpp, OpenVINO GenAI and transformers on a CPU: one run, in turns.

    python benchmarks/cpu_peers.py --rounds 3
    python benchmarks/cpu_peers.py --contexts 512 --rows quire llama_cpp:Q4_0
    until flock machine.lock python benchmarks/cpu_peers.py --resume --measurements 1; do :; done

Installs what is missing below --cache, each engine in a virtual environment of its own (llama.cpp
is built for this processor, which takes some minutes), writes one checkpoint of random weights in
the shape of Llama-3.2-1B and converts it with each engine's own tools. Nothing is fetched but
packages.

In each round every row has one measurement for each context length; each round starts with another
row. A measurement is a process of its own that ends before the next one begins, so nothing runs
beside what is measured: it loads the model, draws a first token (time since the process began),
computes a prompt of the context's length, goes on from it in 1, 8 and 16 streams (--streams), and
last reads memory. Before and after it the machine's own rates are taken. A measurement is disturbed
if other processes kept a tenth of a core busy, or if the machine's pace changed: it is stored,
counts only where a row has no other, and is repeated after all others.

Results are saved after every measurement, and --resume goes on from there. So a shared machine is
held for one measurement at a time (--measurements 1); the exit status is 3 while some are due.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import record
from peers.bench import SHAPE, STREAMS, Answer, Bench, WorkerError, add_options
from peers.disturbance import is_disturbed
from peers.install import PeerCache
from peers.rows import Row, all_rows

TRIES = 3  # measurements for each one that is wanted, before a row is given up
DUE = 3  # exit status

Key = tuple[int, str, str]  # context, engine, weights


def run(bench: Bench, rows: list[Row], args: argparse.Namespace) -> bool:
    """Measure until nothing is due, or up to the wanted number; returns whether more is due."""
    measurements = _earlier(args) if args.resume else []
    plan = {(c, row.engine, row.weights): row for row in rows for c in args.contexts}
    most = len(measurements) + args.measurements if args.measurements else None
    while (key := next_due(measurements, list(plan), args.rounds)) and len(measurements) != most:
        context, engine, weights = key
        seed = 1000 * sum(key_of(measurement) == key for measurement in measurements)
        found: Answer = {"engine": engine, "weights": weights, "context": context}
        try:
            found |= bench.measure_row(plan[key], context, seed)
            found["disturbed"] = is_disturbed(found)
        except WorkerError as failure:
            found["error"] = str(failure)
        print(found, flush=True)
        measurements.append(found)
        settings = {"shape": SHAPE.name, "threads": args.threads}
        record.save(args.name, result_of(measurements) | settings, args.out)
        stored = {"measurements": measurements}  # for --resume; not under version control
        record.save(f"{args.name}_measurements", stored, args.out)
    return key is not None


def next_due(measurements: list[Answer], keys: list[Key], rounds: int) -> Key | None:
    """The next row to measure: of those with the fewest valid measurements, the least tried."""
    counts, tries = _counted(measurements), Counter(map(key_of, measurements))
    due = [key for key in keys if counts[key] < rounds and tries[key] < TRIES * rounds]

    def turn(key: Key) -> tuple[int, int, int]:
        first = counts[key] * len(keys) // rounds
        return counts[key], tries[key], (keys.index(key) - first) % len(keys)

    return min(due, key=turn, default=None)


def key_of(measurement: Answer) -> Key:
    """(context, engine, weights) of a measurement."""
    return measurement["context"], measurement["engine"], measurement["weights"]


def _counted(measurements: list[Answer]) -> Counter[Key]:
    return Counter(key_of(v) for v in measurements if "error" not in v and not v.get("disturbed"))


def _earlier(args: argparse.Namespace) -> list[Answer]:
    """Measurements of earlier runs; none where there is no file."""
    path = args.out / f"{args.name}_measurements.json"
    found: list[Answer] = json.loads(path.read_text())["measurements"] if path.is_file() else []
    return found


def result_of(measurements: list[Answer]) -> dict[str, Any]:
    """The result file: a row for each engine, weight format and context that had a measurement."""
    groups: dict[Key, list[Answer]] = {}
    rates: dict[str, list[float]] = {}
    for measurement in measurements:
        if "error" not in measurement:
            groups.setdefault(key_of(measurement), []).append(measurement)
            for name, rate in [
                *measurement["rates_before"].items(),
                *measurement["rates_after"].items(),
            ]:
                rates.setdefault(name, []).append(rate)
    return {
        "rates": {name: statistics.median(found) for name, found in rates.items()},
        "rows": [_medians(undisturbed(groups[key])) for key in sorted(groups, key=_order)],
    }


def undisturbed(measurements: list[Answer]) -> list[Answer]:
    """Those that had the machine for themselves; all, where none had."""
    return [
        measurement for measurement in measurements if not measurement["disturbed"]
    ] or measurements


def _order(key: Key) -> tuple[int, int]:
    """The sort key: by context, then as in the list of rows."""
    context, engine, weights = key
    names = [(row.engine, row.weights) for row in all_rows()]
    known = (engine, weights) in names
    return context, names.index((engine, weights)) if known else len(names)


def _medians(measurements: list[Answer]) -> Answer:
    """Numbers as medians, everything else as in the newest measurement."""
    row: Answer = {"measurements": len(measurements)}
    for name, value in measurements[-1].items():
        values = [measurement[name] for measurement in measurements]
        if name == "decode_tokens_per_s":
            row[name] = {n: statistics.median(each[n] for each in values) for n in value}
        else:
            row[name] = statistics.median(values) if isinstance(value, float) else value
    return row


def chosen(patterns: list[str] | None) -> list[Row]:
    """Rows of the named engines, or single ones as `engine:weights`; without patterns all rows."""
    rows = all_rows()
    if patterns is None:
        return rows
    return [r for r in rows if {r.engine, f"{r.engine}:{r.weights}"} & set(patterns)]


def main() -> None:
    parser = record.parser(__doc__, "cpu_peers")
    add_options(parser, steps=128)
    parser.add_argument(
        "--here", nargs="*", default=[], help="engines that this interpreter has already"
    )
    parser.add_argument(
        "--wheels", type=Path, help="folder with a folder of wheels for each engine: no network"
    )
    parser.add_argument("--rounds", type=int, default=3, help="0 makes ready, and no more")
    parser.add_argument("--contexts", type=int, nargs="+", default=[512, 4000])
    parser.add_argument(
        "--streams", type=int, nargs="+", default=STREAMS, help="at a time; the first of them 1"
    )
    parser.add_argument("--rows", nargs="+", help="engines, or engine:weights; default: all")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on after the measurements that the result file has",
    )
    parser.add_argument("--measurements", type=int, help="the most in this call; default: all")
    args = parser.parse_args()
    rows = chosen(args.rows)
    peer_cache = PeerCache(args.cache, args.here, args.wheels)
    for engine in {row.engine for row in rows}:
        peer_cache.python_of(engine)
    bench = Bench(args, peer_cache, peer_cache.models(rows, SHAPE), args.streams)
    if run(bench, rows, args):
        sys.exit(DUE)


if __name__ == "__main__":
    main()
