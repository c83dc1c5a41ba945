"""What a caller has not read yet, and when it is woken."""

from __future__ import annotations

import asyncio

import pytest

from quire.core.request_output import CompletionOutput, RequestOutput, RequestTimes
from quire.engine.frontend.output_queue import OutputQueue
from quire.errors import EngineError


def part(text: str, *, finished: bool = False) -> RequestOutput:
    output = CompletionOutput(0, text, [len(text)])
    return RequestOutput("r", None, [1], [output], RequestTimes(0.0), finished=finished)


async def turns(
    *news: RequestOutput | EngineError, whole: bool = False
) -> tuple[list[bool], asyncio.Task[RequestOutput]]:
    """Whether the reader still waits after each piece of news, and the reader."""
    mailbox = OutputQueue(asyncio.get_running_loop(), whole=whole)
    reader = asyncio.create_task(mailbox.take())
    await asyncio.sleep(0)
    waits = []
    for item in news:
        mailbox.put(item)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waits.append(not reader.done())
    return waits, reader


def test_a_stream_is_told_each_part() -> None:
    waits, reader = asyncio.run(turns(part("a")))
    assert waits == [False]
    assert reader.result().outputs[0].text == "a"


def test_a_whole_answer_wakes_its_caller_once() -> None:
    news = part("a"), part("b"), part("c", finished=True)
    waits, reader = asyncio.run(turns(*news, whole=True))
    assert waits == [True, True, False]
    assert reader.result().outputs[0].text == "abc"


@pytest.mark.parametrize("whole", [False, True])
def test_a_failure_is_told_at_once(whole: bool) -> None:
    waits, reader = asyncio.run(turns(EngineError("dead"), whole=whole))
    assert waits == [False]
    with pytest.raises(EngineError):
        reader.result()


def test_what_came_before_anybody_read_is_joined() -> None:
    async def late() -> str:
        mailbox = OutputQueue(asyncio.get_running_loop())
        mailbox.put(part("a"))
        mailbox.put(part("b"))
        return (await mailbox.take()).outputs[0].text

    assert asyncio.run(late()) == "ab"
