"""Who runs a plan. One process here; other executors will send the same plan to more ranks."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol

from quire.core.step import ModelRunnerOutput, SchedulerOutput


class Runner(Protocol):
    """What an executor needs of a model runner."""

    def run(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step to its end. Changes the batch and the KV cache."""


class Executor(Protocol):
    """Starts steps. The engine keeps up to `max_in_flight` of them unanswered."""

    max_in_flight: int

    def execute(self, plan: SchedulerOutput) -> Future[ModelRunnerOutput]:
        """Start a step; steps run in the order of these calls. Never raises: see the future."""


class UniprocExecutor:
    """Runs each step at once in the caller's thread: on a CPU there is nothing to overlap with."""

    max_in_flight = 1

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def execute(self, plan: SchedulerOutput) -> Future[ModelRunnerOutput]:
        """Run the step; its failure is kept in the future."""
        future: Future[ModelRunnerOutput] = Future()
        try:
            future.set_result(self._runner.run(plan))
        except Exception as failure:  # a step may fail in any way; the engine has to outlive it
            future.set_exception(failure)
        return future
