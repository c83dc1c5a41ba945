"""The engine as a server sees it: one async iterator per request.

Owns the callers' mailboxes. The core behind it is reached only by core/messages, so that it can
move to a process of its own. Importing this module does not import torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any

from quire.config import EngineConfig
from quire.core.messages import AbortRequests, EngineStats, EngineView, ResetPrefixCache, StepOutput
from quire.core.output import RequestOutput
from quire.core.request import FinishReason
from quire.core.sampling_params import SamplingParams
from quire.engine.input_processor import InputProcessor, PreparedRequest, Prompt
from quire.engine.output_processor import OutputProcessor
from quire.engine.request_metrics import RequestMetrics
from quire.engine.thread import EngineThread
from quire.engine.watching import Watcher
from quire.errors import EngineError, QuireError
from quire.hub import tokenizer_folder
from quire.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from quire.engine.startup import EngineInfo

logger = logging.getLogger(__name__)

# Longer texts are encoded beside the event loop, so that they hold nobody up.
ENCODE_IN_THREAD_CHARS = 4096


class Mailbox:
    """One caller's unread news. What a slow reader has not taken is joined, so it stays bounded."""

    def __init__(self) -> None:
        self._unread: RequestOutput | None = None
        self._failure: QuireError | None = None
        self._arrived = asyncio.Event()

    def put(self, news: RequestOutput | QuireError) -> None:
        """Add news; never blocks."""
        if isinstance(news, QuireError):
            self._failure = news
        elif self._unread is None:
            self._unread = news
        else:
            self._unread.append(news)
        self._arrived.set()

    async def take(self) -> RequestOutput:
        """Wait for news and take all of it. Raises the error that ended the request."""
        await self._arrived.wait()
        self._arrived.clear()
        if self._failure is not None:
            raise self._failure
        assert self._unread is not None
        news, self._unread = self._unread, None
        return news


class AsyncEngine:
    """One model, many concurrent streams. Made by `start`; lives on one event loop."""

    def __init__(
        self, config: EngineConfig, thread: EngineThread, tokenizer: Tokenizer, info: EngineInfo
    ) -> None:
        self.info = info
        self.tokenizer = tokenizer
        self.stats = EngineStats(num_blocks=info.num_blocks, num_free_blocks=info.num_blocks)
        self._thread = thread
        self._inputs = InputProcessor(tokenizer, info.limits, info.eos_token_ids, config.model.seed)
        self.metrics = RequestMetrics()
        self._outputs = OutputProcessor(tokenizer, self.metrics)
        self._watcher = Watcher(self._thread.send)
        self._mailboxes: dict[str, Mailbox] = {}
        self._num_requests = 0
        self._last_news = 0.0  # seconds of the monotonic clock
        self._failure: EngineError | None = None

    @classmethod
    async def start(cls, config: EngineConfig) -> AsyncEngine:
        """Load the model and start the loop. Raises CheckpointError or ConfigError."""
        call = _caller_on(asyncio.get_running_loop())
        thread = EngineThread(
            config,
            on_step=lambda step: call(lambda: engine._deliver(step)),
            on_failure=lambda: call(lambda: engine._fail("the engine stopped; restart the server")),
        )
        try:
            tokenizer = await asyncio.to_thread(Tokenizer.from_folder, tokenizer_folder(config))
            engine = cls(config, thread, tokenizer, await asyncio.wrap_future(thread.started))
        except BaseException:
            await asyncio.to_thread(thread.stop)
            raise
        return engine

    @property
    def is_alive(self) -> bool:
        """Whether the loop runs."""
        return self._failure is None and self._thread.is_alive

    @property
    def is_restarting(self) -> bool:
        """Never: what breaks in this process does not come back."""
        return False

    @property
    def stalled_seconds(self) -> float:
        """Seconds for which requests have waited without a word from the engine."""
        return time.monotonic() - self._last_news if self._outputs.num_unfinished else 0.0

    async def generate(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
        queue_timeout: float | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Stream the answers to a prompt; each item carries only what is new.

        Closing the iterator aborts the request. request_id is a label; the engine's own is unique.
        queue_timeout: seconds that it may wait to begin.
        Raises InvalidRequestError before the first item (later only for wishes that ban every
        token), QueueTimeoutError, and EngineError when the engine fails.
        """
        arrival = time.monotonic()
        prepared = await self._prepare(
            prompt, sampling, request_id, priority, cache_salt, queue_timeout
        )
        if self._failure is not None:
            raise self._failure
        try:
            mailbox = self._mailboxes[prepared.request_id] = Mailbox()
            if not self._outputs.num_unfinished:
                self._last_news = time.monotonic()  # until now there was nothing to tell
            self._outputs.add(prepared, arrival)
            for message in prepared.messages:
                self._thread.send(message)
            finished = False
            while not finished:
                news = await mailbox.take()
                finished = news.finished
                yield news
        finally:
            self._forget(prepared.request_id)

    async def view(self) -> EngineView | None:
        """Blocks and latest steps, for a live view; None if the engine has not answered yet."""
        return await self._watcher.look()

    async def reset_prefix_cache(self) -> None:
        """Let no later request find what was computed before."""
        self._thread.send(ResetPrefixCache())

    async def close(self) -> None:
        """Stop the loop; unfinished requests end with an EngineError."""
        await asyncio.to_thread(self._thread.stop)
        self._fail("the engine was shut down")

    async def _prepare(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        label: str | None,
        priority: int,
        cache_salt: str,
        queue_timeout: float | None,
    ) -> PreparedRequest:
        self._num_requests += 1
        request_id = f"{label or 'request'}-{self._num_requests}"

        def prepare() -> PreparedRequest:
            return self._inputs.prepare(
                request_id,
                prompt,
                sampling,
                priority=priority,
                cache_salt=cache_salt,
                queue_timeout=queue_timeout,
            )

        is_long = isinstance(prompt, str) and len(prompt) > ENCODE_IN_THREAD_CHARS
        if is_long or sampling.structured_outputs is not None:
            return await asyncio.to_thread(prepare)
        return prepare()

    def _forget(self, request_id: str) -> None:
        self._mailboxes.pop(request_id, None)
        reason = FinishReason.ABORT if self._failure is None else FinishReason.ERROR
        if orphans := self._outputs.forget(request_id, reason):
            self._thread.send(AbortRequests(request_ids=orphans))

    def _deliver(self, step: StepOutput) -> None:
        """Hand one step's news to the callers; runs on the event loop."""
        self.stats, self._last_news = step.stats, time.monotonic()
        if step.view is not None:
            self._watcher.put(step.view)
        try:
            processed = self._outputs.process(step.deltas)
        except Exception:  # nobody knows any more who got what
            logger.exception("a step's results could not be delivered")
            self._fail("the engine's results could not be delivered; restart the server")
            return
        if processed.aborts:
            self._thread.send(AbortRequests(request_ids=processed.aborts))
        for request_id, news in (processed.outputs | processed.failures).items():
            if request_id in self._mailboxes:
                self._mailboxes[request_id].put(news)

    def _fail(self, message: str) -> None:
        """End every stream with an error; runs on the event loop."""
        self._failure = EngineError(message)
        for mailbox in self._mailboxes.values():
            mailbox.put(self._failure)


def _caller_on(loop: asyncio.AbstractEventLoop) -> Callable[[Callable[[], Any]], None]:
    """A way for other threads to run something on the loop; without effect once it is closed."""

    def call(function: Callable[[], Any]) -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(function)

    return call
