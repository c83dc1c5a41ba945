"""What a caller has not read yet, and when it is woken."""

from __future__ import annotations

import asyncio

import pytest

from quire.core.output import CompletionOutput, RequestOutput, RequestTimes
from quire.engine.client import Mailbox
from quire.errors import EngineError


def part(text: str, *, finished: bool = False) -> RequestOutput:
    output = CompletionOutput(0, text, [len(text)])
    return RequestOutput("r", None, [1], [output], RequestTimes(0.0), finished=finished)


async def turns(mailbox: Mailbox, *news: RequestOutput | EngineError) -> list[bool]:
    """Whether the reader is still waiting after each piece of news."""
    reader = asyncio.create_task(mailbox.take())
    await asyncio.sleep(0)
    waits = []
    for item in news:
        mailbox.put(item)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waits.append(not reader.done())
    if not any(isinstance(item, EngineError) for item in news):
        assert (await reader).outputs[0].text == "".join(i.outputs[0].text for i in news)  # type: ignore[union-attr]
    else:
        with pytest.raises(EngineError):
            await reader
    return waits


def test_a_stream_is_told_each_part() -> None:
    assert asyncio.run(turns(Mailbox(), part("a"))) == [False]


def test_a_whole_answer_wakes_its_caller_once() -> None:
    news = part("a"), part("b"), part("c", finished=True)
    assert asyncio.run(turns(Mailbox(whole=True), *news)) == [True, True, False]


@pytest.mark.parametrize("whole", [False, True])
def test_a_failure_is_told_at_once(whole: bool) -> None:
    assert asyncio.run(turns(Mailbox(whole=whole), EngineError("dead"))) == [False]


def test_what_came_before_anybody_read_is_joined() -> None:
    async def late() -> str:
        mailbox = Mailbox()
        mailbox.put(part("a"))
        mailbox.put(part("b"))
        return (await mailbox.take()).outputs[0].text

    assert asyncio.run(late()) == "ab"
