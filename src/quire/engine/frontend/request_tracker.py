"""The request tracker: one frontend's unfinished requests, between their callers and the engine.

Owns the callers' output queues, and what happens to unfinished requests when an engine process dies
and another one replaces it: they continue there with the tokens that they have.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import Protocol

from quire.core.messages import AbortRequests, EngineMessage, EngineStats, RequestDelta, StepOutput
from quire.core.request import FinishReason
from quire.core.request_limits import RequestLimits
from quire.core.request_output import RequestOutput
from quire.engine.core.engine_info import EngineInfo
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


class EngineLink(Protocol):
    """Takes messages to an engine: in a thread (thread_link.py) or a process (process_link.py).

    client: this frontend's unique name.
    """

    client: str

    def attach(self, listener: RequestTracker) -> None:
        """Call `on_step` and the others of this listener, on its event loop, from now on."""

    def send(self, messages: Sequence[EngineMessage]) -> Mapping[str, QuireError]:
        """Pass messages on together; never blocks.

        Returns the errors of requests that are too large or cannot be encoded, by engine request
        id; the others are sent.
        """

    @property
    def is_alive(self) -> bool:
        """Whether there is an engine that takes messages."""

    @property
    def last_work(self) -> float:
        """When the engine last had work, in monotonic seconds; 0: never."""

    @property
    def seconds_since_heartbeat(self) -> float:
        """Seconds since the engine's last heartbeat; there is one with each layer of a step."""

    async def close(self) -> None:
        """Disconnect from the engine."""


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
        self.views = EngineViewClient(self.post)
        self.is_down = False  # between two engine processes
        self.failure: QuireError | None = None
        self._link = link
        self._set_limits = set_limits
        self._processor = OutputProcessor(tokenizer, self.metrics)
        self._queues: dict[str, OutputQueue] = {}
        self._loop = asyncio.get_running_loop()  # stored: asking for it costs a system call
        # of this turn of the event loop: requests with their arrivals, and other messages
        self._unsent: list[tuple[PreparedRequest, float]] = []
        self._messages: list[EngineMessage] = []
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
        self.check_failure()
        if self.is_down:
            seconds = max(1.0, sum(self.info.seconds.values()))
            text = "the engine is being restarted; send the request again in a moment"
            raise OverloadedError(text, retry_after=seconds)
        if prepared.limits is not self.info.limits:
            self.info.limits.check(prepared.messages[0])
        queue = self._queues[prepared.request_id] = OutputQueue(self._loop, final_only=final_only)
        self._schedule()
        self._unsent.append((prepared, arrival))
        return queue

    def check_failure(self) -> None:
        """Raise the error of an engine that has ended."""
        if self.failure is not None:  # a new error: one keeps the frames, and texts, that it passes
            raise copy(self.failure)

    def post(self, message: EngineMessage) -> None:
        """Send a message other than a request at the end of this turn of the event loop."""
        self._schedule()
        self._messages.append(message)

    def _schedule(self) -> None:
        if not self._unsent and not self._messages:
            self._loop.call_soon(self._send_turn)

    def _send_turn(self) -> None:
        """Send what one turn of the event loop has submitted: all is tracked, then sent together.

        Nothing else joins messages to the engine. Quicker than one by one, as the code of each
        stage stays in the processor's caches, and a frame costs one system call.
        """
        unsent, self._unsent = self._unsent, []
        messages, self._messages = self._messages, []
        try:
            tracked = [prepared for prepared, arrival in unsent if self._track(prepared, arrival)]
            failures = self._link.send([m for each in tracked for m in each.messages] + messages)
            if failures:
                self._fail(tracked, failures)
        except BaseException:  # as in `_deliver`
            self._abandon()
            raise

    def _track(self, prepared: PreparedRequest, arrival: float) -> bool:
        """Begin to track a request; returns whether it is to be sent."""
        if prepared.request_id not in self._queues:  # its caller has left
            return False
        try:
            self._processor.add(prepared, arrival)
        except Exception:
            logger.exception("a request could not be sent")
            self._put(prepared.request_id, EngineError("the request could not be sent"))
            return False
        return True

    def _fail(self, tracked: list[PreparedRequest], failures: Mapping[str, QuireError]) -> None:
        """End the requests that could not be sent. failures: by engine request id."""
        for prepared in tracked:
            for message in prepared.messages:
                if failure := failures.get(message.request_id):
                    self._put(prepared.request_id, failure)

    def abort(self, request_id: str) -> bool:
        """Abort a request, whose last outputs still come; returns whether any do."""
        unfinished = self._processor.unfinished_of(request_id)
        if self.is_down or self.failure is not None or not unfinished:
            return False
        self.post(AbortRequests(request_ids=unfinished))
        return True

    def forget(self, request_id: str) -> None:
        """Stop tracking a request whose caller has left; aborts its unfinished answers."""
        self._queues.pop(request_id, None)
        reason = FinishReason.ABORT if self.failure is None else FinishReason.ERROR
        if unfinished := self._processor.forget(request_id, reason):
            self.post(AbortRequests(request_ids=unfinished))

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
            text = "the engine's results could not be delivered; restart the server"
            self.on_failure(EngineError(text))
        except BaseException:  # Ctrl-C may end what runs, and the loop may go on
            self._abandon()
            raise

    def _abandon(self) -> None:
        """End all requests with an error: it is unknown which outputs are lost."""
        error = EngineError("the program was interrupted; send the request again")
        unfinished = [i for request_id in self._queues for i in self._processor.forget(request_id)]
        if unfinished:
            self.post(AbortRequests(request_ids=unfinished))
        for queue in self._queues.values():
            queue.put(copy(error))

    def _hand_over(self, deltas: list[RequestDelta]) -> None:
        processed = self._processor.process(deltas)
        for request_id, output in processed.outputs.items():
            self._put(request_id, output)
        for request_id, failure in processed.failures.items():
            self._put(request_id, failure)
        if processed.aborts:
            self.post(AbortRequests(request_ids=processed.aborts))

    def on_down(
        self, find_started: Callable[[Iterable[str]], set[str]], *, is_blameless: bool = False
    ) -> None:
        """The engine process has died, and another one is being started.

        find_started: which of some engine request ids had entered the batch. is_blameless: none of
        them can have caused the death. A request that may have caused two deaths, or has seen
        eight, ends with an error.
        """
        self.is_down = True
        self.stats.end()
        failures = self._processor.record_death(find_started, is_blameless=is_blameless)
        for request_id, failure in failures.items():
            self._put(request_id, failure)

    def on_up(self, info: EngineInfo) -> None:
        """Another engine process has started without requests: unfinished ones continue in it."""
        self.is_down, self.failure = False, None
        self.info = info
        self._set_limits(info.limits)
        self.views.reset()
        unfinished = self._processor.unfinished()
        if unfinished:  # a model that was loaded again on demand has none
            text = "the engine has been restarted: %d unfinished answers continue in it"
            logger.info(text, len(unfinished))
        for message in unfinished:
            try:
                info.limits.check(message)
            except InvalidRequestError:
                self._end_unfinished(message.request_id)
        # without answers that another one of their request has ended
        fitting = [m for m in unfinished if self._processor.is_tracked(m.request_id)]
        for request_id in self._link.send(fitting):
            self._end_unfinished(request_id)

    def _end_unfinished(self, request_id: str) -> None:
        """End a request of which an answer is too large to continue; the others go on."""
        self._deliver([RequestDelta(request_id=request_id, error=TOO_LARGE_TO_CONTINUE)])

    def on_failure(self, error: QuireError) -> None:
        """The engine has ended and is not being restarted: end every stream with the error."""
        self.failure = error
        self.stats.end()
        for queue in self._queues.values():
            queue.put(copy(error))

    def _put(self, request_id: str, output: RequestOutput | QuireError) -> None:
        queue = self._queues.get(request_id)
        if queue is not None:
            queue.put(output)
