"""The plan of the next step waits for requests that follow on those which ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pytest

from quire.config import SchedulerConfig
from quire.core.messages import AddRequest, StepSummary
from quire.core.request_limits import RequestLimits
from quire.core.sampling_params import SamplingParams
from quire.core.scheduler_output import ModelRunnerOutput, SampleResult, SchedulerOutput
from quire.engine.core.engine_core import EngineCore
from quire.engine.core.plan_window import MARGIN, PlanWindow
from quire.engine.processes.engine_process import EngineProcess
from quire.kvcache.kv_cache_manager import KVCacheManager
from quire.scheduler.scheduler import Scheduler

DECODE, PROMPT, LAUNCH = 0.005, 0.040, 0.0003  # seconds of steps and of a launch
LIMITS = RequestLimits(max_model_len=64, max_kv_tokens=256, vocab_size=1000, max_num_seqs=8)


class Device:
    """An executor whose steps take as long as we say, and the clock."""

    step_sizes: Sequence[int] = ()

    def __init__(self, max_in_flight: int = 2) -> None:
        self.max_in_flight = max_in_flight
        self.now = self.busy_until = 0.0
        self.idle = 0.0  # seconds between steps
        self.plans: list[list[str]] = []

    def monotonic(self) -> float:
        return self.now

    def record(self) -> None:
        pass

    def reset(self) -> None:
        pass

    def execute(self, plan: SchedulerOutput) -> Launched:
        self.now += LAUNCH
        self.plans.append([entry.request_id for entry in plan.scheduled])
        has_prompt = any(entry.num_tokens > 1 for entry in plan.scheduled)
        self.idle += max(0.0, self.now - self.busy_until)
        self.busy_until = max(self.now, self.busy_until) + (PROMPT if has_prompt else DECODE)
        return Launched(self, plan, self.busy_until)


class Launched:
    """A step on the device."""

    def __init__(self, device: Device, plan: SchedulerOutput, end: float) -> None:
        self._device, self._plan, self._end = device, plan, end

    def __call__(self) -> ModelRunnerOutput:
        self._device.now = max(self._device.now, self._end)
        results = [SampleResult(token_id=7 if e.samples else None) for e in self._plan.scheduled]
        return ModelRunnerOutput(results=results)


class Socket:
    """Messages that arrive at times of the device's clock; `receive` waits for the first."""

    num_bad_frames = 0

    def __init__(self, device: Device) -> None:
        self._device = device
        self.coming: deque[tuple[float, AddRequest]] = deque()

    def receive(self, timeout: float) -> list[tuple[bytes, list[AddRequest]]]:
        device = self._device
        if not self.coming or self.coming[0][0] > device.now + timeout:
            device.now += timeout
            return []
        device.now = max(device.now, self.coming[0][0])
        return [(b"client", [self.coming.popleft()[1]])]


def make_core(device: Device, monkeypatch: pytest.MonkeyPatch) -> EngineCore:
    for module in ("engine_core", "step_log"):
        monkeypatch.setattr(f"quire.engine.core.{module}.time", device)
    config = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=32)
    return EngineCore(
        lambda: Scheduler(config, KVCacheManager(64, 4), LIMITS.max_model_len), device, LIMITS
    )


def request(name: str, max_tokens: int) -> AddRequest:
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return AddRequest(request_id=name, prompt_token_ids=[1, 2, 3], sampling=sampling)


def step(seconds: float, num_prefill_tokens: int = 0, end: float = 1.0) -> StepSummary:
    return StepSummary(0, end, seconds, num_prefill_tokens, 1, 1, 1)


def test_a_window_is_the_shortest_decode_less_the_longest_start() -> None:
    window = PlanWindow()
    for seconds in (0.0004, 0.001, 0.0002):
        window.record_start(seconds)
    for seconds in (0.007, 0.005, 0.006):
        window.record_step(step(seconds))
    window.record_step(step(0.002, num_prefill_tokens=9))
    assert window.left(1.0) == 0.0  # no request has ended
    window.open()
    assert window.left(1.0) == pytest.approx(0.005 - 0.001 - MARGIN)
    assert window.left(1.0025) == 0.0  # not worth it
    window.record_start(0.0)
    assert window.left(1.0) == 0.0


def test_without_decodes_nothing_is_known_and_nothing_waits() -> None:
    window = PlanWindow()
    window.record_step(step(0.05, num_prefill_tokens=9))
    window.open()
    assert window.left(1.0) == 0.0


@pytest.mark.parametrize(("answers_after", "steps_between"), [(0.002, 1), (0.0045, 2)])
def test_a_request_that_follows_on_an_ended_one_is_in_the_next_plan(
    answers_after: float, steps_between: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device()
    core, socket = make_core(device, monkeypatch), Socket(device)
    process = EngineProcess.__new__(EngineProcess)
    process._core, process._socket = core, socket
    monkeypatch.setattr(process, "_handle", lambda _, message: core.handle(message), raising=False)
    core.handle(request("stays", 40))
    core.handle(request("ends", 10))
    ended_at = None
    while core.has_work:
        process._receive(0.0)
        deltas = core.step().deltas
        if any(delta.request_id == "ends" and delta.finish_reason for delta in deltas):
            ended_at = len(device.plans)
            socket.coming.append((device.now + answers_after, request("next", 2)))
    first = next(index for index, plan in enumerate(device.plans) if "next" in plan)
    assert ended_at is not None
    assert first - ended_at + 1 == steps_between
    assert device.idle == pytest.approx(LAUNCH)  # before the first step


def test_nobody_waits_where_no_request_ended_or_nothing_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for max_in_flight, lengths in ((2, [20, 20]), (1, [20, 9])):
        device = Device(max_in_flight)
        core = make_core(device, monkeypatch)
        for number, length in enumerate(lengths):
            core.handle(request(f"r{number}", length))
        while len(device.plans) < 15:
            assert core.plan_delay == 0.0
            core.step()
