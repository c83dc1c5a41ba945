"""The engine's loop in a process of its own, without tokenizer, HTTP or another process's messages.

What it measures is the engine: plans, steps on the device, and the tokens that come out of them.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from multiprocessing.connection import Connection
from typing import Any

from workloads.figures import RequestResult
from workloads.plan import Level
from workloads.steady import Steady

now = time.perf_counter


def main(connection: Connection, options: dict[str, Any]) -> None:
    """Start an engine, send what its start took, then run each level received."""
    from quire.config import EngineConfig
    from quire.engine.startup.start_engine import start_engine
    from workloads.cached_prompts import cached_prompt_requests

    config = EngineConfig.from_options(**options)
    with nullcontext() if config.cache.enable_prefix_caching else cached_prompt_requests():
        core, info = start_engine(config)
    gc.collect()
    gc.freeze()
    connection.send({"phases": info.seconds, "num_blocks": info.num_blocks, "dtype": info.dtype})
    while (level := connection.recv()) is not None:
        if level.workload.is_steady:
            connection.send(Steady(core, level).measure())
            continue
        before, begin = time.process_time(), now()
        results = Run(core, level).run()
        cpu = (time.process_time() - before) / max(now() - begin, 1e-9)
        connection.send((results, cpu))


class Run:
    """One level, put on an engine core in the loop that also runs its steps."""

    def __init__(self, core: Any, level: Level) -> None:
        from quire.core.messages import AddRequest
        from quire.core.sampling_params import SamplingParams

        self._wanted = {str(seed): level.workload.lengths(seed)[1] for seed in level.seeds}
        self._core, self._level = core, level
        self._waiting = deque(
            AddRequest(
                request_id=str(seed),
                prompt_token_ids=prompt,
                sampling=SamplingParams(
                    temperature=0.0, max_tokens=self._wanted[str(seed)], ignore_eos=True
                ),
                stream=level.workload.stream,
            )
            for seed, prompt in zip(level.seeds, level.prompts(), strict=True)
        )
        self._offsets = deque(level.offsets)
        self._results: dict[str, RequestResult] = {}
        self._steps: list[tuple[float, list[Any]]] = []  # read once the clock has stopped
        self._running = 0

    def run(self) -> list[RequestResult]:
        """Return the requests that were started."""
        self._begin = now()
        while self._waiting or self._running:
            elapsed = now() - self._begin
            if elapsed > self._level.stop_after:
                self._waiting.clear()
            if elapsed > self._level.cut_after:
                break
            self._send_due(elapsed)
            if self._core.has_work:
                self._step()
            elif self._offsets:
                time.sleep(max(0.0, self._offsets[0] - (now() - self._begin)))
        self._read_steps()
        self._cut()
        return list(self._results.values())

    def _send_due(self, elapsed: float) -> None:
        lanes = self._level.level
        is_due: Callable[[], bool] = lambda: self._running < lanes  # noqa: E731
        if self._level.workload.is_open:
            is_due = lambda: self._offsets[0] <= elapsed  # noqa: E731
        while self._waiting and is_due():
            request, moment = self._waiting.popleft(), now()
            due = self._begin + self._offsets.popleft() if self._offsets else moment
            self._results[request.request_id] = RequestResult(
                due, sent=moment, prompt_tokens=len(request.prompt_token_ids)
            )
            self._running += 1
            self._core.handle(request)

    def _step(self) -> None:
        deltas = self._core.step().deltas
        if deltas:
            self._steps.append((now(), deltas))
            self._running -= sum(delta.finish_reason is not None for delta in deltas)

    def _read_steps(self) -> None:
        for moment, deltas in self._steps:
            for delta in deltas:
                result = self._results[delta.request_id]
                if delta.token_ids:
                    result.tokens += len(delta.token_ids)
                    result.take_event(moment)
                if delta.finish_reason is not None:
                    result.error = delta.error
                    result.end(moment, self._wanted[delta.request_id])

    def _cut(self) -> None:
        """Give up what is not done, and leave the engine empty."""
        from quire.core.messages import AbortRequests

        left = [name for name, result in self._results.items() if not result.done]
        for name in left:
            self._results[name].error = "unfinished"
        if left:
            self._core.handle(AbortRequests(request_ids=left))
        while self._core.has_work:
            self._core.step()
