"""AsyncLLM while its model is loaded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from quire import AsyncEngineArgs, AsyncLLM, SamplingParams
from quire.engine.frontend.async_engine import AsyncEngine
from quire.errors import EngineError

Call = Callable[[AsyncLLM], Coroutine[Any, Any, object]]


async def generate(llm: AsyncLLM) -> object:
    """All items of an answer."""
    return [item async for item in llm.generate("a", SamplingParams(), "one")]


@pytest.fixture(params=[generate, AsyncLLM.check_health, AsyncLLM.reset_prefix_cache])
def call(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Call:
    """What loads the model, which never ends."""

    async def load(_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(AsyncEngine, "start", load)
    found: Call = request.param
    return found


async def begin(call: Call) -> tuple[AsyncLLM, asyncio.Task[object]]:
    """Call it, up to where the model is being loaded."""
    llm = AsyncLLM.from_engine_args(AsyncEngineArgs(model="quire-tiny"))
    task = asyncio.create_task(call(llm))
    while llm._start is None:
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    return llm, task


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_shutdown_while_the_model_is_loaded_is_an_error_of_the_engine(
    call: Call, elsewhere: bool
) -> None:
    async def main() -> None:
        llm, task = await begin(call)
        if elsewhere:
            threading.Thread(target=llm.shutdown).start()
        else:
            llm.shutdown()
        with pytest.raises(EngineError, match="was shut down"):
            await asyncio.wait_for(task, 60)

    asyncio.run(main())


def test_a_model_that_was_loaded_as_the_shutdown_came_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From another thread, before the event loop has come to the end of the start."""

    class Engine:
        is_closed = False

        async def close(self) -> None:
            self.is_closed = True

    async def main() -> None:
        engine, loaded = Engine(), asyncio.get_running_loop().create_future()

        async def load(_: object) -> Engine:
            await loaded
            return engine

        monkeypatch.setattr(AsyncEngine, "start", load)
        llm, task = await begin(AsyncLLM.check_health)
        loaded.set_result(None)  # the start ends in the loop's next round
        thread = threading.Thread(target=llm.shutdown)
        thread.start()
        thread.join()
        with pytest.raises(EngineError, match="was shut down"):
            await task
        await asyncio.sleep(0)
        assert engine.is_closed

    asyncio.run(main())


def test_a_shutdown_that_has_seen_no_start_prevents_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """From another thread, between the check and the start."""
    loads = []

    async def load(_: object) -> None:
        loads.append(1)

    async def main() -> None:
        llm = AsyncLLM.from_engine_args(AsyncEngineArgs(model="quire-tiny"))

        def start(config: object) -> Coroutine[Any, Any, None]:
            thread = threading.Thread(target=llm.shutdown)
            thread.start()
            thread.join()
            return load(config)

        monkeypatch.setattr(AsyncEngine, "start", start)
        with pytest.raises(EngineError, match="was shut down"):
            await llm.check_health()
        assert not loads

    asyncio.run(main())


def test_a_cancelled_caller_is_cancelled_and_the_model_goes_on_loading(call: Call) -> None:
    async def main() -> None:
        llm, task = await begin(call)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert llm._start is not None
        assert not llm._start.done()
        llm.shutdown()

    asyncio.run(main())


def test_a_caller_cancelled_at_the_shutdown_is_cancelled(call: Call) -> None:
    async def main() -> None:
        llm, task = await begin(call)
        task.cancel()
        llm.shutdown()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_the_tokenizer_may_be_awaited() -> None:
    """As in most versions of vLLM, where it is a coroutine."""

    async def main() -> None:
        llm = AsyncLLM.from_engine_args(AsyncEngineArgs(model="quire-tiny"))
        tokenizer = llm.get_tokenizer()
        assert (await tokenizer) is tokenizer
        assert tokenizer.decode(tokenizer.encode("a list")) == "a list"

    asyncio.run(main())
