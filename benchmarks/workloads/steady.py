"""A level that is saturated from its first moment on, so that some seconds of it tell its rate.

The first requests are as far in their answers as requests that are replaced one by one would be:
each brings a share of its answer, from nothing to nearly all of it, as part of its prompt, and
draws the rest. So none end together, and the KV cache is as full as later. Their prompts are in the
cache (cached_prompts.py). A request that ends is followed by a complete one. Counting begins
START_SECONDS seconds after all of the first ones draw.

How many prompts fall into the window is chance, and most of the time of long ones is theirs. So
the rate is what it would be with prompts as many as answers:

    tokens drawn / (seconds + what prompt tokens that are missing would take)

Per token of an answer, (input_len + output_len - 1) / output_len tokens are computed in the long
run; what the window has less, or more, counts at what a token more in a step took in this window,
by least squares over its steps.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from workloads.plan import Level

CACHED_PROMPT = "cached prompt "  # prefix of ids of requests whose prompt is in the cache
START_SECONDS = 3.0  # seconds in which the engine learns what its steps cost
WINDOW = 8.0  # seconds of counting, where there is so much time
LEAST_WINDOW = 3.0

now = time.perf_counter


class Step(NamedTuple):
    """Time and tokens of one step. computed: tokens, of prompts and answers."""

    seconds: float
    computed: int
    drawn: int
    ended: int


class Steady:
    """A saturated level on an engine core, in the loop that also runs its steps."""

    def __init__(self, core: Any, level: Level) -> None:
        self._core, self._level = core, level
        self._lengths = level.workload.input_len, level.workload.output_len
        self._random = random.Random(level.seeds[0])
        self._seeds = iter(level.seeds)
        self._running = set[str]()
        self._silent = set[str]()  # of the first ones
        self._num_computed = self._num_drawn = 0  # tokens of all steps that have ended

    def measure(self) -> dict[str, Any]:
        """Rates of tokens and requests, or "unsteady" where the time was over before."""
        begin, count = now(), int(self._level.level)
        end = begin + self._level.stop_after
        length = self._lengths[1]
        for index in self._random.sample(range(count), count):
            self._add(index * length // count, CACHED_PROMPT)
        self._silent = set(self._running)
        while self._silent and now() < end - LEAST_WINDOW:
            self._step()
        self._run_until(min(now() + START_SECONDS, end - LEAST_WINDOW))
        ramp = now() - begin
        steps = [] if self._silent else self._run_until(min(now() + WINDOW, end))
        errors = {"unsteady": len(self._silent)} if self._silent else {}
        self._empty()
        figures = summary(steps, *self._lengths) if steps else {"ok": 0}
        return figures | {"errors": errors, "ramp_s": round(ramp, 2)}

    def _run_until(self, moment: float) -> list[Step]:
        """The steps until then."""
        steps, last, computed, drawn = [], now(), self._num_computed, self._num_drawn
        while now() < moment:
            deltas = self._step()
            ended = sum(delta.finish_reason is not None for delta in deltas)
            seconds, tokens = now() - last, self._num_computed - computed
            steps.append(Step(seconds, tokens, self._num_drawn - drawn, ended))
            last, computed, drawn = last + seconds, computed + tokens, self._num_drawn
        return steps

    def _add(self, num_drawn: int = 0, name: str = "") -> None:
        """Send the next request. num_drawn: tokens of its answer that it has already."""
        from quire.core.messages import AddRequest
        from quire.core.sampling_params import SamplingParams

        seed, (input_len, output_len) = next(self._seeds), self._lengths
        sampling = SamplingParams(
            temperature=0.0, max_tokens=output_len - num_drawn, ignore_eos=True
        )
        prompt = self._level.prompt_of(seed, input_len + num_drawn)
        message = AddRequest(
            request_id=f"{name}{seed}", prompt_token_ids=prompt, sampling=sampling, stream=False
        )
        self._running.add(message.request_id)
        self._core.handle(message)

    def _step(self) -> list[Any]:
        """Run a step, and let a request follow each one that ended."""
        output = self._core.step()
        self._num_computed = int(output.stats.step_tokens.sum)
        self._num_drawn = output.stats.num_generation_tokens
        deltas: list[Any] = output.deltas
        self._silent -= {delta.request_id for delta in deltas if delta.token_ids}
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


def summary(steps: Sequence[Step], input_len: int, output_len: int) -> dict[str, Any]:
    """Rates of the long run; those of the window alone are "raw".

    computed_per_token: of the window; `whole` is what it is in the long run.
    """
    seconds, computed, drawn, ended = (sum(column) for column in zip(*steps, strict=True))
    if not drawn:
        return {"ok": 0, "errors": {"unsteady": 1}, "seconds": round(seconds, 2)}
    whole = (input_len + output_len - 1) / output_len
    missing = drawn * whole - computed
    rate = drawn / (seconds + missing * seconds_per_token(steps))
    return {
        "ok": ended, "seconds": round(seconds, 2), "tok_s": round(rate, 1),
        "req_s": round(rate / output_len, 3), "raw_tok_s": round(drawn / seconds, 1),
        "computed_per_token": round(computed / drawn, 3), "whole": round(whole, 3),
    }  # fmt: skip


def seconds_per_token(steps: Sequence[Step]) -> float:
    """Increase of a step's time for each token more; 0 where all have as many.

    No more than its tokens take altogether: whatever else makes long steps is not theirs.
    """
    tokens, seconds = [step.computed for step in steps], [step.seconds for step in steps]
    if len(set(tokens)) < 2:
        return 0.0
    slope = statistics.linear_regression(tokens, seconds).slope
    return min(max(slope, 0.0), sum(seconds) / sum(tokens))
