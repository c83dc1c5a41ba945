"""A measurement of some seconds at saturation gives the long run's rate, whenever it starts."""

from __future__ import annotations

import random

import pytest
from workloads import steady
from workloads.cached_prompts import CachedPromptManager
from workloads.plan import Workload, make_level
from workloads.steady import Steady, Step, summary

from quire.config import SchedulerConfig
from quire.core.request_limits import RequestLimits
from quire.core.scheduler_output import ModelRunnerOutput, SampleResult, SchedulerOutput
from quire.engine.core import engine_core, step_log
from quire.engine.core.engine_core import EngineCore
from quire.engine.core.executor import Outcome
from quire.scheduler.scheduler import Scheduler

LONG = Workload("long", "m", 2000, 200, (8,), is_steady=True)  # a prompt has half of the time
SHORT = Workload("short", "m", 40, 20, (32,), is_steady=True)


class Device:
    """Runs one step after the other: 2 ms, 50 us a token, 0.2 us for each key that is read."""

    max_in_flight = 2
    step_sizes = ()

    def __init__(self) -> None:
        self.now = self._free = 0.0
        self._random = random.Random(5)

    def monotonic(self) -> float:
        """Seconds, which pass where a step is waited for."""
        return self.now

    def get_ready(self) -> None:
        """Nothing to prepare."""

    def execute(self, plan: SchedulerOutput) -> Outcome:
        """See Executor."""
        seconds = 0.002 + sum(5e-5 * e.num_tokens + 2e-7 * e.start for e in plan.scheduled)
        self._free = max(self._free, self.now) + seconds * self._random.lognormvariate(0.0, 0.02)
        end, results = self._free, [SampleResult(token_id=7 * e.samples) for e in plan.scheduled]

        def result() -> ModelRunnerOutput:
            self.now = max(self.now, end)
            return ModelRunnerOutput(results=results)

        return result


def engine(device: Device) -> EngineCore:
    """The real loop, scheduler and block manager, with this device."""
    config = SchedulerConfig(max_num_seqs=32).resolved("cuda", 4000)

    def make_scheduler() -> Scheduler:
        kv = CachedPromptManager(4096, 16, enable_prefix_caching=False)
        return Scheduler(config, kv, 4000, full_step=2048)

    limits = RequestLimits(
        max_model_len=4000, max_kv_tokens=4096 * 16, vocab_size=2048, max_num_seqs=32,
        honours_priority=False, hidden_size=64, generates=True,
    )  # fmt: skip
    return EngineCore(make_scheduler, device, limits)


def rates(monkeypatch: pytest.MonkeyPatch, workload: Workload, window: float) -> tuple[float, ...]:
    """Tokens a second: of the long run, and of the window alone."""
    device = Device()
    for module in (engine_core, step_log):
        monkeypatch.setattr(module, "time", device)
    monkeypatch.setattr(steady, "now", device.monotonic)
    monkeypatch.setattr(steady, "WINDOW", window)
    monkeypatch.setattr(steady, "START_SECONDS", 0.5)
    level = make_level(workload, workload.levels[0], "m", 2048, seed=3, seconds=99.0)
    found = Steady(engine(device), level).measure()
    assert not found["errors"]
    return found["tok_s"], found["raw_tok_s"]


@pytest.mark.parametrize("workload", [LONG, SHORT])
def test_windows_of_any_length_give_the_same_rate(
    workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth, _ = rates(monkeypatch, workload, 30.0)
    windows = [rates(monkeypatch, workload, 0.3 + 0.1 * n) for n in range(6)]
    assert [rate for rate, _ in windows] == [pytest.approx(truth, rel=0.01)] * 6
    if workload is LONG:  # a part of a prompt more or less, of two to four
        assert max(abs(raw / truth - 1) for _, raw in windows) > 0.03


def test_prompts_that_a_window_lacks_are_paid_for() -> None:
    """Steps of 10 ms for 100 answers, and 1 ms for each 10 tokens of a prompt beside them."""
    decode, mixed = Step(0.01, 100, 100, 0), Step(0.02, 200, 100, 1)
    truth = 100 / 0.02  # a prompt of 100 tokens for each answer of 100: each step is mixed
    for steps in ([decode, mixed], [decode] * 9 + [mixed], [mixed] * 9 + [decode]):
        assert summary(steps, 101, 100)["tok_s"] == pytest.approx(truth)
    assert summary([mixed] * 3, 101, 100)["tok_s"] == pytest.approx(truth)
    assert summary([decode, mixed], 101, 100)["raw_tok_s"] == pytest.approx(100 / 0.015, rel=1e-3)
