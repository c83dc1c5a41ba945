"""AsyncEngine: the engine as a server sees it, one async iterator per request.

Owns how a request is prepared and awaited. Messages to the engine and outputs back go through
request_tracker.py, over a link (thread_link.py, process_link.py). Importing this module does not
import torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import TypeVar, Unpack

from quire.background import NUM_THREADS
from quire.compat.missing_names import ModelOwner
from quire.config import EngineConfig
from quire.core.messages import EngineStats, EngineView, ResetPrefixCache
from quire.core.pooling_params import PoolingParams
from quire.core.request_output import RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.engine.core.engine_info import EngineInfo
from quire.engine.frontend.input_processor import (
    ContinuationOptions,
    GenerateOptions,
    InputProcessor,
    Options,
    PreparedRequest,
)
from quire.engine.frontend.output_queue import OutputQueue, streamed_items
from quire.engine.frontend.prompt_encoding import Prompt
from quire.engine.frontend.prompt_inputs import OnePrompt, read_prompt
from quire.engine.frontend.request_tracker import EngineLink, RequestTracker
from quire.engine.frontend.thread_link import ThreadLink
from quire.errors import EngineError, QuireError
from quire.fair_queue import FairExecutor
from quire.tokenizer.load_tokenizer import load_tokenizer
from quire.tokenizer.tokenizer import Tokenizer

# Longer texts are encoded in a thread, so that they do not block the event loop.
ENCODE_IN_THREAD_CHARS = 4096
SECONDS_PER_CHAR = 5e-7  # an estimate, to encode short texts first
ABORT_SECONDS = 1.0  # for the engine to end a request, between two steps
OnOutput = Callable[[RequestOutput], None]
T = TypeVar("T")


class AsyncEngine(ModelOwner):
    """One model, many concurrent streams, on one event loop.

    `start` makes one with the engine in a thread of this process; a server makes one over a link to
    an engine process.
    """

    def __init__(self, link: EngineLink, tokenizer: Tokenizer, info: EngineInfo, seed: int) -> None:
        self.tokenizer = tokenizer
        self._loop = asyncio.get_running_loop()
        self._link = link
        self._inputs = InputProcessor(tokenizer, info, seed, grammar_subprocess=True)
        self._tracker = RequestTracker(link, tokenizer, info, self._inputs.set_limits)
        self.metrics = self._tracker.metrics
        self._threads = FairExecutor(NUM_THREADS, "quire-encode")
        self._num_requests = 0

    @classmethod
    async def start(cls, config: EngineConfig) -> AsyncEngine:
        """Load the model and start the loop. Raises CheckpointError or ConfigError."""
        link = ThreadLink(config)
        try:
            tokenizer = await asyncio.to_thread(load_tokenizer, config)
            return cls(link, tokenizer, await link.started(), config.model.seed)
        except BaseException:
            await link.close()
            raise

    @property
    def info(self) -> EngineInfo:
        """The fixed facts of the engine that runs, or ran last."""
        return self._tracker.info

    @property
    def eos_token_ids(self) -> list[int]:
        """The tokens that end the answers of all requests."""
        return self._inputs.eos_token_ids

    @property
    def stats(self) -> EngineStats:
        """The engine's statistics as of the latest step."""
        return self._tracker.stats

    @property
    def is_alive(self) -> bool:
        """Whether requests can be sent: the engine runs and is not being restarted."""
        return self._tracker.failure is None and not self._tracker.is_down and self._link.is_alive

    @property
    def is_restarting(self) -> bool:
        """Whether the engine process has died and another one is being started."""
        return self._tracker.failure is None and self._tracker.is_down

    @property
    def last_work(self) -> float:
        """When the engine last had work, in monotonic seconds; 0: never."""
        return self._link.last_work

    @property
    def seconds_since_heartbeat(self) -> float:
        """Seconds since the engine's last heartbeat; 0 while it is being restarted."""
        return 0.0 if self._tracker.is_down else self._link.seconds_since_heartbeat

    async def generate(
        self,
        prompt: OnePrompt,
        sampling: SamplingParams,
        *,
        request_id: str | None = None,
        stream: bool = True,
        on_abort: OnOutput | None = None,
        **options: Unpack[GenerateOptions],
    ) -> AsyncGenerator[RequestOutput, None]:
        """Stream the answers to a prompt; each item has what is new, or what output_kind asks for.

        prompt: one, in a type that `LLM.generate` takes. Closing the iterator aborts the request.
        request_id: a label for logs; the engine's own id is unique. stream: if False, an engine
        process may send everything at the end. on_abort: called with what it has generated and not
        sent of a request that is aborted.
        Raises InvalidRequestError before the first item (later only if logits processors ban every
        token), QueueTimeoutError, OverloadedError while the engine is being restarted, and
        EngineError when it fails.
        """
        arrival = time.monotonic()
        prepared = await self._prepare(prompt, sampling, request_id, stream=stream, **options)
        items, finished = streamed_items(sampling.output_kind), False
        try:
            outputs = self._tracker.send(prepared, arrival)
            while not finished:
                output = await outputs.take()
                finished = output.finished
                if items is None:
                    yield output
                elif (item := items.add(output)) is not None:
                    yield item
        except (asyncio.CancelledError, GeneratorExit):
            await self._abort(prepared, outputs, on_abort)
            raise
        finally:
            self._tracker.forget(prepared.request_id)

    async def complete(
        self,
        prompt: OnePrompt,
        sampling: SamplingParams,
        *,
        request_id: str | None = None,
        on_abort: OnOutput | None = None,
        **options: Unpack[GenerateOptions],
    ) -> RequestOutput:
        """The complete answers to a prompt. Cancelling aborts the request; see `generate`."""
        arrival = time.monotonic()
        prepared = await self._prepare(prompt, sampling, request_id, stream=False, **options)
        return await self._whole_output(prepared, arrival, on_abort)

    async def embed(
        self,
        prompt: OnePrompt,
        pooling: PoolingParams,
        *,
        request_id: str | None = None,
        **options: Unpack[Options],
    ) -> RequestOutput:
        """The embedding of a prompt. Cancelling aborts the request; raises as `generate` does."""
        check_loop(self._loop)
        arrival, prompt = time.monotonic(), read_prompt(prompt)
        unique_id, prepare = self._unique_id(request_id), self._inputs.prepare_embedding
        work = partial(prepare, unique_id, prompt, pooling, **options)
        prepared = await self._in_thread(prompt, work) if is_long(prompt) else work()
        return await self._whole_output(prepared, arrival)

    async def _whole_output(
        self, prepared: PreparedRequest, arrival: float, on_abort: OnOutput | None = None
    ) -> RequestOutput:
        try:
            outputs = self._tracker.send(prepared, arrival, final_only=True)
            return await outputs.take()
        except asyncio.CancelledError:
            await self._abort(prepared, outputs, on_abort)
            raise
        finally:
            self._tracker.forget(prepared.request_id)

    async def _abort(
        self, prepared: PreparedRequest, outputs: OutputQueue, on_abort: OnOutput | None
    ) -> None:
        """Abort a request whose caller has left; pass on what the engine had not sent."""
        if on_abort is None or not self._tracker.abort(prepared.request_id):
            return
        with contextlib.suppress(QuireError, TimeoutError):
            async with asyncio.timeout(ABORT_SECONDS):
                finished = False
                while not finished:
                    output = await outputs.take()
                    finished = output.finished
                    on_abort(output)

    async def view(self) -> EngineView | None:
        """KV blocks and the latest steps, for a live view; None if there was no answer yet."""
        return await self._tracker.views.fetch()

    async def reset_prefix_cache(self) -> None:
        """Clear the prefix cache: later requests find nothing that was computed before."""
        check_loop(self._loop)
        self._tracker.post(ResetPrefixCache())

    async def close(self) -> None:
        """Disconnect from the engine; unfinished requests end with an EngineError.

        May be awaited on any event loop.
        """
        await self._link.close()
        await asyncio.to_thread(self._inputs.close)
        failure = EngineError("the engine was shut down")
        call_on(self._loop, partial(self._tracker.on_failure, failure))
        self._threads.close()

    async def _prepare(
        self,
        prompt: OnePrompt,
        sampling: SamplingParams,
        label: str | None,
        *,
        stream: bool,
        in_thread: bool = False,
        **options: Unpack[ContinuationOptions],
    ) -> PreparedRequest:
        check_loop(self._loop)
        prompt = read_prompt(prompt)
        prepare, unique_id = self._inputs.prepare, self._unique_id(label)
        work = partial(prepare, unique_id, prompt, sampling, stream=stream, **options)
        if in_thread or is_long(prompt):
            prepared = await self._in_thread(prompt, work, options.get("caller", ""))
        else:
            prepared = work()
        if sampling.structured_outputs is not None:
            await self._inputs.grammar_checker.check_async(
                sampling.structured_outputs, prepared.caller
            )
        return prepared

    async def _in_thread(self, prompt: Prompt, work: Callable[[], T], caller: str = "") -> T:
        """The result of the work for a long text, done in a thread, in a fair order."""
        self._tracker.check_failure()
        return await self._threads.run(caller, work, expected=SECONDS_PER_CHAR * len(prompt))

    def _unique_id(self, label: str | None) -> str:
        self._num_requests += 1
        return f"{label or self._link.client}-{self._num_requests}"


def check_loop(own: asyncio.AbstractEventLoop) -> None:
    """Refuse a call on another event loop than an engine's own, where no output would arrive.

    Raises EngineError.
    """
    if asyncio.get_running_loop() is not own:
        state = "is closed" if own.is_closed() else "is another one"
        raise EngineError(
            f"the event loop that this engine was started on {state}; make all calls on one loop "
            "(from other threads with asyncio.run_coroutine_threadsafe), or make another engine"
        )


def call_on(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """Call on an event loop: at once where it runs here, else soon; not once it is closed."""
    try:
        is_here = asyncio.get_running_loop() is loop
    except RuntimeError:  # none runs here
        is_here = False
    if is_here:
        call()
    else:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(call)


def is_long(*prompts: Prompt) -> bool:
    """Whether texts, all together, are encoded in a thread."""
    return sum(len(p) for p in prompts if isinstance(p, str)) > ENCODE_IN_THREAD_CHARS
