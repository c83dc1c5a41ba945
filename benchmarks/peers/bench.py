"""Visits to engines: a process of its own for each, and what it is asked."""

from __future__ import annotations

import argparse
import datetime
import json
import random
import shlex
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from record import installed

from peers.disturbance import busy_seconds, stolen_seconds
from peers.install import BENCHMARKS, PEERS, PeerCache
from peers.rows import Row

SHAPE = BENCHMARKS / "shapes" / "llama-3.2-1b"
STREAMS = (1, 8, 16)  # unless a program has an option for them
FIRST_PROMPT = 16  # tokens of the prompt whose answer ends the start
WARM_UP_PROMPT = 64  # what is made when the first prompt comes should not count
MANY_STEPS = 16  # steps of many streams at least; one stream takes args.steps

Answer = dict[str, Any]


class WorkerError(Exception):
    """An engine failed or was too slow; its measurement is left out, and the reason kept."""


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
    """Paths of engines and models, and the time that each is measured."""

    args: argparse.Namespace
    peer_cache: PeerCache
    models: Path
    streams: Sequence[int] = STREAMS  # of `measure_row`, the first of which is 1

    @contextmanager
    def worker(self, engine: str) -> Iterator[Worker]:
        """A fresh process of an engine; it is ended in any case."""
        python = str(self.peer_cache.python_of(engine))
        command = [*shlex.split(self.args.under), python, "-m", PEERS[engine].module]
        worker = Worker(command, self.args.threads, self.args.timeout)
        try:
            yield worker
        finally:
            worker.close()

    def rates(self) -> dict[str, float]:
        """The rates that the machine reaches now."""
        with self.worker("machine") as worker:
            loaded = worker.ask("load", **self.load(Row("machine", "", "."), 1, 1))
        return {name: round(rate, 4) for name, rate in loaded["rates"].items()}

    def measure_row(self, row: Row, context: int, seed: int) -> Answer:
        """All figures of one row at one context, and the machine's around it. Raises WorkerError.

        A start before, which does not count, brings files into the page cache.
        """
        most = max(self.streams)
        max_len = context + max(self.args.steps, MANY_STEPS) + most + 16
        load = self.load(row, max_len, most)
        with self.worker(row.engine) as worker:
            worker.ask("load", **load)
            worker.ask("prefill", prompt=self.prompt(FIRST_PROMPT, seed + 1))
        before = self.rates()
        with self.worker(row.engine) as worker:
            found = self._figures(worker, load, context, seed)
        size = found.pop("weights_gb") or round(size_of(self.models / row.model) / 1e9, 3)
        return found | {"weights_gb": size, "rates_before": before, "rates_after": self.rates()}

    def _figures(self, worker: Worker, load: Answer, context: int, seed: int) -> Answer:
        loaded = worker.ask("load", **load)
        busy, stolen = busy_seconds() - loaded["cpu"], stolen_seconds()
        start = worker.ask("prefill", prompt=self.prompt(FIRST_PROMPT, seed + 1))
        warm = worker.ask("prefill", prompt=self.prompt(min(context, WARM_UP_PROMPT), seed + 2))
        prefill = worker.ask("prefill", prompt=self.prompt(context, seed))
        decodes = {n: worker.ask("decode", streams=n, steps=self._steps(n)) for n in self.streams}
        bandwidth = worker.ask("bandwidth", threads=self.args.threads)
        seconds = bandwidth["age"] - loaded["age"]
        return {
            "date": datetime.date.today().isoformat(),
            "version": loaded["version"],
            "settings": loaded["settings"],
            "steps": self.args.steps,
            "others_cores": round((busy_seconds() - busy - bandwidth["cpu"]) / seconds, 2),
            "stolen_cores": round((stolen_seconds() - stolen) / seconds, 2),
            "read_gb_per_s": round(bandwidth["read_gb_per_s"], 2),
            "first_token_s": round(start["age"], 2),
            "prefill_tokens_per_s": round(context / prefill["seconds"], 2),
            "prefill_cores": round((prefill["cpu"] - warm["cpu"]) / prefill["seconds"], 2),
            "token": prefill["token"],
            "decode_tokens_per_s": {
                str(n): round(decode["tokens"] / decode["seconds"], 2)
                for n, decode in decodes.items()
            },
            "weights_gb": loaded.get("weights_gb"),
            "peak_gb": round(decodes[1]["peak_bytes"] / 1e9, 2),
            "peak_gb_all_streams": round(decodes[max(self.streams)]["peak_bytes"] / 1e9, 2),
        }

    def _steps(self, streams: int) -> int:
        """Many streams at a time take as many tokens in fewer steps."""
        steps: int = self.args.steps
        return steps if streams == 1 else max(MANY_STEPS, steps // streams)

    def prompt(self, length: int, seed: int) -> list[int]:
        """Random tokens, the same for every engine."""
        vocab_size = json.loads((SHAPE / "config.json").read_text())["vocab_size"]
        rng = random.Random(f"{length} {seed}")
        return [rng.randrange(vocab_size) for _ in range(length)]

    def load(self, row: Row, max_len: int, streams: int) -> Answer:
        """The request that gets an engine ready."""
        request = {"model": str(self.models / row.model), "threads": self.args.threads}
        return request | {"max_len": max_len, "streams": streams, "options": row.options}


def size_of(model: Path) -> int:
    """Bytes of a model's weights on disk."""
    if model.is_file():
        return model.stat().st_size
    return sum(f.stat().st_size for f in model.iterdir() if f.suffix in {".bin", ".safetensors"})


def add_options(parser: argparse.ArgumentParser, steps: int) -> None:
    """Add the options that cpu_peers.py and cpu_growth.py have in common."""
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "quire-bench")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--steps", type=int, default=steps, help="of decoding one stream that are timed"
    )
    parser.add_argument("--timeout", type=float, default=1200.0, help="seconds for one process")
    parser.add_argument("--under", default="", help="command that each engine is started with")
