"""What a caller has not read yet, and when it is woken."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import suppress

import pytest

from quire.core.request_output import CompletionOutput, RequestOutput, RequestTimes
from quire.engine.frontend.output_queue import OutputQueue
from quire.errors import EngineError


def part(text: str, *, finished: bool = False) -> RequestOutput:
    output = CompletionOutput(0, text, [len(text)])
    return RequestOutput("r", None, [1], [output], RequestTimes(0.0), finished=finished)


async def read_all(
    *outputs: RequestOutput | EngineError, final_only: bool = False
) -> tuple[list[bool], asyncio.Task[RequestOutput]]:
    """Whether the reader still waits after each output, and the reader."""
    queue = OutputQueue(asyncio.get_running_loop(), final_only=final_only)
    reader = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    waits = []
    for item in outputs:
        queue.put(item)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waits.append(not reader.done())
    return waits, reader


def test_a_stream_gets_each_part() -> None:
    waits, reader = asyncio.run(read_all(part("a")))
    assert waits == [False]
    assert reader.result().outputs[0].text == "a"


def test_a_whole_answer_wakes_its_caller_once() -> None:
    outputs = part("a"), part("b"), part("c", finished=True)
    waits, reader = asyncio.run(read_all(*outputs, final_only=True))
    assert waits == [True, True, False]
    assert reader.result().outputs[0].text == "abc"


@pytest.mark.parametrize("final_only", [False, True])
def test_a_failure_is_delivered_at_once(final_only: bool) -> None:
    waits, reader = asyncio.run(read_all(EngineError("dead"), final_only=final_only))
    assert waits == [False]
    with pytest.raises(EngineError):
        reader.result()


def test_what_came_before_anybody_read_is_joined() -> None:
    async def late() -> str:
        queue = OutputQueue(asyncio.get_running_loop())
        queue.put(part("a"))
        queue.put(part("b"))
        return (await queue.take()).outputs[0].text

    assert asyncio.run(late()) == "ab"


@pytest.mark.parametrize("final_only", [False, True])
def test_a_failure_after_the_end_takes_nothing_back(final_only: bool) -> None:
    async def late() -> str:
        queue = OutputQueue(asyncio.get_running_loop(), final_only=final_only)
        queue.put(part("a", finished=True))
        queue.put(EngineError("dead"))
        return (await queue.take()).outputs[0].text

    assert asyncio.run(late()) == "a"


def test_a_failed_request_leaves_nothing_of_its_caller_behind() -> None:
    """The caller's frames hold its prompt, and the traceback of its error holds them."""

    class Prompt:
        pass

    async def call() -> weakref.ref[Prompt]:
        prompt, queue = Prompt(), OutputQueue(asyncio.get_running_loop())
        queue.put(EngineError("it failed"))
        with suppress(EngineError):
            await queue.take()
        return weakref.ref(prompt)

    gc.disable()
    try:
        assert asyncio.run(call())() is None
    finally:
        gc.enable()
