"""Quire beside llama.cpp, OpenVINO GenAI and transformers on a CPU: one run, in turns.

    python benchmarks/cpu_peers.py --rounds 3
    python benchmarks/cpu_peers.py --contexts 512 --rows quire llama_cpp:Q4_0

Installs what is missing below --cache, each engine in a virtual environment of its own (llama.cpp
is built for this processor, which takes some minutes), writes one checkpoint of random weights in
the shape of Llama-3.2-1B and converts it with each engine's own tools. Nothing is fetched but
packages.

In each round every row has one visit for each context length, the first row being another one in
each round. A visit is a process of its own that ends before the next one begins, so nothing runs
beside what is measured: it loads the model, draws a first token (time since the process began),
computes a prompt of the context's length, goes on from it in 1, 8 and 16 streams, and last reads
memory: the bandwidth of a virtual machine changes from minute to minute. Each round begins with
matrix products. Results are saved after every visit; rows are medians of those visits beside which
nobody else kept a tenth of a core busy, if there are any.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import shlex
import statistics
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers.install import BENCHMARKS, PEERS, Place
from peers.rows import Row, all_rows
from peers.worker import QUIET
from record import RESULTS, installed, save

SHAPE = BENCHMARKS / "shapes" / "llama-3.2-1b"
STREAMS = (1, 8, 16)
FIRST_PROMPT = 16  # tokens of the prompt whose answer ends the start
WARM_UP_PROMPT = 64  # what is made when the first prompt comes should not count

Answer = dict[str, Any]


class WorkerError(Exception):
    """An engine failed or was too slow; its visit is left out, and the reason kept."""


class Worker:
    """One engine's process, seen from here."""

    def __init__(self, command: list[str], threads: int, seconds: float) -> None:
        self._process = subprocess.Popen(
            command,
            cwd=BENCHMARKS,
            env=installed(OMP_NUM_THREADS=str(threads), HF_HUB_OFFLINE="1"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._timer = threading.Timer(seconds, self._process.kill)
        self._timer.start()

    def ask(self, what: str, **request: Any) -> Answer:
        """One request and its answer. Raises WorkerError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": what} | request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerError(f"ended before it was asked to {what}") from None
        line = self._process.stdout.readline()
        if not line:
            raise WorkerError(f"ended while it was asked to {what}; memory, or --timeout?")
        answer: Answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer

    def close(self) -> None:
        """End the process, by its own will if it has one left."""
        self._timer.cancel()
        self._process.kill()
        self._process.communicate()


@dataclass(frozen=True)
class Bench:
    """Where engines and models lie, and how long each is measured."""

    args: argparse.Namespace
    place: Place
    models: Path

    @contextmanager
    def worker(self, engine: str) -> Iterator[Worker]:
        """A fresh process of an engine; it is ended in any case."""
        python = str(self.place.python_of(engine))
        command = [*shlex.split(self.args.under), python, "-m", PEERS[engine].module]
        worker = Worker(command, self.args.threads, self.args.timeout)
        try:
            yield worker
        finally:
            worker.close()

    def rates(self) -> dict[str, float]:
        """What the machine reaches now."""
        with self.worker("machine") as worker:
            loaded = worker.ask("load", **self.load(Row("machine", "", "."), 1, 1))
        return {name: round(rate, 4) for name, rate in loaded["rates"].items()}

    def visit(self, row: Row, context: int, seed: int) -> Answer:
        """All figures of one row at one context. Raises WorkerError."""
        max_len = context + max(self.args.steps, 1) + max(STREAMS) + 16
        with self.worker(row.engine) as worker:
            loaded = worker.ask("load", **self.load(row, max_len, max(STREAMS)))
            busy = busy_seconds() - loaded["cpu"]
            start = worker.ask("prefill", prompt=self.prompt(FIRST_PROMPT, seed + 1))
            warm = worker.ask("prefill", prompt=self.prompt(min(context, WARM_UP_PROMPT), seed + 2))
            prefill = worker.ask("prefill", prompt=self.prompt(context, seed))
            decodes = {n: worker.ask("decode", streams=n, steps=self._steps(n)) for n in STREAMS}
            bandwidth = worker.ask("bandwidth", threads=self.args.threads)
            others = busy_seconds() - busy - bandwidth["cpu"]
        return {
            "date": datetime.date.today().isoformat(),
            "version": loaded["version"],
            "settings": loaded["settings"],
            "others_cores": round(others / (bandwidth["age"] - loaded["age"]), 2),
            "read_gb_per_s": round(bandwidth["read_gb_per_s"], 2),
            "first_token_s": round(start["age"], 2),
            "prefill_tokens_per_s": round(context / prefill["seconds"], 2),
            "prefill_cores": round((prefill["cpu"] - warm["cpu"]) / prefill["seconds"], 2),
            "token": prefill["token"],
            "decode_tokens_per_s": {
                str(n): round(decode["tokens"] / decode["seconds"], 2)
                for n, decode in decodes.items()
            },
            "weights_gb": loaded.get("weights_gb")
            or round(size_of(self.models / row.model) / 1e9, 3),
            "peak_gb": round(decodes[1]["peak_bytes"] / 1e9, 2),
            "peak_gb_all_streams": round(decodes[max(STREAMS)]["peak_bytes"] / 1e9, 2),
        }

    def _steps(self, streams: int) -> int:
        """Many streams at a time take as many tokens in fewer steps."""
        return self.args.steps if streams == 1 else max(2, self.args.steps // 2)

    def prompt(self, length: int, seed: int) -> list[int]:
        """Random tokens, the same for every engine."""
        vocab_size = json.loads((SHAPE / "config.json").read_text())["vocab_size"]
        rng = random.Random(f"{length} {seed}")
        return [rng.randrange(vocab_size) for _ in range(length)]

    def load(self, row: Row, max_len: int, streams: int) -> Answer:
        """The request that gets an engine ready."""
        request = {"model": str(self.models / row.model), "threads": self.args.threads}
        return request | {"max_len": max_len, "streams": streams, "options": row.options}


def run(bench: Bench, rows: list[Row], args: argparse.Namespace) -> None:
    """All rounds; the result file grows with each visit."""
    visits, rates = _earlier(args.name) if args.add else ([], [])
    for number in range(args.rounds):
        rates.append(bench.rates())
        print(f"round {number}: {rates[-1]}", flush=True)
        turn = number * len(rows) // args.rounds
        for row in rows[turn:] + rows[:turn]:
            for context in args.contexts if number < args.long_rounds else args.contexts[:1]:
                found: Answer = {"engine": row.engine, "weights": row.weights, "context": context}
                try:
                    found |= bench.visit(row, context, seed=1000 * number)
                except WorkerError as failure:
                    found["error"] = str(failure)
                print(found, flush=True)
                visits.append(found)
                save(args.name, result_of(visits, rates) | _settings(args))


def _earlier(name: str) -> tuple[list[Answer], list[dict[str, float]]]:
    """Visits and rates of a result file; none where there is no file."""
    path = RESULTS / f"{name}.json"
    if not path.is_file():
        return [], []
    found = json.loads(path.read_text())
    return found["visits"], found["rates_by_round"]


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    return {"shape": SHAPE.name, "threads": args.threads, "steps": args.steps}


def result_of(visits: list[Answer], rates: list[dict[str, float]]) -> dict[str, Any]:
    """The result file: a row for each engine, form of weights and context that had a visit."""
    groups: dict[tuple[Any, ...], list[Answer]] = {}
    for visit in visits:
        if "error" not in visit:
            key = tuple(visit[name] for name in ("context", "engine", "weights"))
            groups.setdefault(key, []).append(visit)
    return {
        "rates": {name: statistics.median(each[name] for each in rates) for name in rates[0]},
        "rates_by_round": rates,
        "rows": [_medians(undisturbed(group)) for _, group in sorted(groups.items(), key=_order)],
        "visits": visits,
    }


def undisturbed(visits: list[Answer]) -> list[Answer]:
    """Those that had the machine for themselves; all, where none had."""
    return [visit for visit in visits if visit["others_cores"] <= QUIET] or visits


def _order(item: tuple[tuple[Any, ...], list[Answer]]) -> tuple[int, int]:
    """By context, then as in the list of rows."""
    (context, engine, weights), _ = item
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


def busy_seconds() -> float:
    """Processor time since the machine started that was not idle; what its host took is in it.

    Of the cores that this process may use: others may be busy on a larger machine.
    """
    usable = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    ticks = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name in usable:
            ticks += sum(map(int, fields[:8])) - int(fields[3]) - int(fields[4])
    return ticks / os.sysconf("SC_CLK_TCK")


def size_of(model: Path) -> int:
    """Bytes of a model's weights on disk."""
    if model.is_file():
        return model.stat().st_size
    return sum(f.stat().st_size for f in model.iterdir() if f.suffix in {".bin", ".safetensors"})


def chosen(patterns: list[str] | None) -> list[Row]:
    """Rows of the named engines, or single ones as `engine:weights`; without patterns all."""
    rows = all_rows()
    if patterns is None:
        return rows
    return [r for r in rows if {r.engine, f"{r.engine}:{r.weights}"} & set(patterns)]


def add_options(parser: argparse.ArgumentParser) -> None:
    """What this and cpu_growth.py have in common."""
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "quire-bench")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=32, help="steps of decoding that are timed")
    parser.add_argument("--timeout", type=float, default=1200.0, help="seconds for one process")
    parser.add_argument("--under", default="", help="command that each engine is started with")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser)
    parser.add_argument(
        "--here", nargs="*", default=[], help="engines that this interpreter has already"
    )
    parser.add_argument(
        "--wheels", type=Path, help="folder with a folder of wheels for each engine: no network"
    )
    parser.add_argument("--rounds", type=int, default=3, help="0 makes ready, and no more")
    parser.add_argument("--contexts", type=int, nargs="+", default=[512, 4000])
    parser.add_argument(
        "--long-rounds", type=int, default=1, help="rounds in which all contexts have a turn"
    )
    parser.add_argument("--rows", nargs="+", help="engines, or engine:weights; default: all")
    parser.add_argument(
        "--add", action="store_true", help="keep the visits that the result file has already"
    )
    parser.add_argument("--name", default="cpu_peers", help="name of the result file")
    args = parser.parse_args()
    rows = chosen(args.rows)
    place = Place(args.cache, args.here, args.wheels)
    for engine in {row.engine for row in rows}:
        place.python_of(engine)
    run(Bench(args, place, place.models(rows, SHAPE)), rows, args)


if __name__ == "__main__":
    main()
