"""Executors run scheduled steps: at once, or with a second one launched behind the first.

One process per model so far; an executor for several ranks would send the same plan to each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from quire.core.scheduler_output import ModelRunnerOutput, SchedulerOutput

Step = TypeVar("Step")


class Runner(Protocol):
    """A model runner that computes a step before it returns."""

    def run(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step to its end. Changes the batch and the KV cache."""

    def reset(self) -> None:
        """Drop all requests, whatever an interrupted step has left."""


class LaunchingRunner(Protocol[Step]):
    """A model runner that launches steps on a device without waiting for them."""

    def launch(self, plan: SchedulerOutput) -> Step:
        """Launch a step after those that are already launched."""

    def collect(self, step: Step) -> ModelRunnerOutput:
        """Wait for a step's result; called in the order of the launches."""

    def record(self) -> None:
        """Capture the graphs that steps replay; called once, before the first step."""

    def reset(self) -> None:
        """Wait for the device, and drop all steps and requests, whatever a step has left."""


Outcome = Callable[[], ModelRunnerOutput]
"""Waits for a step that was started, and returns its result or raises its error."""


class Executor(Protocol):
    """Starts steps. The engine keeps at most `max_in_flight` of them without a result.

    step_sizes: the numbers of tokens, ascending, to which steps with prompt chunks are padded;
    empty if they are not padded.
    """

    max_in_flight: int
    step_sizes: Sequence[int]

    def warm_up(self) -> None:
        """Prepare for the first step, once kernels are compiled: captures graphs."""

    def execute(self, plan: SchedulerOutput) -> Outcome:
        """Start a step; steps run in the order of these calls. Errors are raised by the outcome."""

    def reset(self) -> None:
        """Drop all steps and requests, as after `warm_up`: plans have to add them again."""


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

    def warm_up(self) -> None:
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


class OverlappedExecutor(Generic[Step]):
    """Launches a step while the one before it still runs on the device."""

    max_in_flight = 2

    def __init__(self, runner: LaunchingRunner[Step], step_sizes: Sequence[int]) -> None:
        self._runner = runner
        self.step_sizes = step_sizes

    def warm_up(self) -> None:
        """Capture the graphs that steps replay."""
        self._runner.record()

    def execute(self, plan: SchedulerOutput) -> Outcome:
        """Launch the step; an error, at once or later, is raised by the outcome."""
        try:
            step = self._runner.launch(plan)
        except Exception as failure:  # as above
            return Failed(failure)
        return lambda: self._runner.collect(step)

    def reset(self) -> None:
        """Wait for the device, and drop all steps and requests."""
        self._runner.reset()
