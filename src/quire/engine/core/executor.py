"""Who runs a plan. One process here; other executors will send the same plan to more ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from quire.core.scheduler_output import ModelRunnerOutput, SchedulerOutput

Step = TypeVar("Step")


class Runner(Protocol):
    """What an executor needs of a model runner."""

    def run(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step to its end. Changes the batch and the KV cache."""


class LaunchingRunner(Protocol[Step]):
    """A model runner that need not wait for its device."""

    def launch(self, plan: SchedulerOutput) -> Step:
        """Start a step behind those that were started before."""

    def collect(self, step: Step) -> ModelRunnerOutput:
        """Wait for the outcome of a step; called in the order of the launches."""

    def record(self) -> None:
        """Record what steps replay, before the first of them."""


class Outcome(Protocol):
    """A step that was started."""

    def result(self) -> ModelRunnerOutput:
        """Wait for its end; raises what went wrong in it."""


class Executor(Protocol):
    """Starts steps. The engine keeps up to `max_in_flight` of them unanswered.

    step_sizes: numbers of tokens, ascending, to which steps with parts of prompts are padded; none
    if they are not.
    """

    max_in_flight: int
    step_sizes: Sequence[int]

    def get_ready(self) -> None:
        """Do what is left to do before the first step, once kernels are compiled."""

    def execute(self, plan: SchedulerOutput) -> Outcome:
        """Start a step; steps run in the order of these calls. Never raises: see the outcome."""


@dataclass(frozen=True, slots=True)
class Done:
    """A step that came to its end."""

    output: ModelRunnerOutput

    def result(self) -> ModelRunnerOutput:
        """What it gave."""
        return self.output


@dataclass(frozen=True, slots=True)
class Failed:
    """A step that could not be run."""

    failure: Exception

    def result(self) -> ModelRunnerOutput:
        """Raise why."""
        raise self.failure


@dataclass(frozen=True, slots=True)
class Launched(Generic[Step]):
    """A step that runs on a device."""

    runner: LaunchingRunner[Step]
    step: Step

    def result(self) -> ModelRunnerOutput:
        """Wait for the device."""
        return self.runner.collect(self.step)


class UniprocExecutor:
    """Runs each step at once in the caller's thread: on a CPU there is nothing to overlap with."""

    max_in_flight = 1
    step_sizes: Sequence[int] = ()

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def get_ready(self) -> None:
        """Nothing is."""

    def execute(self, plan: SchedulerOutput) -> Outcome:
        """Run the step; its failure is kept in the outcome."""
        try:
            return Done(self._runner.run(plan))
        except Exception as failure:  # a step may fail in any way; the engine has to outlive it
            return Failed(failure)


class OverlappedExecutor(Generic[Step]):
    """Launches a step while the one before it still runs. step_sizes: see `Executor`."""

    max_in_flight = 2

    def __init__(self, runner: LaunchingRunner[Step], step_sizes: Sequence[int]) -> None:
        self._runner = runner
        self.step_sizes = step_sizes

    def get_ready(self) -> None:
        """Record steps."""
        self._runner.record()

    def execute(self, plan: SchedulerOutput) -> Outcome:
        """Launch the step; a failure, then or later, is kept in the outcome."""
        try:
            return Launched(self._runner, self._runner.launch(plan))
        except Exception as failure:  # as above
            return Failed(failure)
