"""An engine core in its caller's thread: one batch of requests at a time, run to its end.

Owns what is left of requests when their caller is interrupted: nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from quire.core.messages import AbortRequests, EngineStats, ResetPrefixCache
from quire.engine.core.deferred_interrupt import DeferredInterrupt
from quire.engine.core.engine_core import EngineCore
from quire.engine.frontend.input_processor import PreparedRequest
from quire.engine.frontend.output_processor import OutputProcessor, Processed


class InlineEngine:
    """Runs requests with a core that no other thread uses meanwhile.

    Ctrl-C is handled between steps, and aborts what runs. Anything else that is raised within a
    step or an abort (a second Ctrl-C, a signal handler's error, a lack of memory) leaves a core in
    which things may be half done: it is reset before it is used again.
    """

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self.is_whole = True  # no call of core or outputs is half done: else requests are lost

    @property
    def stats(self) -> EngineStats:
        """The engine's gauges and counters."""
        return self._core.stats

    def reset_prefix_cache(self) -> None:
        """Clear the prefix cache; requests may not run meanwhile."""
        self._mend()
        self._core.handle(ResetPrefixCache())

    def run(
        self,
        requests: Sequence[PreparedRequest],
        outputs: OutputProcessor,
        on_step: Callable[[Processed], None],
        interrupt: DeferredInterrupt,
    ) -> None:
        """Run requests until all have ended; `on_step` gets the outputs of each step.

        Raises what `on_step` raises, and what `interrupt` delivers. No request is left then.
        """
        self._mend()
        try:
            for request in requests:
                self.add(request, outputs)
                interrupt.deliver()
            while outputs.num_unfinished:
                on_step(self.step(outputs))
                interrupt.deliver()
        except BaseException:
            self.drop(requests, outputs)
            raise

    def add(self, request: PreparedRequest, outputs: OutputProcessor) -> None:
        """Start a request; steps of its caller run it."""
        self.is_whole = False
        outputs.add(request, time.monotonic())
        for message in request.messages:
            self._core.handle(message)
        self.is_whole = True

    def step(self, outputs: OutputProcessor) -> Processed:
        """Run one step of all requests."""
        self.is_whole = False
        step = outputs.process(self._core.step().deltas)
        if step.aborts:
            self._core.handle(AbortRequests(request_ids=step.aborts))
        self.is_whole = True
        return step

    def abort(self, request_id: str, outputs: OutputProcessor) -> None:
        """End one request; others go on. Nothing for one that has ended."""
        self.is_whole = False
        self._core.handle(AbortRequests(request_ids=outputs.forget(request_id)))
        self.is_whole = True

    def drop(self, requests: Sequence[PreparedRequest], outputs: OutputProcessor) -> None:
        """Abort all requests and wait for steps in flight; keeps the prefix cache if it can."""
        if self.is_whole:
            self.is_whole = False
            unfinished = [i for request in requests for i in outputs.forget(request.request_id)]
            self._core.handle(AbortRequests(request_ids=unfinished))
            while self._core.has_work:
                self._core.step()
            self.is_whole = True
        self._mend()

    def _mend(self) -> None:
        if not self.is_whole:
            self._core.reset()
            self.is_whole = True
