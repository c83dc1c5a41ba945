"""Executors run scheduled steps: here at once; gpu/device_runner.py launches one behind another.

One process per model so far; an executor for several ranks would send the same plan to each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from quire.core.scheduler_output import ModelRunnerOutput, SchedulerOutput


class Runner(Protocol):
    """A model runner that computes a step before it returns."""

    def run(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step to its end. Changes the batch and the KV cache."""

    def reset(self) -> None:
        """Drop all requests, whatever an interrupted step has left."""


Outcome = Callable[[], ModelRunnerOutput]
"""Waits for a step that was started, and returns its result or raises its error."""


class Executor(Protocol):
    """Starts steps. The engine keeps at most `max_in_flight` of them without a result.

    step_sizes: the numbers of tokens, ascending, to which steps with prompt chunks are padded;
    empty if they are not padded.
    """

    max_in_flight: int
    step_sizes: Sequence[int]

    def record(self) -> None:
        """Capture the graphs that steps replay; called once, when kernels are compiled."""

    def execute(self, plan: SchedulerOutput) -> Outcome:
        """Start a step; steps run in the order of these calls. Errors are raised by the outcome."""

    def reset(self) -> None:
        """Drop all steps and requests, as after `record`: plans have to add them again."""


class Failed(msgspec.Struct, frozen=True):
    """The outcome of a step that could not be started, or did not run to its end."""

    failure: Exception

    def __call__(self) -> ModelRunnerOutput:
        """Raise the error of the step."""
        raise self.failure


class UniprocExecutor:
    """Runs each step in the caller's thread: on a CPU there is nothing to overlap with."""

    max_in_flight = 1
    step_sizes: Sequence[int] = ()

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def record(self) -> None:
        """Does nothing: there are no graphs to capture."""

    def execute(self, plan: SchedulerOutput) -> Outcome:
        """Run the step; returns its result or its error as an outcome."""
        try:
            output = self._runner.run(plan)
        except Exception as failure:  # any error of a step; the engine must outlive it
            return Failed(failure)
        return lambda: output

    def reset(self) -> None:
        """Drop all requests."""
        self._runner.reset()
