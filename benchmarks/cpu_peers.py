"""Quire beside llama.cpp, OpenVINO GenAI and transformers on a CPU: one run, in turns.

    python benchmarks/cpu_peers.py --rounds 3
    python benchmarks/cpu_peers.py --contexts 512 --rows quire llama_cpp:Q4_0
    until flock machine.lock python benchmarks/cpu_peers.py --resume --visits 1; do :; done

Installs what is missing below --cache, each engine in a virtual environment of its own (llama.cpp
is built for this processor, which takes some minutes), writes one checkpoint of random weights in
the shape of Llama-3.2-1B and converts it with each engine's own tools. Nothing is fetched but
packages.

In each round every row has one visit for each context length, the first row being another one in
each round. A visit is a process of its own that ends before the next one begins, so nothing runs
beside what is measured: it loads the model, draws a first token (time since the process began),
computes a prompt of the context's length, goes on from it in 1, 8 and 16 streams, and last reads
memory. Before and after it the machine's own rates are taken. A visit beside which somebody else
kept a tenth of a core busy, or during which the machine's pace changed, is disturbed: it is kept,
counts only where a row has no other, and is repeated after all others had their turn.

Results are saved after every visit, and --resume goes on from there. So a shared machine need be
held for a visit at a time only (--visits 1); the exit status is 3 while some are due.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from peers.bench import SHAPE, Answer, Bench, WorkerError, add_options
from peers.disturbance import is_disturbed
from peers.install import PeerCache
from peers.rows import Row, all_rows
from record import RESULTS, save

TRIES = 3  # visits for each one that is wanted, before a row is given up
DUE = 3  # exit status

Key = tuple[int, str, str]  # context, engine, weights


def run(bench: Bench, rows: list[Row], args: argparse.Namespace) -> bool:
    """Visits until none is due, or so many as were asked for; returns whether some still are."""
    visits = _earlier(args.name) if args.resume else []
    plan = {(c, row.engine, row.weights): row for row in rows for c in args.contexts}
    most = len(visits) + args.visits if args.visits else None
    while (key := next_due(visits, list(plan), args.rounds)) and len(visits) != most:
        context, engine, weights = key
        seed = 1000 * sum(key_of(visit) == key for visit in visits)
        found: Answer = {"engine": engine, "weights": weights, "context": context}
        try:
            found |= bench.visit(plan[key], context, seed)
            found["disturbed"] = is_disturbed(found)
        except WorkerError as failure:
            found["error"] = str(failure)
        print(found, flush=True)
        visits.append(found)
        settings = {"shape": SHAPE.name, "threads": args.threads}
        save(args.name, result_of(visits) | settings)
        save(f"{args.name}_visits", {"visits": visits})  # for --resume; not under version control
    return key is not None


def next_due(visits: list[Answer], keys: list[Key], rounds: int) -> Key | None:
    """Whose turn it is: those with the fewest visits that count, of them the least tried."""
    counts, tries = _counted(visits), Counter(map(key_of, visits))
    due = [key for key in keys if counts[key] < rounds and tries[key] < TRIES * rounds]

    def turn(key: Key) -> tuple[int, int, int]:
        first = counts[key] * len(keys) // rounds
        return counts[key], tries[key], (keys.index(key) - first) % len(keys)

    return min(due, key=turn, default=None)


def key_of(visit: Answer) -> Key:
    """What a visit is one of."""
    return visit["context"], visit["engine"], visit["weights"]


def _counted(visits: list[Answer]) -> Counter[Key]:
    return Counter(key_of(v) for v in visits if "error" not in v and not v.get("disturbed"))


def _earlier(name: str) -> list[Answer]:
    """Visits of earlier runs; none where there is no file."""
    path = RESULTS / f"{name}_visits.json"
    found: list[Answer] = json.loads(path.read_text())["visits"] if path.is_file() else []
    return found


def result_of(visits: list[Answer]) -> dict[str, Any]:
    """The result file: a row for each engine, form of weights and context that had a visit."""
    groups: dict[Key, list[Answer]] = {}
    rates: dict[str, list[float]] = {}
    for visit in visits:
        if "error" not in visit:
            groups.setdefault(key_of(visit), []).append(visit)
            for name, rate in [*visit["rates_before"].items(), *visit["rates_after"].items()]:
                rates.setdefault(name, []).append(rate)
    return {
        "rates": {name: statistics.median(found) for name, found in rates.items()},
        "rows": [_medians(undisturbed(groups[key])) for key in sorted(groups, key=_order)],
    }


def undisturbed(visits: list[Answer]) -> list[Answer]:
    """Those that had the machine for themselves; all, where none had."""
    return [visit for visit in visits if not visit["disturbed"]] or visits


def _order(key: Key) -> tuple[int, int]:
    """By context, then as in the list of rows."""
    context, engine, weights = key
    names = [(row.engine, row.weights) for row in all_rows()]
    known = (engine, weights) in names
    return context, names.index((engine, weights)) if known else len(names)


def _medians(visits: list[Answer]) -> Answer:
    """Numbers as medians, everything else as in the newest visit."""
    row: Answer = {"visits": len(visits)}
    for name, value in visits[-1].items():
        values = [visit[name] for visit in visits]
        if name == "decode_tokens_per_s":
            row[name] = {n: statistics.median(each[n] for each in values) for n in value}
        else:
            row[name] = statistics.median(values) if isinstance(value, float) else value
    return row


def chosen(patterns: list[str] | None) -> list[Row]:
    """Rows of the named engines, or single ones as `engine:weights`; without patterns all."""
    rows = all_rows()
    if patterns is None:
        return rows
    return [r for r in rows if {r.engine, f"{r.engine}:{r.weights}"} & set(patterns)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, steps=128)
    parser.add_argument(
        "--here", nargs="*", default=[], help="engines that this interpreter has already"
    )
    parser.add_argument(
        "--wheels", type=Path, help="folder with a folder of wheels for each engine: no network"
    )
    parser.add_argument("--rounds", type=int, default=3, help="0 makes ready, and no more")
    parser.add_argument("--contexts", type=int, nargs="+", default=[512, 4000])
    parser.add_argument("--rows", nargs="+", help="engines, or engine:weights; default: all")
    parser.add_argument(
        "--resume", action="store_true", help="go on after the visits that the result file has"
    )
    parser.add_argument("--visits", type=int, help="the most in this call; default: all")
    parser.add_argument("--name", default="cpu_peers", help="name of the result file")
    args = parser.parse_args()
    rows = chosen(args.rows)
    peer_cache = PeerCache(args.cache, args.here, args.wheels)
    for engine in {row.engine for row in rows}:
        peer_cache.python_of(engine)
    if run(Bench(args, peer_cache, peer_cache.models(rows, SHAPE)), rows, args):
        sys.exit(DUE)


if __name__ == "__main__":
    main()
