"""Cost of each step of a served load on a GPU, and the time between steps.

    python benchmarks/gpu_step_times.py --shape qwen2.5-7b --only equal-4000-50:48 \
        --full-steps 2048:2:18 4096:0 8192:0 --seconds 8

The engine's own loop runs the load without a server. Events on the device stand around the two
recorded parts of each step: layers, and head with sampling. A full step is the most prompt tokens
of one; N:P sets PAUSED_STEPS of quire.scheduler.chunk_policy to P beside it, N:P:S runs for S
seconds. Steps count from --lead-in seconds on until the last prompt, so neither the burst of the
beginning nor an end is among them. Layers are also told by what their time depends on: least
squares over those steps. nvidia-smi tells clocks.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import record
import torch
from workloads.backends import shape_folder
from workloads.offline import Run
from workloads.plan import Workload, chosen, make_level
from workloads.vocabulary import make_folder

from quire.config import EngineConfig
from quire.core.scheduler_output import SchedulerOutput
from quire.engine.startup.start_engine import start_engine
from quire.scheduler import chunk_policy as policy

MAX_MODEL_LEN, SPARE_ROWS = 16384, 256
CLOCKS = "clocks.sm,power.draw,temperature.gpu"


@dataclass(frozen=True)
class Variant:
    """Settings of one run."""

    full_step: int
    paused: int
    seconds: float

    @classmethod
    def of(cls, word: str, seconds: float) -> Variant:
        """From a word of --full-steps; the rest is as ever."""
        full_step, *more = map(float, word.split(":"))
        paused, seconds = (*more, *(policy.PAUSED_STEPS, seconds)[len(more) :])
        return cls(int(full_step), int(paused), seconds)


@dataclass
class Marks:
    """Events on the device around the parts of one step."""

    plan: SchedulerOutput
    parts: list[tuple[Any, Any, Any]] = field(default_factory=list)  # part, begin, end
    end: Any = None


@dataclass(frozen=True)
class Step:
    """Milliseconds of a step on the device, and its tokens. begin: from the first step's on."""

    begin: float
    end: float
    layers: float
    head: float
    size: int  # as padded
    prompts: int  # tokens of them
    decodes: int
    keys: int  # that decodes read
    pairs: float  # of prompts' tokens and keys


class Timed:
    """A recorded part with events around it. open_step: the step that is being launched."""

    def __init__(self, part: Any, recording: Any, open_step: Callable[[], Marks], event: Any):
        self._part, self._recording = part, recording
        self._open_step, self._event = open_step, event

    def replay(self) -> Any:
        begin, end = self._event(), self._event()
        begin.record()
        tensors = self._recording.replay()
        end.record()
        self._open_step().parts.append((self._part, begin, end))
        return tensors


class StepClock:
    """Times all steps that a device runner launches from now on.

    event: makes a CUDA event with timing.
    """

    def __init__(self, runner: Any, event: Callable[[], Any]) -> None:
        self.marks: list[Marks] = []
        self._launch, self._event = runner.launch, event
        graphs = runner._graphs
        for part, recording in graphs._recordings.items():
            graphs._recordings[part] = Timed(part, recording, lambda: self.marks[-1], event)
        runner.launch = self.launch

    def launch(self, plan: SchedulerOutput) -> Any:
        """As the runner's own."""
        self.marks.append(Marks(plan))
        pending = self._launch(plan)
        self.marks[-1].end = self._event()
        self.marks[-1].end.record()
        return pending

    def take(self) -> list[Step]:
        """The steps since the last call; the device has ended them all."""
        marks, self.marks = [each for each in self.marks if each.parts], []
        return [_step(each, marks[0].parts[0][1]) for each in marks]


def _step(marks: Marks, first: Any) -> Step:
    spans = [(part[0], begin.elapsed_time(end)) for part, begin, end in marks.parts]
    head = sum(ms for kind, ms in spans if kind == "draw")
    prompts = [entry for entry in marks.plan.scheduled if entry.num_tokens > 1]
    decodes = [entry for entry in marks.plan.scheduled if entry.num_tokens == 1]
    return Step(
        begin=first.elapsed_time(marks.parts[0][1]), end=first.elapsed_time(marks.end),
        layers=sum(ms for _, ms in spans) - head, head=head, size=marks.parts[0][0][1],
        prompts=sum(entry.num_tokens for entry in prompts), decodes=len(decodes),
        keys=sum(entry.start + 1 for entry in decodes),
        pairs=sum(e.num_tokens * (e.start + (e.num_tokens + 1) / 2) for e in prompts),
    )  # fmt: skip


def summary(steps: Sequence[Step], num_layers: int) -> dict[str, float]:
    """Parts of the device's time, and rates."""
    span = steps[-1].end - steps[0].begin
    gaps = [b.begin - a.end for a, b in itertools.pairwise(steps)]
    layers, head = sum(s.layers for s in steps), sum(s.head for s in steps)
    mixed = [s for s in steps if s.prompts]
    alone = [s for s in mixed if not s.decodes and s.prompts == s.size]
    num_prompts, num_decodes = sum(s.prompts for s in steps), sum(s.decodes for s in steps)
    found = {
        "steps": len(steps), "mixed": len(mixed), "seconds": span / 1000,
        "layers_share": layers / span, "head_share": head / span, "gap_share": sum(gaps) / span,
        "rest_share": 1 - (layers + head + sum(gaps)) / span,
        "gap_us_p50": 1000 * statistics.median(gaps), "gap_us_max": 1000 * max(gaps),
        "decode_only_share": sum(s.layers for s in steps if not s.prompts) / span,
        "prompt_tok_s": 1000 * num_prompts / span, "decodes_s": 1000 * num_decodes / span,
        "size_mean": statistics.mean(s.size for s in mixed),
        "padding": 1 - sum(s.prompts + s.decodes for s in mixed) / sum(s.size for s in mixed),
        "decodes_mean": num_decodes / len(steps),
    }  # fmt: skip
    if alone:
        tokens, keys = sum(s.prompts for s in alone), sum(s.pairs for s in alone)
        ns = 1e6 * sum(s.layers for s in alone) / tokens / num_layers
        found |= {"alone": len(alone), "alone_ns": ns, "alone_keys": keys / tokens}
    return {name: round(value, 4) for name, value in found.items()}


def fit(steps: Sequence[Step], num_layers: int) -> dict[str, float]:
    """Cost of layers of steps with prompts: ms a step, us by padded token, 1,000 keys, pairs."""
    mixed = [s for s in steps if s.prompts]
    columns = np.array([(1.0, s.size / 1e3, s.keys / 1e3, s.pairs / 1e6, s.decodes) for s in mixed])
    times = np.array([s.layers for s in mixed])
    found, *_ = np.linalg.lstsq(columns, times, rcond=None)
    left = float(np.abs(columns @ found - times).mean())
    names = ("ms_step", "us_token", "us_key_1000", "ns_pair", "ms_decode")
    fitted = dict(zip(names, map(float, found), strict=True))
    fitted |= {"ns_layer_token": float(1000 * found[1] / num_layers), "ms_off": left}
    return {name: round(value, 5) for name, value in fitted.items()}


class Bench:
    """An engine with graphs up to the largest full step, and its clock."""

    def __init__(self, shape: str, largest: int, options: dict[str, Any]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            make_folder(shape_folder(shape), Path(folder))
            config = EngineConfig.from_options(
                model=folder, load_format="dummy", max_model_len=MAX_MODEL_LEN,
                enable_prefix_caching=False, max_num_batched_tokens=largest + SPARE_ROWS, **options,
            )  # fmt: skip
            self._core, info = start_engine(config)
        self._vocab_size, self._shape = info.limits.vocab_size, shape
        runner = self._core._executor
        self.num_layers = len(runner._graphs._work._kv_caches)
        self._clock = StepClock(runner, lambda: torch.cuda.Event(enable_timing=True))
        self._seed = 1

    def run(self, workload: Workload, level: float, run: Variant) -> tuple[list[Step], float]:
        """Steps of a level that is cut in time, and its requests a second."""
        policy.PAUSED_STEPS, seconds = run.paused, run.seconds
        wanted = make_level(workload, level, self._shape, self._vocab_size, self._seed, seconds)
        self._seed = wanted.seeds[-1] + 1
        self._core._scheduler._policy._full_step = run.full_step
        results = Run(self._core, replace(wanted, cut_after=seconds)).run()
        torch.cuda.synchronize()
        ends = [result.done for result in results if result.error is None]
        rate = len(ends) / (max(ends) - min(result.sent for result in results)) if ends else 0.0
        return self._clock.take(), rate


class Clocks:
    """Rows of CLOCKS by nvidia-smi while something runs."""

    def __init__(self) -> None:
        command = ["nvidia-smi", f"--query-gpu={CLOCKS}", "--format=csv,noheader,nounits"]
        command += ["-i", "0", "-lms", "200"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def stop(self) -> list[list[float]]:
        """Rows of CLOCKS."""
        self._process.terminate()
        said = self._process.communicate()[0].splitlines()
        return [[float(word) for word in line.split(",")] for line in said if "N/A" not in line]


def measure(bench: Bench, args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each load and variant, and prints them."""
    rows = []
    runs = [(word, Variant.of(word, args.seconds)) for word in args.full_steps]
    for workload, (word, variant) in itertools.product(chosen(args.only), runs):
        for level in workload.levels:
            clocks = Clocks()
            all_steps, rate = bench.run(workload, level, variant)
            read = clocks.stop()
            steps = counted(all_steps, args.lead_in, variant.seconds)
            row = {"workload": workload.name, "level": level, "full_step": word, "req_s": rate}
            row["found"], row["fit"] = (
                summary(steps, bench.num_layers),
                fit(steps, bench.num_layers),
            )
            row["clocks"], row["columns"] = read, list(vars(steps[0]))
            row["steps"] = [list(map(rounded, vars(step).values())) for step in all_steps]
            rows.append(row)
            show(args.shape, row)
    return rows


def show(shape: str, row: dict[str, Any]) -> None:
    """Print a row but for its steps."""
    typical = [statistics.median(column) for column in zip(*row["clocks"], strict=True)]
    print(f"\n{shape} {row['workload']} x {row['level']:g}, full step {row['full_step']}: "
          f"{row['req_s']:.2f} req/s, {row['found']}\n  layers {row['fit']}\n"
          f"  {CLOCKS} {typical}", flush=True)  # fmt: skip


def counted(steps: Sequence[Step], lead_in: float, seconds: float) -> list[Step]:
    """The steps from lead_in on, in seconds, until the last one with prompts."""
    last = max(step.begin for step in steps if step.prompts)
    return [s for s in steps if 1000 * lead_in < s.begin <= min(last, 1000 * seconds)]


def rounded(value: float) -> float:
    """For the result file."""
    return round(value, 3)


def main() -> None:
    parser = record.parser(__doc__, "gpu_step_times")
    parser.add_argument("--shape", default="llama-3.1-8b", help="folder of benchmarks/shapes")
    parser.add_argument("--quantization", default="none")
    parser.add_argument("--only", nargs="+", default=["varied-4000-50:48"])
    parser.add_argument(
        "--full-steps", nargs="+", default=["2048"], metavar="TOKENS[:PAUSED[:SECONDS]]"
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="of each")
    parser.add_argument("--lead-in", type=float, default=1.5)
    args = parser.parse_args()
    record.require_gpu()
    largest = max(Variant.of(word, 0.0).full_step for word in args.full_steps)
    bench = Bench(args.shape, largest, {"quantization": args.quantization})
    rows = measure(bench, args)
    record.save(args.name, {"gpu": torch.cuda.get_device_name(), "runs": rows}, args.out)


if __name__ == "__main__":
    main()
