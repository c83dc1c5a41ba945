"""The engine as a server sees it: one async iterator per request.

Owns how a request is prepared and awaited. What is told between callers and the engine goes through
request_tracker.py, over a link (engine_link.py, process_link.py). Importing this module does not
import torch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Unpack

from quire.config import EngineConfig
from quire.core.messages import EngineStats, EngineView, ResetPrefixCache
from quire.core.pooling_params import PoolingParams
from quire.core.request_output import RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.engine.frontend.engine_info import EngineInfo
from quire.engine.frontend.engine_link import Link, ThreadLink
from quire.engine.frontend.input_processor import (
    InputProcessor,
    Options,
    PreparedRequest,
    Prompt,
    StopWhen,
)
from quire.engine.frontend.request_tracker import RequestTracker
from quire.hub import tokenizer_folder
from quire.tokenizer.tokenizer import Tokenizer

# Longer texts are encoded beside the event loop, so that they hold nobody up.
ENCODE_IN_THREAD_CHARS = 4096


class AsyncEngine:
    """One model, many concurrent streams. Lives on one event loop.

    Made by `start`, with the engine in a thread of this process, or over a link to a process.
    """

    def __init__(self, link: Link, tokenizer: Tokenizer, info: EngineInfo, seed: int) -> None:
        self.tokenizer = tokenizer
        self._link = link
        self._inputs = InputProcessor(
            tokenizer, info.limits, info.eos_token_ids, seed, grammar_subprocess=True
        )
        self._exchange = RequestTracker(link, tokenizer, info, self._inputs.follow)
        self.metrics = self._exchange.metrics
        self._num_requests = 0

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
    def info(self) -> EngineInfo:
        """What is fixed for the engine that runs, or ran last."""
        return self._exchange.info

    @property
    def stats(self) -> EngineStats:
        """Its figures as of the latest step."""
        return self._exchange.stats

    @property
    def is_alive(self) -> bool:
        """Whether requests can come: the engine runs, and is not being restarted."""
        return self._exchange.failure is None and not self._exchange.is_down and self._link.is_alive

    @property
    def is_restarting(self) -> bool:
        """Whether it has died, and another process is being started."""
        return self._exchange.failure is None and self._exchange.is_down

    @property
    def last_work(self) -> float:
        """When it had work for the last time, in seconds of the monotonic clock; 0: never."""
        return self._link.last_work

    @property
    def silent_seconds(self) -> float:
        """Seconds since the engine's last sign of life; 0 while it is being restarted."""
        return 0.0 if self._exchange.is_down else self._link.silent_seconds

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
        self._exchange.check_can_run()
        try:
            mailbox = self._exchange.send(prepared, arrival)
            finished = False
            while not finished:
                news = await mailbox.take()
                finished = news.finished
                yield news
        finally:
            self._exchange.forget(prepared.request_id)

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
        return await self._exchange.watcher.look()

    async def reset_prefix_cache(self) -> None:
        """Let no later request find what was computed before."""
        self._link.send(ResetPrefixCache())

    async def close(self) -> None:
        """Leave the engine; unfinished requests end with an EngineError."""
        await self._link.close()
        await asyncio.to_thread(self._inputs.close)
        self._exchange.on_failure("the engine was shut down")

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
        self._exchange.check_can_run()
        try:
            return await self._exchange.send(prepared, arrival, whole=True).take()
        finally:
            self._exchange.forget(prepared.request_id)

    def _unique(self, label: str | None) -> str:
        self._num_requests += 1
        return f"{label or self._link.client}-{self._num_requests}"


async def _encoded(prompt: Prompt, prepare: Callable[[], PreparedRequest]) -> PreparedRequest:
    """What `prepare` makes of a prompt; of a long text beside the event loop."""
    is_long = isinstance(prompt, str) and len(prompt) > ENCODE_IN_THREAD_CHARS
    return await asyncio.to_thread(prepare) if is_long else prepare()
