"""A machine whose steps cost what we say: virtual time, real scheduler."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from quire.config import SchedulerConfig
from quire.core.messages import AddRequest
from quire.core.request import Request
from quire.core.sampling_params import SamplingParams
from quire.core.step import ModelRunnerOutput, SampleResult, SchedulerOutput
from quire.kvcache.manager import KVCacheManager
from quire.scheduler.scheduler import Scheduler

MAX_LEN = 8192


@dataclass
class Machine:
    """Steps of 5 ms, 0.05 ms per decode and 0.1 ms per prompt token, with noise and hiccups."""

    itl_target_ms: float | None = None
    ttft_target_ms: float | None = None
    seed: int = 1
    slowdown: Callable[[float], float] = lambda now: 1.0  # noqa: ARG005
    now: float = 0.0
    gaps: list[tuple[float, float]] = field(default_factory=list)  # (when, seconds) of each ITL
    queued: dict[str, float] = field(default_factory=dict)
    ttfts: dict[str, float] = field(default_factory=dict)  # seconds
    ends: dict[str, float] = field(default_factory=dict)
    num_prompt_tokens: int = 0
    step_sizes: Sequence[int] = ()  # told to the scheduler
    step_lens: list[int] = field(default_factory=list)  # of steps with prompts

    def __post_init__(self) -> None:
        config = SchedulerConfig(
            max_num_seqs=64,
            max_num_batched_tokens=2048,
            itl_target_ms=self.itl_target_ms,
            ttft_target_ms=self.ttft_target_ms,
        )
        kv = KVCacheManager(20_000, 16)
        self.scheduler = Scheduler(config, kv, MAX_LEN, step_sizes=self.step_sizes)
        self.random = random.Random(self.seed)
        self.last: dict[str, float] = {}
        self.num_added = 0

    def add(self, name: str, prompt_len: int, max_tokens: int) -> None:
        self.num_added += 1
        prompt = [self.random.randrange(1, 50_000) for _ in range(prompt_len)]
        sampling = SamplingParams(max_tokens=max_tokens)
        message = AddRequest(request_id=name, prompt_token_ids=prompt, sampling=sampling)
        request = Request(message, arrival=self.num_added, max_model_len=MAX_LEN, queued=self.now)
        self.queued[name] = self.now
        self.scheduler.add(request)

    def cost(self, plan: SchedulerOutput) -> float:
        lengths = [entry.num_tokens for entry in plan.scheduled]
        decodes = lengths.count(1)
        if decodes < len(lengths):
            self.step_lens.append(sum(lengths))
        seconds = 0.005 + 0.00005 * decodes + 0.0001 * (sum(lengths) - decodes)
        seconds *= self.random.lognormvariate(0.0, 0.04) * self.slowdown(self.now)
        return seconds * (12.0 if self.random.random() < 0.003 else 1.0)

    def step(self) -> None:
        plan = self.scheduler.schedule(self.now)
        assert plan is not None
        seconds = self.cost(plan)
        self.now += seconds
        self.scheduler.observe(plan, seconds)
        self.num_prompt_tokens += sum(e.num_tokens for e in plan.scheduled if e.num_tokens > 1)
        results = [SampleResult(token_id=7 if e.samples else None) for e in plan.scheduled]
        for delta in self.scheduler.update(plan, ModelRunnerOutput(results=results)):
            if delta.request_id not in self.last:
                self.ttfts[delta.request_id] = self.now - self.queued[delta.request_id]
            else:
                self.gaps.append((self.now, self.now - self.last[delta.request_id]))
            self.last[delta.request_id] = self.now
            if delta.finish_reason is not None:
                self.ends[delta.request_id] = self.now

    def run(self, seconds: float, *, prompt_len: int = 3000, num_talkers: int = 24) -> Machine:
        """Talkers decode all the time; beside them there is always a long prompt to compute."""
        for number in range(num_talkers):
            self.add(f"talker{number}", 20, 6000)
        number = 0
        while self.now < seconds:
            if self.scheduler.stats().num_waiting == 0:
                number += 1
                self.add(f"prompt{number}", prompt_len, 2)
            self.step()
        return self

    def gap_ms(self, quantile: float, since: float = 0.0) -> float:
        return float(np.quantile([gap for when, gap in self.gaps if when >= since], quantile)) * 1e3

    def run_mixed(
        self, seconds: float, *, shorts_per_second: float, longs_per_second: float
    ) -> Machine:
        """Talkers as above; beside them come prompts of 200 tokens, and now and then of 6,000."""
        for number in range(8):
            self.add(f"talker{number}", 20, 6000)
        arrivals = [
            (when, f"{kind}{number}", prompt_len)
            for kind, rate, prompt_len in (
                ("short", shorts_per_second, 200),
                ("long", longs_per_second, 6000),
            )
            for number, when in enumerate(self._poisson(rate, seconds))
        ]
        arrivals.sort(reverse=True)
        while self.now < seconds:
            while arrivals and arrivals[-1][0] <= self.now:
                _, name, prompt_len = arrivals.pop()
                self.add(name, prompt_len, 20)
            self.step()
        return self

    def _poisson(self, rate: float, seconds: float) -> list[float]:
        rng, when, times = random.Random(self.seed + 1), 1.0, list[float]()
        while (when := when + rng.expovariate(rate)) < seconds:
            times.append(when)
        return times

    def ttft_ms(self, kind: str, quantile: float) -> float:
        found = [ttft for name, ttft in self.ttfts.items() if name.startswith(kind)]
        return float(np.quantile(found, quantile)) * 1e3
