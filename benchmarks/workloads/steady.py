"""A level that is saturated from its first moment on, so that some seconds of it tell its rate.

The first requests are as far in their answers as requests that are replaced one by one would be:
each brings a share of its answer, from nothing to nearly all of it, as part of its prompt, and
draws the rest. So none end together, and as many keys are kept as later. Their prompts are taken
for computed (begun.py). Counting begins SETTLING seconds after all of these draw, when one ends,
and is over when another ends: so as many prompts as ended are in it. Whoever ends is followed by a
whole request.
"""

from __future__ import annotations

import random
import time
from typing import Any

from workloads.plan import Level

BEGUN = "begun "  # how the names of requests begin that find their prompt computed
SETTLING = 2.0  # seconds in which the engine learns what its steps cost
WINDOW = 5.0  # seconds of counting, where there is so much time
LEAST_WINDOW = 3.0

now = time.perf_counter


class Steady:
    """Such a level on an engine core, in the loop that also runs its steps."""

    def __init__(self, core: Any, level: Level) -> None:
        self._core, self._level = core, level
        self._lengths = level.workload.input_len, level.workload.output_len
        self._random = random.Random(level.seeds[0])
        self._seeds = iter(level.seeds)
        self._running = set[str]()

    def measure(self) -> dict[str, Any]:
        """Rates of tokens and requests, or "unsteady" where the time was over before."""
        begin, count = now(), int(self._level.level)
        end = begin + self._level.stop_after
        length = self._lengths[1]
        for place in self._random.sample(range(count), count):
            self._add(place * length // count, BEGUN)
        silent = set(self._running)
        while silent and now() < end - LEAST_WINDOW:
            silent -= {delta.request_id for delta in self._step() if delta.token_ids}
        if not silent:
            self._count(now() + SETTLING, end - LEAST_WINDOW)
        ramp, start = now() - begin, now()
        tokens, ended = self._count(start + WINDOW, end) if not silent else (0, 0)
        seconds = now() - start
        self._empty()
        if silent:
            return {"ok": 0, "errors": {"unsteady": len(silent)}, "ramp_s": round(ramp, 2)}
        return {
            "ok": ended, "errors": {}, "ramp_s": round(ramp, 2), "seconds": round(seconds, 2),
            "tok_s": round(tokens / seconds, 1), "req_s": round(ended / seconds, 3),
        }  # fmt: skip

    def _count(self, least: float, most: float) -> tuple[int, int]:
        """Run steps until one in which a request ends, after `least` and before `most`; returns
        what tokens and ends there were."""
        tokens = ended = 0
        while now() < most:
            deltas = self._step()
            ends = sum(delta.finish_reason is not None for delta in deltas)
            tokens += sum(len(delta.token_ids) for delta in deltas)
            ended += ends
            if ends and now() >= least:
                break
        return tokens, ended

    def _add(self, num_drawn: int = 0, name: str = "") -> None:
        """Send the next request. num_drawn: tokens of its answer that it has already."""
        from quire.core.messages import AddRequest
        from quire.core.sampling_params import SamplingParams

        seed, (input_len, output_len) = next(self._seeds), self._lengths
        sampling = SamplingParams(
            temperature=0.0, max_tokens=output_len - num_drawn, ignore_eos=True
        )
        prompt = self._level.prompt_of(seed, input_len + num_drawn)
        message = AddRequest(request_id=f"{name}{seed}", prompt_token_ids=prompt, sampling=sampling)
        self._running.add(message.request_id)
        self._core.handle(message)

    def _step(self) -> list[Any]:
        """Run a step, and let a request follow each one that ended."""
        deltas: list[Any] = self._core.step().deltas
        for delta in deltas:
            if delta.finish_reason is not None:
                assert delta.error is None, delta.error
                self._running.remove(delta.request_id)
                self._add()
        return deltas

    def _empty(self) -> None:
        from quire.core.messages import AbortRequests

        self._core.handle(AbortRequests(request_ids=sorted(self._running)))
        while self._core.has_work:
            self._core.step()
