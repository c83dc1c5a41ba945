"""The request tracker: one front's unfinished requests, between their callers and the engine.

Owns the callers' output queues, and what happens to unfinished requests when an engine process dies
and another one replaces it: they continue there with the tokens that they have.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from quire.core.messages import AbortRequests, AddRequest, EngineStats, RequestDelta, StepOutput
from quire.core.request import FinishReason
from quire.core.request_limits import RequestLimits
from quire.core.request_output import RequestOutput
from quire.engine.core.engine_info import EngineInfo
from quire.engine.frontend.engine_link import EngineLink
from quire.engine.frontend.engine_view import EngineViewClient
from quire.engine.frontend.input_processor import PreparedRequest
from quire.engine.frontend.output_processor import OutputProcessor
from quire.engine.frontend.output_queue import OutputQueue
from quire.engine.frontend.request_metrics import RequestMetrics
from quire.errors import EngineError, InvalidRequestError, OverloadedError, QuireError
from quire.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

TOO_LARGE_TO_CONTINUE = (
    "the engine died while it ran this request, and with its answer so far it is too large to "
    "continue in another; send it again, or a shorter one"
)


class RequestTracker:
    """Sends requests to the engine and hands its outputs to their callers. The link's listener.

    info: of the engine that runs, or ran last; stats: as of its latest step. set_limits: called
    with the limits of an engine process that replaces another.
    """

    def __init__(
        self,
        link: EngineLink,
        tokenizer: Tokenizer,
        info: EngineInfo,
        set_limits: Callable[[RequestLimits], None],
    ) -> None:
        self.info = info
        self.stats = EngineStats(num_blocks=info.num_blocks, num_free_blocks=info.num_blocks)
        self.metrics = RequestMetrics()
        self.views = EngineViewClient(link.send)
        self.is_down = False  # between two engine processes
        self.failure: EngineError | None = None
        self._link = link
        self._set_limits = set_limits
        self._processor = OutputProcessor(tokenizer, self.metrics)
        self._queues: dict[str, OutputQueue] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unsent: list[tuple[PreparedRequest, float]] = []  # with their arrivals
        link.attach(self)

    def send(
        self, prepared: PreparedRequest, arrival: float, *, final_only: bool = False
    ) -> OutputQueue:
        """Send a request to the engine at the end of this turn of the event loop.

        Returns the queue of its outputs. arrival: monotonic seconds. final_only: see `OutputQueue`.
        Raises EngineError or OverloadedError while there is no engine, and InvalidRequestError if a
        smaller engine has replaced the one that the request was prepared for. Later errors, as for
        a request that is too large to send, go into the queue. The caller calls `forget` in the
        end, also after an error.
        """
        if self.failure is not None:
            raise self.failure
        if self.is_down:
            seconds = max(1.0, sum(self.info.seconds.values()))
            text = "the engine is being restarted; send the request again in a moment"
            raise OverloadedError(text, retry_after=seconds)
        if prepared.limits is not self.info.limits:
            self.info.limits.check(prepared.messages[0])
        if self._loop is None:  # stored, because asking for it costs a system call
            self._loop = asyncio.get_running_loop()
        queue = self._queues[prepared.request_id] = OutputQueue(self._loop, final_only=final_only)
        if not self._unsent:
            self._loop.call_soon(self._send_all)
        self._unsent.append((prepared, arrival))
        return queue

    def _send_all(self) -> None:
        """Send the requests of one turn of the event loop: all are tracked, then all are sent.

        Quicker than one by one, as the code of each stage stays in the processor's caches.
        """
        unsent, self._unsent = self._unsent, []
        try:
            self._send_each(unsent)
        except BaseException:  # as in `_deliver`
            self._abandon()
            raise

    def _send_each(self, unsent: list[tuple[PreparedRequest, float]]) -> None:
        tracked = [
            prepared
            for prepared, arrival in unsent
            if prepared.request_id in self._queues
            and self._attempt(prepared, self._processor.add, prepared, arrival)
        ]
        for prepared in tracked:
            for message in prepared.messages:
                if not self._attempt(prepared, self._link.send, message):
                    break

    def _attempt(
        self, prepared: PreparedRequest, step: Callable[..., object], *args: object
    ) -> bool:
        """Run a step of sending a request; returns whether it succeeded."""
        try:
            step(*args)
        except InvalidRequestError as error:  # it is too large to send
            self._put(prepared.request_id, error)
        except Exception:
            logger.exception("a request could not be sent")
            self._put(prepared.request_id, EngineError("the request could not be sent"))
        else:
            return True
        return False

    def forget(self, request_id: str) -> None:
        """Stop tracking a request whose caller has left; aborts its unfinished answers."""
        self._queues.pop(request_id, None)
        reason = FinishReason.ABORT if self.failure is None else FinishReason.ERROR
        if unfinished := self._processor.forget(request_id, reason):
            self._link.send(AbortRequests(request_ids=unfinished))

    # ------------------------------------------------------------------ called by the link

    def on_step(self, step: StepOutput) -> None:
        """Hand the outputs of a step to their callers."""
        self.stats = step.stats
        if step.view is not None:
            self.views.put(step.view)
        self._deliver(step.deltas)

    def _deliver(self, deltas: list[RequestDelta]) -> None:
        try:
            self._hand_over(deltas)
        except Exception:  # it is unknown which callers have got their outputs
            logger.exception("a step's results could not be delivered")
            self.on_failure("the engine's results could not be delivered; restart the server")
        except BaseException:  # Ctrl-C may end what runs, and the loop may go on
            self._abandon()
            raise

    def _abandon(self) -> None:
        """End all requests with an error: it is unknown which outputs are lost."""
        error = EngineError("the program was interrupted; send the request again")
        unfinished = [i for request_id in self._queues for i in self._processor.forget(request_id)]
        self._link.send(AbortRequests(request_ids=unfinished))
        for queue in self._queues.values():
            queue.put(error)

    def _hand_over(self, deltas: list[RequestDelta]) -> None:
        processed = self._processor.process(deltas)
        for request_id, output in processed.outputs.items():
            self._put(request_id, output)
        for request_id, failure in processed.failures.items():
            self._put(request_id, failure)
        if processed.aborts:  # last, because sending may deliver the next step
            self._link.send(AbortRequests(request_ids=processed.aborts))

    def on_down(
        self, find_started: Callable[[Iterable[str]], set[str]], *, is_blameless: bool = False
    ) -> None:
        """The engine process has died, and another one is being started.

        find_started: which of some engine request ids ran in it. is_blameless: none of them can
        have caused that. A request that may have caused two deaths, or has seen eight, ends with an
        error.
        """
        self.is_down = True
        failures = self._processor.record_death(find_started, is_blameless=is_blameless)
        for request_id, failure in failures.items():
            self._put(request_id, failure)

    def on_up(self, info: EngineInfo) -> None:
        """Another engine process has started: unfinished requests continue in it."""
        self.is_down, self.failure = False, None
        self.info = info
        self._set_limits(info.limits)
        self.views.reset()
        unfinished = self._processor.unfinished()
        logger.info(
            "the engine has been restarted: %d unfinished answers continue in it", len(unfinished)
        )
        for message in unfinished:
            if self._processor.is_tracked(message.request_id):  # another answer may have failed it
                self._continue(message)

    def _continue(self, message: AddRequest) -> None:
        """Send an unfinished request to another engine; one too large for it fails alone."""
        try:
            self.info.limits.check(message)
            self._link.send(message)
        except InvalidRequestError:
            self._deliver(
                [RequestDelta(request_id=message.request_id, error=TOO_LARGE_TO_CONTINUE)]
            )

    def on_failure(self, message: str) -> None:
        """The engine has ended and is not being restarted: end every stream with an error."""
        self.failure = EngineError(message)
        for queue in self._queues.values():
            queue.put(self.failure)

    def _put(self, request_id: str, output: RequestOutput | QuireError) -> None:
        queue = self._queues.get(request_id)
        if queue is not None:
            queue.put(output)
