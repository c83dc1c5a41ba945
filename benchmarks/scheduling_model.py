"""What rules of the scheduler make of a closed level of requests, without a GPU: in virtual time.

    python benchmarks/scheduling_model.py --levels 4 8 16 32
    python benchmarks/scheduling_model.py --set FEW_REQUESTS=0 MOST_SLOWDOWN=5

The real scheduler plans steps, two in flight as on a GPU, whose durations are those of the 8B shape
in bfloat16 with contexts of about 2,000 tokens on one H200, noted as they ran in the server
(docs/decisions/scheduling.md). --set changes constants of `quire.scheduler.chunk_policy`. All
requests of a level come at once; each is followed by another until there were three times as many,
as in gpu_serving.py. Figures are within 5 to 10 % of the server's; they serve to compare rules.
"""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections import deque

import numpy as np

from quire.config import SchedulerConfig
from quire.core.messages import AddRequest
from quire.core.request import Request
from quire.core.sampling_params import SamplingParams
from quire.core.scheduler_output import ModelRunnerOutput, SampleResult, SchedulerOutput
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
KEYS = 0.075
HOST = 0.0004  # seconds between a step's plan and its begin, if the GPU waits
LATENCY = 0.0011  # seconds between client and engine, in each direction
MAX_LEN, ROWS, BUDGET = 8192, 256, 8192


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
        self._busy_until = 0.0
        self._in_flight: deque[tuple[SchedulerOutput, float, float]] = deque()

    @abstractmethod
    def seconds(self, plan: SchedulerOutput) -> float:
        """What a step takes."""

    def add(self, name: str, prompt_token_ids: list[int], sampling: SamplingParams) -> None:
        """A request reaches the engine."""
        number = len(self.sent)
        self.sent.setdefault(name, self.now)
        message = AddRequest(request_id=name, prompt_token_ids=prompt_token_ids, sampling=sampling)
        request = Request(message, arrival=number, max_model_len=MAX_LEN, queued=self.now)
        self.scheduler.add(request)

    def step(self, host: float = 0.0) -> bool:
        """One turn of the loop; False if nothing runs. host: seconds from a plan to its launch."""
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

    def on_end(self) -> None:  # noqa: B027
        """A request has its last token."""


class Level(Machine):
    """So many requests at a time, on the GPU. sizes: of its steps with parts of prompts."""

    def __init__(
        self, num_requests: int, prompt_len: int, answer_len: int, scheduler: Scheduler,
        sizes: list[int],
    ) -> None:  # fmt: skip
        super().__init__(scheduler, depth=2)
        self._num_requests, self._prompt_len = num_requests, prompt_len
        self._sampling = SamplingParams(max_tokens=answer_len, ignore_eos=True)
        self._sizes = sizes
        self._in_transit: deque[tuple[float, str]] = deque()  # (arrival, name)

    def run(self) -> None:
        """All requests to their ends."""
        for _ in range(self._num_requests):
            self.send(0.0)
        while self._in_transit or self.scheduler.has_unfinished:
            while self._in_transit and self._in_transit[0][0] <= self.now:
                _, name = self._in_transit.popleft()
                self.add(name, [len(self.sent)] * self._prompt_len, self._sampling)
            if not self.step(HOST) and self._in_transit:
                self.now = max(self.now, self._in_transit[0][0])

    def send(self, moment: float) -> None:
        """A client sends a request; its time to a first token has both ways in it."""
        number = len(self.sent)
        if number < 3 * self._num_requests:
            self.sent[f"r{number}"] = moment - LATENCY
            self._in_transit.append((moment + LATENCY, f"r{number}"))

    def on_end(self) -> None:
        """Its client sends another one."""
        self.send(self.now + LATENCY)

    def seconds(self, plan: SchedulerOutput) -> float:
        """What a step takes."""
        lengths = [entry.num_tokens for entry in plan.scheduled]
        num_decodes, num_tokens = lengths.count(1), sum(lengths)
        if num_decodes == num_tokens:
            return float(np.interp(num_decodes, list(DECODES), list(DECODES.values()))) / 1000
        size = next(size for size in self._sizes if size >= num_tokens)
        mixed = float(np.interp(size, list(MIXED), list(MIXED.values())))
        return (mixed + KEYS * num_decodes) / 1000


def make_scheduler(policy: str = "fcfs") -> tuple[Scheduler, list[int]]:
    """The scheduler as it is on a GPU, and the sizes of its steps with parts of prompts."""
    sizes = StepSizes(ROWS, BUDGET, pads_mixed=True).mixed
    config = SchedulerConfig(
        max_num_seqs=ROWS, max_num_batched_tokens=BUDGET, scheduling_policy=policy
    )
    kv = KVCacheManager(64_000, 16, enable_prefix_caching=False)
    return Scheduler(config, kv, MAX_LEN, paces_prompts=True, step_sizes=sizes), sizes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--levels", type=int, nargs="+", default=[2, 4, 8, 16, 32, 64])
    parser.add_argument("--prompt", type=int, default=1950)
    parser.add_argument("--answer", type=int, default=200)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=NUMBER")
    args = parser.parse_args()
    for name, _, number in (word.partition("=") for word in args.set):
        if name not in vars(policy):
            parser.error(f"quire.scheduler.chunk_policy has no {name}")
        setattr(policy, name, float(number))
    scheduler, sizes = make_scheduler()
    print("requests   TTFT p50    p99   ITL p50    p99 (ms)   tokens/s")
    for num_requests in [4, *args.levels]:  # the first one tells the policy what steps cost
        level = Level(num_requests, args.prompt, args.answer, scheduler, sizes)
        level.run()
        times = list(level.ttfts.values()), [gap for _, gap in level.gaps]
        ttft, itl = (1000 * np.quantile(each, [0.5, 0.99]) for each in times)
        rate = len(level.sent) * args.answer / max(level.last.values())
        print(f"{num_requests:>8} {ttft[0]:>10.0f} {ttft[1]:>6.0f} {itl[0]:>9.2f} {itl[1]:>6.1f} "
              f"{rate:>15.0f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
