"""The scheduler under loads of a GPU, without a GPU: in virtual time.

    python benchmarks/scheduling_model.py
    python benchmarks/scheduling_model.py --only varied-4000-50:8,48 --set PAUSED_STEPS=0
    python benchmarks/scheduling_model.py --costs llama-3.1-8b-fp8
    python benchmarks/scheduling_model.py --save         # varied loads, all costs, in results/

The real scheduler plans steps, two in flight as on a GPU, whose durations are those of the 8B shape
in bfloat16 on one H200, noted as they ran in the server (docs/decisions/scheduling.md): of steps
that only decode, by requests, of others by padded size, and what keys add. --costs scales them to
FP8 (within 10 % of results/gpu_varied.json) or, by its sizes, to another shape. --set changes
constants of `quire.scheduler.chunk_policy`. The loads are those of workloads/plan.py; the default
is a grid of lengths, rates and numbers of requests. Requests a second are within 10 % of the
server's, in most rows within 3; they serve to compare rules.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import record
from workloads import plan
from workloads.plan import Level, Workload, make_level

from quire.config import SchedulerConfig
from quire.core.messages import AddRequest, StepSummary
from quire.core.request import Request
from quire.core.sampling_params import SamplingParams
from quire.core.scheduler_output import ModelRunnerOutput, SampleResult, SchedulerOutput
from quire.engine.core.plan_window import PlanWindow
from quire.engine.core.step_sizes import StepSizes
from quire.kvcache.kv_cache_manager import KVCacheManager
from quire.scheduler import chunk_policy as policy
from quire.scheduler.scheduler import Scheduler

# Milliseconds: of steps that only decode, by requests; of others by their padded size, less what
# each request that decodes adds by its keys.
DECODES = {1: 4.13, 4: 4.57, 8: 4.75, 16: 5.32, 32: 6.43, 64: 8.9, 128: 13.8, 256: 24.2}
MIXED = {
    16: 4.6, 64: 5.3, 128: 6.6, 192: 7.3, 256: 8.2, 320: 9.8, 384: 10.6, 512: 13.5, 640: 16.9,
    768: 19.7, 896: 23.4, 1024: 25.0, 1152: 27.9, 1280: 30.5, 1408: 34.0, 1536: 36.3, 1792: 43.0,
    2048: 46.0, 2560: 58.8, 3072: 70.0, 4096: 92.0, 8192: 184.0,
}  # fmt: skip
KEYS, PROMPT_KEYS = 0.075 / 2000, 1.05e-6  # for each key of a decode; of a prompt's token
MEASURED_KEYS = 2000  # of each request when the above was noted
LEAST_MIXED = 4.1  # of any of those: reading the weights
# Of the time of steps with prompts: the clock of a card that is never idle, and the last layer
# finished for sampled tokens alone, as it was not when they were noted.
SUSTAINED = 1.02
HOST = 0.0004  # seconds between a step's plan and its begin, if the GPU waits
LATENCY = 0.0011  # seconds between client and engine, in each direction
MAX_LEN, ROWS, BUDGET = 16384, 256, 2048 + 256
SHARED_TOKEN = 31_999  # of shared prefixes; others' tokens are their numbers
LABELS = {
    "llama-3.1-8b": "bf16", "llama-3.1-8b-fp8": "fp8", "qwen2.5-7b": "Qwen2.5-7B bf16",
    "llama-3.2-3b": "Llama-3.2-3B bf16",
}  # fmt: skip
VARIED = [w.name for w in (*plan.VARIED, *plan.OPEN)]
GRID = [*VARIED, "voice-8b:2,8,16,32,64,128"]


@dataclass(frozen=True)
class Costs:
    """Shares of the times above: of reading weights, of GEMMs, of keys, of a prompt's keys."""

    weights: float = 1.0
    gemms: float = 1.0
    keys: float = 1.0
    prompt_keys: float = 1.0

    def decodes(self, num_requests: int, num_keys: int) -> float:
        """Milliseconds of a step that only decodes."""
        alone = np.interp(num_requests, list(DECODES), list(DECODES.values()))
        alone -= KEYS * MEASURED_KEYS * num_requests
        return float(self.weights * alone + self.keys * KEYS * num_keys)

    def mixed(self, size: int, num_keys: int, num_prompt_keys: float) -> float:
        """Milliseconds of a step with parts of prompts, padded to this size."""
        gemms = np.interp(size, list(MIXED), list(MIXED.values())) - LEAST_MIXED
        alone = self.weights * LEAST_MIXED + self.gemms * gemms
        keys = self.keys * KEYS * num_keys + self.prompt_keys * PROMPT_KEYS * num_prompt_keys
        return float(SUSTAINED * alone + keys)


COSTS = {
    "llama-3.1-8b": Costs(),
    "llama-3.1-8b-fp8": Costs(0.57, 0.56, 0.5, 0.9),
    "qwen2.5-7b": Costs(0.93, 0.93, 0.44, 0.77),
    "llama-3.2-3b": Costs(0.43, 0.41, 0.875, 0.66),
}


class Machine(ABC):
    """The real scheduler before a device of modelled step times, in virtual time.

    depth: steps in flight. Times are in seconds; a name is a request's.
    """

    def __init__(self, scheduler: Scheduler, depth: int = 1) -> None:
        self.scheduler = scheduler
        self.now = 0.0
        self.sent: dict[str, float] = {}
        self.last: dict[str, float] = {}  # when it had its newest token
        self.ttfts: dict[str, float] = {}
        self.ends: dict[str, float] = {}
        self.gaps: list[tuple[float, float]] = []  # (when, seconds) between its tokens
        self._depth = depth
        self._window = PlanWindow()
        self._busy_until = 0.0
        self._in_flight: deque[tuple[SchedulerOutput, float, float]] = deque()

    @abstractmethod
    def seconds(self, plan: SchedulerOutput) -> float:
        """Duration of a step."""

    def add(self, name: str, prompt_token_ids: list[int], sampling: SamplingParams) -> None:
        """A request reaches the engine."""
        number = len(self.sent)
        self.sent.setdefault(name, self.now)
        message = AddRequest(request_id=name, prompt_token_ids=prompt_token_ids, sampling=sampling)
        request = Request(message, arrival_number=number, max_model_len=MAX_LEN, queued=self.now)
        self.scheduler.add(request)

    def step(self, host: float = 0.0) -> bool:
        """One turn of the loop; False if nothing runs. host: seconds from a plan to its launch."""
        self._window.record_start(host)
        plan = self.scheduler.schedule(self.now)
        if plan is not None:
            begin = max(self.now + host, self._busy_until)  # the device runs them one by one
            self._busy_until = begin + self.seconds(plan)
            self._in_flight.append((plan, begin, self._busy_until))
            self.now += host
        if self._in_flight and (plan is None or len(self._in_flight) >= self._depth):
            self._collect(*self._in_flight.popleft())
        return plan is not None or bool(self._in_flight)

    def _collect(self, plan: SchedulerOutput, begin: float, end: float) -> None:
        self.now = max(self.now, end)
        self.scheduler.observe(plan, end - begin)
        num_prompt_tokens = sum(e.num_tokens for e in plan.scheduled if e.num_tokens > 1)
        counts = (num_prompt_tokens, 0, len(plan.scheduled), 0)
        self._window.record_step(StepSummary(plan.step_id, self.now, end - begin, *counts))
        results = [SampleResult(token_id=7 if e.samples else None) for e in plan.scheduled]
        for delta in self.scheduler.update(plan, ModelRunnerOutput(results=results)):
            name = delta.request_id
            if name in self.last:
                self.gaps.append((self.now, self.now - self.last[name]))
            else:
                self.ttfts[name] = self.now - self.sent[name]
            self.last[name] = self.now
            if delta.finish_reason is not None:
                self.ends[name] = self.now
                self.on_end()
                if self._in_flight:
                    self._window.open()

    def on_end(self) -> None:  # noqa: B027
        """Called when a request has its last token."""


class LevelRun(Machine):
    """One level of a workload, on the GPU. sizes: of its steps with parts of prompts."""

    def __init__(
        self,
        level: Level,
        scheduler: Scheduler,
        sizes: list[int],
        costs: Costs = COSTS["llama-3.1-8b"],
    ) -> None:
        super().__init__(scheduler, depth=2)
        self._level, self._sizes, self._costs = level, sizes, costs
        self._next = 0  # request to send
        self._in_transit: deque[tuple[float, int]] = deque()  # (arrival, number)

    def run(self) -> LevelRun:
        """Run all requests to their ends; returns itself."""
        workload = self._level.workload
        for moment in self._level.offsets or [0.0] * int(self._level.level):
            self._send(moment)
        while self._in_transit or self.scheduler.has_unfinished:
            self.now += self._window.left(self.now)
            while self._in_transit and self._in_transit[0][0] <= self.now:
                _, number = self._in_transit.popleft()
                input_len, output_len = workload.lengths(self._level.seeds[number])
                sampling = SamplingParams(max_tokens=output_len, ignore_eos=True)
                prefix = [SHARED_TOKEN] * workload.shared_prefix
                prompt = prefix + [number] * (input_len - len(prefix))
                self.add(f"r{number}", prompt, sampling)
            if not self.step(HOST) and self._in_transit:
                self.now = max(self.now, self._in_transit[0][0])
        return self

    def _send(self, moment: float) -> None:
        """A client sends a request; its time to a first token has both directions in it."""
        if self._next < len(self._level.seeds):
            self.sent[f"r{self._next}"] = moment - LATENCY
            self._in_transit.append((moment + LATENCY, self._next))
            self._next += 1

    def on_end(self) -> None:
        """The client sends its next request, unless the load is open."""
        if not self._level.offsets:
            self._send(self.now + LATENCY)

    def seconds(self, plan: SchedulerOutput) -> float:
        """Duration of a step."""
        decodes = [entry for entry in plan.scheduled if entry.num_tokens == 1]
        prompts = [entry for entry in plan.scheduled if entry.num_tokens > 1]
        keys = sum(entry.start for entry in decodes)
        if not prompts:
            return self._costs.decodes(len(decodes), keys) / 1000
        size = next(size for size in self._sizes if size >= sum(plan.count_tokens()))
        mean_keys = MEASURED_KEYS / 2
        prompt_keys = sum(e.num_tokens * (e.start + e.num_tokens / 2 - mean_keys) for e in prompts)
        return self._costs.mixed(size, keys, prompt_keys) / 1000


def make_scheduler(policy: str = "fcfs") -> tuple[Scheduler, list[int]]:
    """The scheduler as it is on a GPU, and the sizes of its steps with parts of prompts."""
    sizes = StepSizes(ROWS, BUDGET, pads_mixed=True).mixed
    config = SchedulerConfig(
        max_num_seqs=ROWS, max_num_batched_tokens=BUDGET, scheduling_policy=policy
    )
    kv = KVCacheManager(64_000, 16)
    return Scheduler(config, kv, MAX_LEN, step_sizes=sizes), sizes


def simulated(workload: Workload, number: float, costs: Costs) -> dict[str, float]:
    """Requests a second of one level, and milliseconds."""
    level = make_level(workload, number, "m", 32_000, seed=5, seconds=15.0)
    found = LevelRun(level, *make_scheduler(), costs).run()
    waits = [end - found.sent[name] for name, end in found.ends.items()]
    figures = {"req_s": len(found.sent) / max(found.last.values())}
    for name, times in (("ttft", found.ttfts.values()), ("itl", [gap for _, gap in found.gaps])):
        p50, p99 = 1000 * np.quantile(list(times), [0.5, 0.99])
        figures |= {f"{name}_p50": p50, f"{name}_p99": p99}
    return figures | {"lat_p50": float(1000 * np.median(waits))}


def run(only: list[str], costs: str) -> list[dict[str, Any]]:
    """Print a line for each level of these workloads; returns their figures."""
    print(
        f"{LABELS[costs]:<16} level  requests/s   TTFT p50    p99   ITL p50    p99   "
        "latency p50 (ms)"
    )
    rows = []
    for workload in plan.chosen(only):
        for number in workload.levels:
            row = simulated(workload, number, COSTS[costs])
            print(f"{workload.name:<16} {number:>6g} {row['req_s']:>11.2f} "
                  f"{row['ttft_p50']:>10.0f} {row['ttft_p99']:>6.0f} {row['itl_p50']:>9.2f} "
                  f"{row['itl_p99']:>6.1f} {row['lat_p50']:>13.0f}", flush=True)  # fmt: skip
            rows.append({"workload": workload.name, "label": LABELS[costs], "level": number} | row)
    return rows


def main() -> None:
    parser = record.parser(__doc__, "scheduling_model")
    parser.add_argument("--only", nargs="+", default=GRID, metavar="NAME[:LEVEL,...]")
    parser.add_argument("--costs", choices=COSTS, default="llama-3.1-8b")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=NUMBER")
    args = parser.parse_args()
    for name, _, number in (word.partition("=") for word in args.set):
        if name not in vars(policy):
            parser.error(f"quire.scheduler.chunk_policy has no {name}")
        setattr(policy, name, float(number))
    if args.save:  # the whole table
        rows = [row for costs in COSTS for row in run(VARIED, costs)]
    else:
        rows = run(args.only, args.costs)
    stored = [{name: row[name] for name in ("workload", "label", "level")} for row in rows]
    for row, figures in zip(rows, stored, strict=True):
        figures |= {name: round(row[name], 2) for name in ("req_s", "ttft_p50", "itl_p99")}
    record.save(args.name, {"levels": stored}, args.out)


if __name__ == "__main__":
    main()
