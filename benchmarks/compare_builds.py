"""Compares two source trees of Quire on one machine: ratios new/old of rates, latencies and starts.

    python benchmarks/compare_builds.py --old /path/to/old/src --new src
    python benchmarks/compare_builds.py --old OLD/src --new src --rows 8b-fp8 1b --rounds 1
    python benchmarks/compare_builds.py --old OLD/src --new src --device cpu --rows int8 starts

Both builds are driven by what is public alone: `quire serve` over HTTP, `quire.LLM`, the command
line. Both are loaded at the same time and measured alternately, in reversed order from one
measurement to the next; an engine without requests does nothing meanwhile. Random weights, random
prompts (the same for both), answers of forced lengths, temperature 0.

Rows on a GPU (`quire serve`, shapes of Llama-3.1-8B and Llama-3.2-1B): 8b, 8b-fp8, 1b; each build
starts anew in each round. In the first round a start compiles kernels, in later ones it finds them.
Rows on a CPU: fp32, bf16, int8, int4 (`quire.LLM`: prefill; 1, 8 and 16 streams; tokens a second,
and a second of one processor, which other programs change least), served (`quire serve`), prompts
(`quire serve` with a small model saturated by prompts, and at 0.8 of that rate, --repeats times;
"cpu req_s" are requests a second of one processor), starts (import; `quire generate` without and
with prepared weights; first answer of `quire serve`).
Both trees need their compiled library there.

The result file has a row for each figure: the values of both builds by measurement, the median of
the ratios of neighbouring measurements, and with ten or more the ratio of undisturbed values
(90th percentiles). Engines are loaded anew in each round, in the other order if --repeats is odd.
A ratio above 1 means that the new build is faster where the figure is a rate (its name ends in
tok_s or req_s), and slower where it is a time.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from workloads import figures
from workloads.backends import BackendError, ServedEngine, shape_folder
from workloads.build_ratios import SIDES, Ratios
from workloads.build_rows import SERVED, SERVED_ON_CPU, Load, ServedRow
from workloads.builds import Build, LLMProcess, Rates, has_native_code, read_whole_libraries
from workloads.plan import Level, make_level
from workloads.vocabulary import make_folder

TIMES = ("itl_p50", "itl_p99", "ttft_p50", "ttft_p99", "lat_p50", "lat_p99")
KV_CACHE_BYTES = 20 * 10**9  # for 64 requests of 2,150 tokens, so that two engines have room
CPU_MAX_LEN, PREFILL = 1024, 512
STEPS = {1: 48, 8: 24, 16: 16}  # of decoding, by the number of streams
PATIENCE = 180.0  # seconds that a start or a measurement may take
_1B = "llama-3.2-1b"
WEIGHTS = {
    "fp32": {"dtype": "float32"},
    "bf16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
    "int4": {"dtype": "bfloat16", "quantization": "int4"},
}


class Comparison:
    """Measures both builds in turn."""

    def __init__(self, builds: tuple[Build, Build], args: argparse.Namespace) -> None:
        self._builds, self._args = builds, args
        self._end = time.monotonic() + args.seconds
        self._num_measured = 0
        self.ratios = Ratios(args.name, Path(args.out), args.device)

    @property
    def left(self) -> float:
        """Seconds."""
        return self._end - time.monotonic()

    def in_turn(self) -> tuple[int, ...]:
        """The builds in the order in which they are measured."""
        self._num_measured += 1
        return (0, 1) if self._num_measured % 2 else (1, 0)

    def served(
        self, name: str, row: ServedRow, model: str, options: dict[str, Any], round_: int
    ) -> None:
        """Start both servers, put each load on both, end them."""
        engines: dict[int, ServedEngine] = {}
        warm_up = replace(row.loads[0].workload, output_len=8)
        try:
            for build in self.in_turn():
                engines[build] = engine = self._builds[build].serve(options, PATIENCE)
                for figure in ("ready_s", "first_token_s"):
                    self.ratios.add(f"{name} start {round_}", figure, build, engine.start[figure])
                engine.run(make_level(warm_up, 4, row.shape, 512, 1, PATIENCE))
            for load in row.loads * (self._args.repeats if row.is_repeated else 1):
                at_rate = self._at_rate(name, load)
                for build in self.in_turn():
                    self._put(name, at_rate, engines[build], build, model)
                self.ratios.save()
        finally:
            for engine in engines.values():
                engine.close()

    def _at_rate(self, name: str, load: Load) -> Load:
        """The load at its level; if that is a share of another one's rate, of the slower build."""
        if not load.share_of:
            return load
        rate = self.ratios.least(f"{name} {load.share_of}", "req_s")
        return replace(load, level=load.level * rate)

    def _put(self, name: str, load: Load, engine: ServedEngine, build: int, model: str) -> None:
        level = level_of(load, vocab_size_of(model), self._num_measured * 1_000_003)
        before = engine.cpu_seconds()
        found = figures.summarize(level, *engine.run(level))
        found["cpu req_s"] = found["ok"] / max(engine.cpu_seconds() - before, 0.01)
        if found["errors"]:
            self.ratios.errors.append(f"{name} {load.name} {SIDES[build]}: {found['errors']}")
        rates = () if load.workload.is_open else ("req_s", "cpu req_s", "tok_s")
        for figure in (*TIMES, *rates):
            if figure in found:
                self.ratios.add(f"{name} {load.name}", figure, build, found[figure])

    def on_cpu(self, name: str, model: str, options: dict[str, Any]) -> None:
        """Prefill and decode of both builds' `LLM`, in turn `repeats` times."""
        vocab_size, engines = vocab_size_of(model), dict[int, LLMProcess]()
        try:
            for build in self.in_turn():
                engines[build] = self._builds[build].load(options, PATIENCE)
                self.ratios.add(name, "load_s", build, engines[build].load_s)
                engines[build].rates([[7] * 16], 4, 4)
            for repeat in range(self._args.repeats if self.left > 0 else 0):
                prompt = random_prompt(vocab_size, PREFILL, repeat)
                for build in self.in_turn():
                    rates = engines[build].rates([prompt], 1, PREFILL)
                    self._rates(name, f"prefill {PREFILL}", build, rates)
                for streams, steps in STEPS.items():
                    seeds = range(1000 * repeat, 1000 * repeat + streams)
                    prompts = [random_prompt(vocab_size, 16, seed) for seed in seeds]
                    for build in self.in_turn():
                        rates = engines[build].rates(prompts, steps, streams * steps)
                        self._rates(name, f"{streams} streams", build, rates)
                self.ratios.save()
        finally:
            for engine in engines.values():
                engine.close()

    def _rates(self, row: str, figure: str, build: int, rates: Rates) -> None:
        self.ratios.add(row, f"{figure} tok_s", build, rates.wall)
        self.ratios.add(row, f"{figure} cpu tok_s", build, rates.cpu)

    def starts(self, model: str, options: dict[str, Any]) -> None:
        """Seconds of processes from their start to their end or first answer, and of processors."""
        given = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        generate = ["-m", "quire", "generate", model, "--prompt", "a", "--max-tokens", "1", *given]
        warm = [build.cold_folder() for build in self._builds]
        for repeat in range(self._args.repeats + 1 if self.left > 0 else 0):
            for build in self.in_turn():
                this = self._builds[build]
                cold = this.cold_folder()
                commands = {
                    "import": ("-c", "import quire"),
                    "generate cold": (*generate, "--prepared-weights", str(cold)),
                    "generate warm": (*generate, "--prepared-weights", str(warm[build])),
                }
                found = {name: this.seconds_of(*words) for name, words in commands.items()}
                shutil.rmtree(cold)
                settings = options | {"model": model, "prepared_weights": str(warm[build])}
                server = this.serve(settings | {"log_level": "warning"}, PATIENCE)
                server.close()
                for name, seconds in found.items() if repeat else ():  # first, caches are filled
                    self.ratios.add("starts", f"{name} wall_s", build, seconds.wall)
                    self.ratios.add("starts", f"{name} cpu_s", build, seconds.cpu)
                if repeat:
                    first = server.start["first_token_s"]
                    self.ratios.add("starts", "serve first answer_s", build, first)
            self.ratios.save()


def vocab_size_of(model: str) -> int:
    """The vocabulary size in a model's folder."""
    return int(json.loads((Path(model) / "config.json").read_text())["vocab_size"])


def level_of(load: Load, vocab_size: int, seed: int) -> Level:
    """A level with this number of requests of a load, and a long timeout."""
    workload = load.workload
    seconds = load.count / load.level if workload.is_open else PATIENCE
    level = make_level(workload, load.level, workload.shape, vocab_size, seed, seconds)
    if workload.is_open:
        return replace(level, stop_after=PATIENCE, cut_after=PATIENCE)
    return replace(level, seeds=range(level.seeds[0], level.seeds[0] + load.count))


def random_prompt(vocab_size: int, length: int, seed: int) -> list[int]:
    """A prompt of random token ids without special ones."""
    rng = random.Random(f"{length} {seed}")
    return [rng.randrange(vocab_size // 8, vocab_size // 2) for _ in range(length)]


def checkpoint(args: argparse.Namespace, folder: Path, shape: str) -> str:
    """The folder of the model that rows on a CPU run: --model, or one with random weights."""
    if args.model:
        return str(args.model)
    from peers.checkpoint import write_checkpoint

    own = folder / "checkpoint" / shape
    return str(own if own.exists() else write_checkpoint(shape_folder(shape), own))


def run(compare: Comparison, args: argparse.Namespace, folder: Path) -> None:
    """Measure all rows, for the given number of rounds or until the time is over."""
    for round_ in range(1, args.rounds + 1):
        for name in args.rows:
            print(f"round {round_}: {name}, {compare.left:.0f} s left", flush=True)
            try:
                if compare.left < 10:
                    raise BackendError(f"no time was left in round {round_}")
                run_row(compare, name, args, folder, round_)
            except BackendError as error:
                compare.ratios.errors.append(f"{name}: {error}")
                print(compare.ratios.errors[-1], flush=True)
            compare.ratios.save()


def run_row(
    compare: Comparison, name: str, args: argparse.Namespace, folder: Path, round_: int
) -> None:
    """Raises BackendError."""
    common = {"device": args.device} | ({"threads": args.threads} if args.threads else {})
    if args.device == "cuda":
        own, options = served_model(SERVED[name], folder)
        return compare.served(name, SERVED[name], own, options | common, round_)
    common |= {"max_model_len": CPU_MAX_LEN}
    shape = SERVED_ON_CPU[name].shape if name in SERVED_ON_CPU else _1B
    model = checkpoint(args, folder, shape)
    if name == "starts":
        return compare.starts(model, common)
    options = common | {"model": model}
    if name in WEIGHTS:
        most = max(STEPS)
        cache = {"num_blocks": most * CPU_MAX_LEN // 16, "max_num_seqs": most}
        return compare.on_cpu(name, model, options | WEIGHTS[name] | cache)
    row = SERVED_ON_CPU[name]
    options |= {"served_model_name": row.shape, "log_level": "warning"} | row.options
    return compare.served(name, row, model, options, round_)


def served_model(row: ServedRow, folder: Path) -> tuple[str, dict[str, Any]]:
    """A folder with a shape and a tokenizer, and the settings of a server of it."""
    own = folder / row.shape
    if not own.exists():
        own.mkdir()
        make_folder(shape_folder(row.shape), own)
    options = {"model": str(own), "load_format": "dummy", "max_model_len": 4096}
    options |= {"kv_cache_memory_bytes": KV_CACHE_BYTES, "served_model_name": row.shape}
    return str(own), options | {"api_server_count": 4, "log_level": "warning"} | row.options


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--old", type=Path, required=True, help="PYTHONPATH of the old build")
    parser.add_argument("--new", type=Path, required=True, help="PYTHONPATH of the new build")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rows", nargs="+", help="in this order; all of the device if not given")
    parser.add_argument("--rounds", type=int, help="2 on a GPU, 1 on a CPU")
    parser.add_argument("--repeats", type=int, default=5, help="of a round on a CPU")
    parser.add_argument("--seconds", type=float, default=440.0, help="no row begins later")
    parser.add_argument("--threads", type=int, help="of an engine on a CPU")
    parser.add_argument("--model", help="on a CPU, in place of random weights: folder")
    parser.add_argument("--name", default="compare_builds", help="of the result file")
    parser.add_argument("--out", default=".", help="folder of the result file")
    args = parser.parse_args()
    known = [*SERVED] if args.device == "cuda" else [*WEIGHTS, *SERVED_ON_CPU, "starts"]
    args.rows = args.rows or known
    args.rounds = args.rounds or (2 if args.device == "cuda" else 1)
    if unknown := set(args.rows) - set(known):
        parser.error(f"no rows {sorted(unknown)} on {args.device}; known: {', '.join(known)}")
    for root in (args.old, args.new):
        if args.device == "cpu" and not has_native_code(root):
            parser.error(f"{root}: build it first: python setup.py build_ext --inplace")
    return args


def main() -> None:
    args = parse()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        read_whole_libraries()
        old, new = (Build(side, getattr(args, side), folder / side) for side in ("old", "new"))
        compare = Comparison((old, new), args)
        run(compare, args, folder)
    compare.ratios.show()
    sys.exit(1 if compare.ratios.errors else 0)


if __name__ == "__main__":
    main()
