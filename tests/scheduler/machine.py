"""A machine whose steps cost what we say, with noise."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import scheduling_model

from quire.config import SchedulerConfig
from quire.core.sampling_params import SamplingParams
from quire.core.scheduler_output import SchedulerOutput
from quire.kvcache.kv_cache_manager import KVCacheManager
from quire.scheduler.scheduler import Scheduler


class Machine(scheduling_model.Machine):
    """Steps of 5 ms, 0.05 ms per decode and 0.1 ms per prompt token, with noise and outliers.

    step_sizes: those that the scheduler knows.
    """

    def __init__(
        self,
        itl_target_ms: float | None = None,
        ttft_target_ms: float | None = None,
        *,
        slowdown: Callable[[float], float] = lambda now: 1.0,  # noqa: ARG005
        step_sizes: Sequence[int] = (),
    ) -> None:
        config = SchedulerConfig(
            max_num_seqs=64,
            max_num_batched_tokens=2048 + 64,
            itl_target_ms=itl_target_ms,
            ttft_target_ms=ttft_target_ms,
        )
        kv = KVCacheManager(20_000, 16)
        super().__init__(Scheduler(config, kv, scheduling_model.MAX_LEN, step_sizes=step_sizes))
        self.num_prompt_tokens = 0
        self.step_lens: list[int] = []  # of steps with prompts
        self._slowdown = slowdown
        self._random = random.Random(1)

    def ask(self, name: str, prompt_len: int, max_tokens: int) -> None:
        """A request with a prompt of its own."""
        prompt = [self._random.randrange(1, 50_000) for _ in range(prompt_len)]
        self.add(name, prompt, SamplingParams(max_tokens=max_tokens))

    def seconds(self, plan: SchedulerOutput) -> float:
        """What a step takes."""
        lengths = [entry.num_tokens for entry in plan.scheduled]
        decodes = lengths.count(1)
        if decodes < len(lengths):
            self.step_lens.append(sum(lengths))
        self.num_prompt_tokens += sum(lengths) - decodes
        seconds = 0.005 + 0.00005 * decodes + 0.0001 * (sum(lengths) - decodes)
        seconds *= self._random.lognormvariate(0.0, 0.04) * self._slowdown(self.now)
        return seconds * (12.0 if self._random.random() < 0.003 else 1.0)

    def run(self, seconds: float, *, prompt_len: int = 3000, num_talkers: int = 24) -> Machine:
        """Talkers decode all the time; beside them there is always a long prompt to compute."""
        for number in range(num_talkers):
            self.ask(f"talker{number}", 20, 6000)
        number = 0
        while self.now < seconds:
            if self.scheduler.stats().num_waiting == 0:
                number += 1
                self.ask(f"prompt{number}", prompt_len, 2)
            self.step()
        return self

    def gap_ms(self, quantile: float, since: float = 0.0) -> float:
        return float(np.quantile([gap for when, gap in self.gaps if when >= since], quantile)) * 1e3

    def run_mixed(
        self, seconds: float, *, shorts_per_second: float, longs_per_second: float
    ) -> Machine:
        """Talkers as above; beside them come prompts of 200 tokens, and now and then of 6,000."""
        for number in range(8):
            self.ask(f"talker{number}", 20, 6000)
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
                self.ask(name, prompt_len, 20)
            self.step()
        return self

    def _poisson(self, rate: float, seconds: float) -> list[float]:
        rng, when, times = random.Random(2), 1.0, list[float]()
        while (when := when + rng.expovariate(rate)) < seconds:
            times.append(when)
        return times

    def ttft_ms(self, kind: str, quantile: float) -> float:
        found = [ttft for name, ttft in self.ttfts.items() if name.startswith(kind)]
        return float(np.quantile(found, quantile)) * 1e3
