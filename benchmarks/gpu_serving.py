r"""Voice-bot and query-rewriting workloads on one GPU, on the engine alone or on the whole server.

    python benchmarks/gpu_serving.py --offline --seconds 400
    python benchmarks/gpu_serving.py --seconds 500 --only voice-8b:1,8,64 rewrite-1b
    python benchmarks/gpu_serving.py --device cpu --model quire-tiny --seconds 20 --out /tmp/tried

Random weights in the shapes of Llama-3.1-8B and Llama-3.2-1B, prompts of random token ids, answers
of forced lengths, temperature 0. --offline runs the engine's loop in a process without tokenizer
and HTTP; otherwise `quire serve` is started, and the load comes from processes of its own. Every
setting of the engine is an option here, too. Each level's figures are saved as soon as they are
there, into a file that keeps those of earlier runs; a level that fails is told and the next begins.

Workloads: voice-8b and voice-1b (1,950 tokens in, 200 out, streamed, so many at a time),
voice-8b-shared (1,750 of them the same, prefix caching on), rewrite-1b (15 in, 15 out, not
streamed, so many a second, Poisson); with --offline, if they are named, saturated-128-128 and
others (workloads/plan.py): so many at a time from the first moment on, see workloads/steady.py.
Named alone as well: varied-2000-200 and others, whose lengths vary by 60 % either way,
equal-4000-50, and open-1950-200, so many a second. --shape takes another model's shape for all.
Levels run in the order of --only, as many as --seconds admit; what is known of vLLM is told beside
them. The grid of lengths on one H200, the same loads for each model on one start of a server:

    python benchmarks/gpu_serving.py --name gpu_varied --seconds 110 --cell-seconds 24 \
        --only varied-2000-200:16 varied-4000-50:8 varied-2000-200:64 varied-4000-50:48
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import record
from workloads import figures
from workloads.backends import Backend, BackendError, OfflineEngine, ServedEngine, shape_folder
from workloads.peer_figures import ratios, vllm_figures
from workloads.plan import SATURATED, VARIED, Workload, chosen, make_level
from workloads.vocabulary import make_folder

from quire.cli.options import add_option
from quire.cli.options import chosen as given
from quire.config import iter_options
from quire.hub import resolve_model

MAX_MODEL_LEN, VARIED_MODEL_LEN = 8192, 16384
API_PROCESSES = 4
STEADY_ROWS = 512, 1024  # so that few engines serve all of those workloads
WARM_UP = 8  # requests, four at a time, whose figures are not kept
_NO_TIME = "no time was left for it; raise --seconds or name fewer with --only"


class Results:
    """The result file: levels by what was measured, the newest of each."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        path = folder / f"{name}.json"
        found = json.loads(path.read_text()) if path.is_file() else {}
        self._levels: list[dict[str, Any]] = found.get("levels", [])
        self._starts: list[dict[str, Any]] = found.get("starts", [])

    def add(self, kind: str, row: dict[str, Any]) -> None:
        """Keep a row in place of an older one of the same thing, and save all. kind: as below."""
        rows = self._levels if kind == "levels" else self._starts
        keys = ("workload", "backend", "label", "level")
        rows[:] = [old for old in rows if any(old.get(key) != row.get(key) for key in keys)]
        rows.append(row | {"date": datetime.date.today().isoformat(), "command": record.command()})
        found = {"gpu": gpu_name(), "levels": self._levels, "starts": self._starts}
        record.save(self._name, found, self._folder)


class Bench:
    """Runs workloads one after another within the seconds given."""

    def __init__(self, args: argparse.Namespace, options: dict[str, Any]) -> None:
        self._args, self._options = args, options
        self._end = time.monotonic() + args.seconds
        self._backend_name = "offline" if args.offline else "server"
        self._results = Results(Path(args.out), args.name or f"gpu_serving_{self._backend_name}")
        self._seed = int(time.time()) % 1_000_000 * 10_000_019
        self._backend: Backend | None = None
        self._started: dict[str, Any] = {}  # its options
        self.num_failed = 0

    def run(self, workloads: list[Workload]) -> None:
        """Run all levels of all workloads."""
        left = sum(len(workload.levels) for workload in workloads)
        with tempfile.TemporaryDirectory() as folder:
            for workload in workloads:
                self._run_workload(workload, self._model_options(workload, Path(folder)), left)
                left -= len(workload.levels)
            self._close()

    def _model_options(self, workload: Workload, folder: Path) -> dict[str, Any]:
        options: dict[str, Any] = {"enable_prefix_caching": workload.shared_prefix > 0}
        if self._args.model is None:
            own = folder / workload.shape
            if not own.exists():
                own.mkdir()
                make_folder(shape_folder(workload.shape), own)
                if self._args.uniform_weights:
                    from workloads.uniform_weights import write_uniform_weights

                    write_uniform_weights(own)
            options["model"] = str(own)
            lengths = [each.input_len + each.output_len for each in (workload, *SATURATED)]
            if workload.name in {each.name for each in VARIED}:
                lengths = [VARIED_MODEL_LEN]
            longest = max(lengths) if workload.is_steady else max(MAX_MODEL_LEN, lengths[0])
            options["max_model_len"] = longest
            if not self._args.uniform_weights:
                options["load_format"] = "dummy"
        else:
            options["model"] = self._args.model
        if workload.is_steady:
            most = max(workload.levels)
            options["max_num_seqs"] = next((n for n in STEADY_ROWS if n >= most), int(most))
        if not self._args.offline:
            options |= {"api_server_count": self._args.api_server_count, "log_level": "warning"}
            options["served_model_name"] = workload.shape
        return options | self._options

    def _run_workload(self, workload: Workload, options: dict[str, Any], left: int) -> None:
        print(f"\n# {workload.name}, {self._backend_name}, {self._args.label}: "
              f"{workload.input_len} in, {workload.output_len} out", flush=True)  # fmt: skip
        for level in workload.levels:
            try:
                self._run_level(self._backend_for(workload, options), workload, level, left)
            except BackendError as error:
                self._report_failure(workload, level, str(error))
                self._close()
            left -= 1

    def _backend_for(self, workload: Workload, options: dict[str, Any]) -> Backend:
        """The one that runs, if it has these options, or a new one. Raises BackendError."""
        if self._backend is None or options != self._started:
            self._close()
            if self._left < 1:
                raise BackendError(_NO_TIME)
            kind = OfflineEngine if self._args.offline else ServedEngine
            self._backend, self._started = kind(options, self._left), options
            self._warm_up(self._backend, workload)
            print(figures.heading(), flush=True)
        return self._backend

    def _close(self) -> None:
        if self._backend is not None:
            self._backend.close()
        self._backend = None

    def _warm_up(self, backend: Backend, workload: Workload) -> None:
        print(f"start: {backend.start}", flush=True)
        self._results.add("starts", self._row(workload, None) | backend.start)
        few = replace(workload, is_open=False)
        if workload.is_steady:
            few = replace(few, is_steady=False, input_len=min(few.input_len, 2048), output_len=16)
        self._run_one(backend, few, 4, min(20.0, max(1.0, self._left / 4)), WARM_UP)

    def _run_level(self, backend: Backend, workload: Workload, level: float, left: int) -> None:
        share = self._left / left
        if share < 0.05:
            raise BackendError(_NO_TIME)
        seconds = min(self._args.cell_seconds, share * min(1.5, left / 1.4))
        found = self._run_one(backend, workload, level, seconds)
        self.num_failed += not found["ok"] or bool(found["errors"])
        print(figures.line(found), flush=True)
        if peer := vllm_figures(workload.name, self._args.label, level):
            rate, ttft, tpot = ratios(found, peer)
            print(f"        to vLLM: requests/s {rate}, TTFT p50 {ttft}, TPOT {tpot}", flush=True)
        self._results.add("levels", self._row(workload, level) | found)

    def _run_one(
        self, backend: Backend, workload: Workload, level: float, seconds: float, most: int = 0
    ) -> dict[str, Any]:
        path = resolve_model(self._args.model) if self._args.model else shape_folder(workload.shape)
        vocab_size = json.loads((path / "config.json").read_text())["vocab_size"]
        wanted = make_level(workload, level, workload.shape, vocab_size, self._seed, seconds)
        self._seed = wanted.seeds[-1] + 1
        if most:
            wanted = replace(wanted, seeds=wanted.seeds[:most])
        if workload.is_steady:
            if not isinstance(backend, OfflineEngine):
                raise BackendError("saturated workloads are for the engine alone; add --offline")
            lens = {"input_len": workload.input_len, "output_len": workload.output_len}
            return {"mode": "steady", "level": level} | lens | backend.measure(wanted)
        results, cpu = backend.run(wanted)
        return figures.summarize(wanted, results, cpu)

    def _row(self, workload: Workload, level: float | None) -> dict[str, Any]:
        row = {"workload": workload.name, "backend": self._backend_name, "label": self._args.label}
        row |= {"level": level, "model": self._args.model or workload.shape}
        return row | ({"weights": "uniform"} if self._args.uniform_weights else {})

    def _report_failure(self, workload: Workload, level: float, why: str) -> None:
        self.num_failed += 1
        print(f"{level:>7g} failed: {why}", flush=True)
        if why != _NO_TIME:  # which says nothing of the level, and earlier figures stay
            self._results.add("levels", self._row(workload, level) | {"ok": 0, "errors": {why: 1}})

    @property
    def _left(self) -> float:
        return self._end - time.monotonic()


def resized(workload: Workload, args: argparse.Namespace) -> Workload:
    """The workload with the lengths that were asked for; a shared prefix stays its share."""
    input_len = args.input_len or workload.input_len
    return replace(
        workload,
        shape=args.shape or workload.shape,
        input_len=input_len,
        output_len=args.output_len or workload.output_len,
        shared_prefix=workload.shared_prefix * input_len // workload.input_len,
    )


def gpu_name() -> str | None:
    """The driver's name of the first GPU, if there is one."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.splitlines()[0].strip()


def parse() -> tuple[argparse.Namespace, dict[str, Any]]:
    """The options of this program, and the engine's settings that were given."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--offline", action="store_true", default=False, help="no server")
    parser.add_argument("--seconds", type=float, default=500.0, help="for all of it")
    parser.add_argument("--cell-seconds", type=float, default=math.inf, help="most for a level")
    parser.add_argument("--only", nargs="+", default=None, metavar="NAME[:LEVEL,...]")
    parser.add_argument("--shape", default=None, help="folder of benchmarks/shapes")
    parser.add_argument("--input-len", type=int, default=None, help="in place of the workload's")
    parser.add_argument("--output-len", type=int, default=None, help="likewise")
    parser.add_argument("--model", default=None, help="in place of the random weights")
    parser.add_argument(
        "--uniform-weights", action="store_true", default=False,
        help="random ones like vLLM's: uniform in ±0.001",
    )  # fmt: skip
    parser.add_argument("--label", default="bf16", help="what the rows are called in the tables")
    parser.add_argument("--name", default=None, help="of the result file")
    parser.add_argument("--out", default=str(record.RESULTS), help="folder of the result file")
    parser.add_argument("--api-server-count", type=int, default=API_PROCESSES)
    names = []
    for _, option in iter_options():
        if option.name != "model":
            add_option(parser, option)
            names.append(option.name)
    args = parser.parse_args()
    return args, given(args, names)


def main() -> None:
    args, options = parse()
    if Path(args.out).resolve() == record.RESULTS.resolve():  # a try elsewhere is left alone
        record.require_gpu()
    try:
        workloads = [resized(workload, args) for workload in chosen(args.only)]
    except ValueError as error:
        sys.exit(str(error))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # see record.installed
    bench = Bench(args, options)
    bench.run(workloads)
    sys.exit(1 if bench.num_failed else 0)


if __name__ == "__main__":
    main()
