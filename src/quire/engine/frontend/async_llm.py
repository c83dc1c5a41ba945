"""AsyncLLM: AsyncEngine as vLLM has it: made without waiting, with ids that can be aborted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal, Self, Unpack

from quire.compat.missing_names import ModelOwner
from quire.compat.own_options import OPTION_SCOPES, names_as_given
from quire.config import EngineConfig
from quire.core.request_output import RequestOutput
from quire.core.sampling_params import RequestOutputKind, SamplingParams
from quire.engine.frontend.async_engine import AsyncEngine, call_on, check_loop
from quire.engine.frontend.prompt_inputs import expand_sampling_params
from quire.engine.frontend.prompt_options import EncodingOptions, read_one_call, refuse_unknown
from quire.engine.startup.resolved_config import check_files
from quire.errors import EngineError, invalid_value
from quire.tokenizer.load_tokenizer import load_tokenizer
from quire.tokenizer.transformers_api import TransformersTokenizer


class AwaitableTokenizer(TransformersTokenizer):
    """A tokenizer that may be awaited: `get_tokenizer` of most versions of vLLM is a coroutine."""

    def __await__(self) -> Generator[Any, None, Self]:
        async def itself() -> Self:
            return self

        return itself().__await__()


class AsyncLLM(ModelOwner):
    """A model for one event loop; it is loaded when it is first used.

    Items have the answer so far, unless the params have another output_kind.
    """

    def __init__(self, config: EngineConfig) -> None:
        check_files(config)
        self.tokenizer = load_tokenizer(config)
        self._config = config
        self._settings: dict[str, Any] = {}  # as given, for errors of the start
        self._start: asyncio.Task[AsyncEngine] | None = None
        self._aborts: dict[str, asyncio.Event] = {}
        self._is_closed = False

    @classmethod
    def from_engine_args(cls, engine_args: Any, **_: Any) -> Self:
        """Check the settings of AsyncEngineArgs. Raises ConfigError or CheckpointError."""
        settings = engine_args.settings()
        with names_as_given(settings, OPTION_SCOPES):
            llm = cls(EngineConfig.from_options(**settings))
        llm._settings = settings
        return llm

    async def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        **encoding: Unpack[EncodingOptions],
    ) -> AsyncGenerator[RequestOutput, None]:
        """Stream the answers to a prompt. prompt, encoding: as `LLM.generate` takes them.

        One that is aborted ends without a last item. Raises as `AsyncEngine.generate` does.
        """
        if request_id in self._aborts:
            raise invalid_value("request_id", f"{request_id!r} runs already; use another one")
        aborted = self._aborts[request_id] = asyncio.Event()
        items = self._items(prompt, sampling_params, priority, encoding)
        try:
            async for item in _until(aborted, items):
                item.request_id = request_id
                yield item
        finally:
            del self._aborts[request_id]

    async def _items(
        self, prompt: Any, params: SamplingParams, priority: int, options: EncodingOptions
    ) -> AsyncGenerator[RequestOutput, None]:
        engine = await self._started()
        (params,) = expand_sampling_params(params, 1)
        if params.output_kind is None:
            params = params.clone()
            params.output_kind = RequestOutputKind.CUMULATIVE
        one, how = read_one_call(prompt, options)
        items = engine.generate(one, params, priority=priority, encoding=how, cut_to_context=True)
        async for item in items:
            yield item

    async def abort(self, request_id: str | Iterable[str], **options: Any) -> None:
        """End the streams of these ids; ids of none that runs are ignored.

        options: of vLLM's method, as in all methods.
        """
        refuse_unknown(options)
        for each in [request_id] if isinstance(request_id, str) else request_id:
            if each in self._aborts:
                self._aborts[each].set()

    def get_tokenizer(self, **options: Any) -> AwaitableTokenizer:
        """The tokenizer with the methods that `transformers` gives its own."""
        refuse_unknown(options)
        return AwaitableTokenizer(self.tokenizer)

    async def check_health(self) -> None:
        """Raises EngineError if no request can be answered any more."""
        if not (await self._started()).is_alive:
            raise EngineError("the engine has ended; make another one")

    async def reset_prefix_cache(self, **options: Any) -> Literal[True]:
        """Clear the prefix cache: later requests find nothing that was computed before."""
        refuse_unknown(options)
        await (await self._started()).reset_prefix_cache()
        return True

    def shutdown(self) -> None:
        """Free the model's memory, for good; streams end with an EngineError. From any thread."""
        self._is_closed = True
        if self._start is None:
            return
        if not self._start.done():
            call_on(self._start.get_loop(), partial(_end, self._start))
        else:
            _end(self._start)

    async def _started(self) -> AsyncEngine:
        """The engine, once it is loaded. Raises EngineError after `shutdown`."""
        self._check_open()
        if self._start is None:
            self._start = asyncio.create_task(AsyncEngine.start(self._config))
        if self._is_closed:  # meanwhile, by another thread, which may have seen no start
            self._start.cancel()
        check_loop(self._start.get_loop())
        await asyncio.wait([self._start])  # raises nothing if `shutdown` cancels it
        self._check_open()
        with names_as_given(self._settings, OPTION_SCOPES):
            return self._start.result()

    def _check_open(self) -> None:
        if self._is_closed:
            raise EngineError("this AsyncLLM was shut down; make another one")


def _end(start: asyncio.Task[AsyncEngine]) -> None:
    """Cancel a start, or close what it has started, maybe since its caller looked."""
    if not start.cancel() and not start.cancelled() and start.exception() is None:
        with ThreadPoolExecutor(1) as thread:  # it waits for the engine, and this may not
            thread.submit(asyncio.run, start.result().close()).result()


async def _until(
    aborted: asyncio.Event, items: AsyncGenerator[RequestOutput, None]
) -> AsyncGenerator[RequestOutput, None]:
    """The items up to an event, which closes them."""
    stop = asyncio.create_task(aborted.wait())
    step: asyncio.Task[RequestOutput | None] | None = None
    try:
        while not aborted.is_set():
            step = asyncio.create_task(anext(items, None))
            await asyncio.wait((step, stop), return_when=asyncio.FIRST_COMPLETED)
            if not step.done() or (item := step.result()) is None:
                return
            yield item
    finally:
        stop.cancel()
        if step is not None:
            step.cancel()
            await asyncio.wait([step])
        await items.aclose()
