"""The requests of one front that are not answered yet, between their callers and the engine.

Owns the callers' mailboxes, and what becomes of unfinished requests when an engine process dies and
another takes its place: they go on with the tokens that they have.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial

from quire.core.messages import AbortRequests, AddRequest, EngineStats, RequestDelta, StepOutput
from quire.core.request import FinishReason
from quire.core.request_limits import RequestLimits
from quire.core.request_output import RequestOutput
from quire.engine.frontend.engine_info import EngineInfo
from quire.engine.frontend.engine_link import Link
from quire.engine.frontend.engine_view import Watcher
from quire.engine.frontend.input_processor import PreparedRequest
from quire.engine.frontend.output_processor import OutputProcessor
from quire.engine.frontend.output_queue import OutputQueue
from quire.engine.frontend.request_metrics import RequestMetrics
from quire.errors import EngineError, InvalidRequestError, OverloadedError, QuireError
from quire.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

TOO_LONG_TO_GO_ON = (
    "the engine died while it ran this request, and with its answer so far it is too large to go "
    "on in another; send it again, or a shorter one"
)


class RequestTracker:
    """Hands requests to the engine, and its news to those who asked. It is the link's listener.

    info: of the engine that runs, or ran last; stats: as of its latest step. follow: told the
    limits of an engine that takes another's place.
    """

    def __init__(
        self,
        link: Link,
        tokenizer: Tokenizer,
        info: EngineInfo,
        follow: Callable[[RequestLimits], None],
    ) -> None:
        self.info = info
        self.stats = EngineStats(num_blocks=info.num_blocks, num_free_blocks=info.num_blocks)
        self.metrics = RequestMetrics()
        self.watcher = Watcher(link.send)
        self.is_down = False  # between two engine processes
        self.failure: EngineError | None = None
        self._link = link
        self._follow = follow
        self._outputs = OutputProcessor(tokenizer, self.metrics)
        self._mailboxes: dict[str, OutputQueue] = {}
        self._unsent: list[tuple[PreparedRequest, float]] = []  # with their arrivals
        self._loop: asyncio.AbstractEventLoop  # of those who wait for answers
        link.attach(self)

    def check_can_run(self) -> None:
        """Raises EngineError or OverloadedError where there is no engine."""
        if self.failure is not None:
            raise self.failure
        if self.is_down:
            seconds = max(1.0, sum(self.info.seconds.values()))
            text = "the engine is being restarted; send the request again in a moment"
            raise OverloadedError(text, retry_after=seconds)

    def send(
        self, prepared: PreparedRequest, arrival: float, *, whole: bool = False
    ) -> OutputQueue:
        """Hand a request to the engine; its news come into the mailbox. whole: all at the end.

        All that came in one turn of the loop go together: that is quicker than one by one.
        """
        if not self._unsent:
            self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._send_all)
        self._unsent.append((prepared, arrival))
        mailbox = self._mailboxes[prepared.request_id] = OutputQueue(self._loop, whole=whole)
        return mailbox

    def _send_all(self) -> None:
        """Follow what waits and is still wanted, and send it."""
        unsent, self._unsent = self._unsent, []
        wanted = [item for item in unsent if item[0].request_id in self._mailboxes]
        followed = [
            prepared
            for prepared, arrival in wanted
            if self._attempt(prepared, partial(self._outputs.add, prepared, arrival))
        ]
        for prepared in followed:
            self._attempt(prepared, partial(self._send_messages, prepared))

    def _send_messages(self, prepared: PreparedRequest) -> None:
        for message in prepared.messages:
            self._link.send(message)

    def _attempt(self, prepared: PreparedRequest, step: Callable[[], None]) -> bool:
        """Whether it went well; else the caller is told, and the others of this turn go on."""
        try:
            step()
        except InvalidRequestError as error:  # it is too large for the way
            self._put(prepared.request_id, error)
        except Exception:
            logger.exception("a request could not be sent")
            self._put(prepared.request_id, EngineError("the request could not be sent"))
        else:
            return True
        return False

    def forget(self, request_id: str) -> None:
        """Nobody waits for it any more; what the engine still runs of it is aborted."""
        self._mailboxes.pop(request_id, None)
        reason = FinishReason.ABORT if self.failure is None else FinishReason.ERROR
        if orphans := self._outputs.forget(request_id, reason):
            self._link.send(AbortRequests(request_ids=orphans))

    # ------------------------------------------------------------------ told by the link

    def on_step(self, step: StepOutput) -> None:
        """Hand one step's news to the callers."""
        self.stats = step.stats
        if step.view is not None:
            self.watcher.put(step.view)
        self._deliver(step.deltas)

    def _deliver(self, deltas: list[RequestDelta]) -> None:
        try:
            processed = self._outputs.process(deltas)
        except Exception:  # nobody knows any more who got what
            logger.exception("a step's results could not be delivered")
            self.on_failure("the engine's results could not be delivered; restart the server")
            return
        for request_id, output in processed.outputs.items():
            self._put(request_id, output)
        for request_id, failure in processed.failures.items():
            self._put(request_id, failure)
        if processed.aborts:  # at the end: sending may bring the next step
            self._link.send(AbortRequests(request_ids=processed.aborts))

    def on_down(self, has_begun: Callable[[Iterable[str]], set[str]]) -> None:
        """The engine process has died, and another one is being started.

        has_begun: which of some engine request ids were running, or had been. One that was so at
        two deaths may be their cause, and ends with an error.
        """
        self.is_down = True
        for request_id, failure in self._outputs.note_death(has_begun).items():
            self._put(request_id, failure)

    def on_up(self, info: EngineInfo) -> None:
        """Another engine process is there: unfinished requests go on in it."""
        self.is_down, self.failure = False, None
        self.info = info
        self._follow(info.limits)
        self.watcher.ask_again()
        unfinished = self._outputs.unfinished()
        logger.info("an engine is there again: %d unfinished answers go on in it", len(unfinished))
        for message in unfinished:
            if self._outputs.follows(message.request_id):  # its other answers may have failed it
                self._go_on(message)

    def _go_on(self, continuation: AddRequest) -> None:
        """Send a request again; one that has grown too large for the way fails alone."""
        try:
            self._link.send(continuation)
        except InvalidRequestError:
            self._deliver(
                [RequestDelta(request_id=continuation.request_id, error=TOO_LONG_TO_GO_ON)]
            )

    def on_failure(self, message: str) -> None:
        """The engine is gone, unless another one is started some day: end every stream."""
        self.failure = EngineError(message)
        for mailbox in self._mailboxes.values():
            mailbox.put(self.failure)

    def _put(self, request_id: str, news: RequestOutput | QuireError) -> None:
        if request_id in self._mailboxes:
            self._mailboxes[request_id].put(news)
