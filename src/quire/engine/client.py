"""The engine as a server sees it: one async iterator per request.

Owns the callers' mailboxes, and what becomes of unfinished requests when an engine process dies and
another takes its place: they go on with the tokens that they have. The core is reached over a link
(link.py, process_link.py). Importing this module does not import torch.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from functools import partial
from typing import Unpack

from quire.config import EngineConfig
from quire.core.messages import (
    AbortRequests,
    AddRequest,
    EngineStats,
    EngineView,
    RequestDelta,
    ResetPrefixCache,
    StepOutput,
)
from quire.core.output import RequestOutput
from quire.core.pooling_params import PoolingParams
from quire.core.request import FinishReason
from quire.core.sampling_params import SamplingParams
from quire.engine.info import EngineInfo
from quire.engine.input_processor import (
    InputProcessor,
    Options,
    PreparedRequest,
    Prompt,
    StopWhen,
)
from quire.engine.link import Link, ThreadLink
from quire.engine.mailbox import Mailbox
from quire.engine.output_processor import OutputProcessor
from quire.engine.request_metrics import RequestMetrics
from quire.engine.watching import Watcher
from quire.errors import EngineError, InvalidRequestError, OverloadedError, QuireError
from quire.hub import tokenizer_folder
from quire.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

# Longer texts are encoded beside the event loop, so that they hold nobody up.
ENCODE_IN_THREAD_CHARS = 4096

TOO_LONG_TO_GO_ON = (
    "the engine died while it ran this request, and with its answer so far it is too large to go "
    "on in another; send it again, or a shorter one"
)


class AsyncEngine:
    """One model, many concurrent streams. Lives on one event loop.

    Made by `start`, with the engine in a thread of this process, or over a link to a process.
    """

    def __init__(self, link: Link, tokenizer: Tokenizer, info: EngineInfo, seed: int) -> None:
        self.info = info
        self.tokenizer = tokenizer
        self.stats = EngineStats(num_blocks=info.num_blocks, num_free_blocks=info.num_blocks)
        self._link = link
        self._inputs = InputProcessor(
            tokenizer, info.limits, info.eos_token_ids, seed, forms_apart=True
        )
        self.metrics = RequestMetrics()
        self._outputs = OutputProcessor(tokenizer, self.metrics)
        self._watcher = Watcher(link.send)
        self._mailboxes: dict[str, Mailbox] = {}
        self._unsent: list[tuple[PreparedRequest, float]] = []  # with their arrivals
        self._loop: asyncio.AbstractEventLoop  # of those who wait for answers
        self._num_requests = 0
        self._is_down = False  # between two engine processes
        self._failure: EngineError | None = None
        link.attach(self)

    @classmethod
    async def start(cls, config: EngineConfig) -> AsyncEngine:
        """Load the model and start the loop. Raises CheckpointError or ConfigError."""
        link = ThreadLink(config)
        try:
            tokenizer = await asyncio.to_thread(Tokenizer.from_folder, tokenizer_folder(config))
            return cls(link, tokenizer, await link.started(), config.model.seed)
        except BaseException:
            await link.close()
            raise

    @property
    def is_alive(self) -> bool:
        """Whether requests can come: the engine runs, and is not being restarted."""
        return self._failure is None and not self._is_down and self._link.is_alive

    @property
    def is_restarting(self) -> bool:
        """Whether it has died, and another process is being started."""
        return self._failure is None and self._is_down

    @property
    def last_work(self) -> float:
        """When it had work for the last time, in seconds of the monotonic clock; 0: never."""
        return self._link.last_work

    @property
    def silent_seconds(self) -> float:
        """Seconds since the engine's last sign of life; 0 while it is being restarted."""
        return 0.0 if self._is_down else self._link.silent_seconds

    async def generate(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        *,
        request_id: str | None = None,
        stream: bool = True,
        stop_when: StopWhen | None = None,
        **options: Unpack[Options],
    ) -> AsyncGenerator[RequestOutput, None]:
        """Stream the answers to a prompt; each item carries only what is new.

        Closing the iterator aborts the request. request_id is a label; the engine's own is unique.
        stream: without it, an engine process may tell everything at the end. stop_when: ends
        answers by their text.
        Raises InvalidRequestError before the first item (later only for wishes that ban every
        token), QueueTimeoutError, OverloadedError while the engine is being restarted, and
        EngineError when it fails.
        """
        arrival = time.monotonic()
        prepared = await self._prepare(prompt, sampling, request_id, stream, stop_when, options)
        self._check_can_run()
        try:
            mailbox = self._send(prepared, arrival)
            finished = False
            while not finished:
                news = await mailbox.take()
                finished = news.finished
                yield news
        finally:
            self._forget(prepared.request_id)

    async def complete(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        *,
        request_id: str | None = None,
        stop_when: StopWhen | None = None,
        **options: Unpack[Options],
    ) -> RequestOutput:
        """The whole answers to a prompt. Cancelling aborts the request; raises as `generate`."""
        arrival = time.monotonic()
        prepared = await self._prepare(prompt, sampling, request_id, False, stop_when, options)
        return await self._run_whole(prepared, arrival)

    async def embed(
        self,
        prompt: Prompt,
        pooling: PoolingParams,
        *,
        request_id: str | None = None,
        **options: Unpack[Options],
    ) -> RequestOutput:
        """The embedding of a prompt. Cancelling aborts the request; raises as `generate` does."""
        arrival = time.monotonic()
        label = self._unique(request_id)
        prepare = partial(self._inputs.prepare_embedding, label, prompt, pooling, **options)
        return await self._run_whole(await _encoded(prompt, prepare), arrival)

    async def view(self) -> EngineView | None:
        """Blocks and latest steps, for a live view; None if the engine has not answered yet."""
        return await self._watcher.look()

    async def reset_prefix_cache(self) -> None:
        """Let no later request find what was computed before."""
        self._link.send(ResetPrefixCache())

    async def close(self) -> None:
        """Leave the engine; unfinished requests end with an EngineError."""
        await self._link.close()
        await asyncio.to_thread(self._inputs.close)
        self.on_failure("the engine was shut down")

    async def _prepare(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        label: str | None,
        stream: bool,
        stop_when: StopWhen | None,
        options: Options,
    ) -> PreparedRequest:
        prepare = partial(
            self._inputs.prepare,
            self._unique(label),
            prompt,
            sampling,
            stream=stream,
            stop_when=stop_when,
            **options,
        )
        prepared = await _encoded(prompt, prepare)
        if sampling.structured_outputs is not None:
            await self._inputs.forms.check_beside(sampling.structured_outputs)
        return prepared

    async def _run_whole(self, prepared: PreparedRequest, arrival: float) -> RequestOutput:
        """The whole answers to a request; however it ends, nothing of it stays in the engine."""
        self._check_can_run()
        try:
            return await self._send(prepared, arrival, whole=True).take()
        finally:
            self._forget(prepared.request_id)

    def _unique(self, label: str | None) -> str:
        self._num_requests += 1
        return f"{label or self._link.client}-{self._num_requests}"

    def _send(self, prepared: PreparedRequest, arrival: float, *, whole: bool = False) -> Mailbox:
        """Hand a request to the engine; its news come into the mailbox.

        All that came in one turn of the loop go together: that is quicker than one by one.
        """
        if not self._unsent:
            self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._send_all)
        self._unsent.append((prepared, arrival))
        mailbox = self._mailboxes[prepared.request_id] = Mailbox(self._loop, whole=whole)
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

    def _check_can_run(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._is_down:
            seconds = max(1.0, sum(self.info.seconds.values()))
            text = "the engine is being restarted; send the request again in a moment"
            raise OverloadedError(text, retry_after=seconds)

    def _forget(self, request_id: str) -> None:
        self._mailboxes.pop(request_id, None)
        reason = FinishReason.ABORT if self._failure is None else FinishReason.ERROR
        if orphans := self._outputs.forget(request_id, reason):
            self._link.send(AbortRequests(request_ids=orphans))

    # ------------------------------------------------------------------ told by the link

    def on_step(self, step: StepOutput) -> None:
        """Hand one step's news to the callers."""
        self.stats = step.stats
        if step.view is not None:
            self._watcher.put(step.view)
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
        self._is_down = True
        for request_id, failure in self._outputs.note_death(has_begun).items():
            self._put(request_id, failure)

    def on_up(self, info: EngineInfo) -> None:
        """Another engine process is there: unfinished requests go on in it."""
        self._is_down, self._failure = False, None
        self.info = info
        self._inputs.follow(info.limits)
        self._watcher.ask_again()
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
        self._failure = EngineError(message)
        for mailbox in self._mailboxes.values():
            mailbox.put(self._failure)

    def _put(self, request_id: str, news: RequestOutput | QuireError) -> None:
        if request_id in self._mailboxes:
            self._mailboxes[request_id].put(news)


async def _encoded(prompt: Prompt, prepare: Callable[[], PreparedRequest]) -> PreparedRequest:
    """What `prepare` makes of a prompt; of a long text beside the event loop."""
    is_long = isinstance(prompt, str) and len(prompt) > ENCODE_IN_THREAD_CHARS
    return await asyncio.to_thread(prepare) if is_long else prepare()
