"""Preparations that run in step: their order, their ends, and callers that leave."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from quire.errors import InvalidRequestError
from quire.fair_queue import FairExecutor
from quire.server.api.common.micro_batch import (
    SLICE_SECONDS,
    MicroBatch,
    Stages,
    run_in_slices,
    run_stages,
)


def preparation(name: str, stages: int, log: list[str]) -> Stages[str]:
    for stage in range(stages):
        log.append(f"{name}{stage}")
        yield
    if name == "x":
        raise InvalidRequestError("x: it is wrong; leave it out")
    return name.upper()


async def together(log: list[str], **stages: int) -> list[Any]:
    in_step = MicroBatch()
    work = (in_step.run(preparation(name, count, log)) for name, count in stages.items())
    return await asyncio.gather(*work, return_exceptions=True)


def test_a_stage_is_run_for_all_before_the_next() -> None:
    log: list[str] = []
    assert asyncio.run(together(log, a=3, b=1, c=2)) == ["A", "B", "C"]
    assert log == ["a0", "b0", "c0", "a1", "c1", "a2"]


def test_one_that_fails_fails_alone() -> None:
    log: list[str] = []
    a, x, b = asyncio.run(together(log, a=2, x=1, b=2))
    assert (a, b) == ("A", "B")
    assert isinstance(x, InvalidRequestError)
    assert log == ["a0", "x0", "b0", "a1", "b1"]


def test_each_turn_of_the_loop_is_prepared_at_its_end() -> None:
    async def scenario() -> None:
        in_step, log = MicroBatch(), list[str]()
        for name in ("a", "b"):
            assert await in_step.run(preparation(name, 1, log)) == name.upper()
        assert log == ["a0", "b0"]

    asyncio.run(scenario())
    asyncio.run(scenario())  # in another loop


def test_a_cancelled_caller_gets_no_result() -> None:
    async def scenario() -> list[Any]:
        in_step, log = MicroBatch(), list[str]()

        async def caller(name: str) -> str:
            return await in_step.run(preparation(name, 2, log))

        leaving = asyncio.create_task(caller("a"))
        staying = asyncio.create_task(caller("b"))
        await asyncio.sleep(0)
        leaving.cancel()
        return await asyncio.gather(leaving, staying, return_exceptions=True)

    left, stayed = asyncio.run(scenario())
    assert isinstance(left, asyncio.CancelledError)
    assert stayed == "B"


def test_alone_it_needs_no_loop() -> None:
    log: list[str] = []
    assert run_stages(preparation("a", 3, log)) == ("A",)
    assert log == ["a0", "a1", "a2"]
    with pytest.raises(InvalidRequestError):
        run_stages(preparation("x", 1, log))


def test_a_long_preparation_in_a_thread_lets_other_work_in() -> None:
    """One with many stages, such as a thousand texts, keeps others waiting for one time slice."""

    def stages(name: str, num: int, log: list[str]) -> Stages[str]:
        for _ in range(num):
            time.sleep(SLICE_SECONDS / 2)
            log.append(name)
            yield
        return name

    async def scenario() -> list[str]:
        threads, log = FairExecutor(1, "test"), list[str]()
        long = asyncio.ensure_future(run_in_slices(stages("a", 12, log), threads, "one"))
        await asyncio.sleep(SLICE_SECONDS / 4)
        assert await run_in_slices(stages("b", 1, log), threads, "one") == "b"  # even one's own
        assert await run_in_slices(stages("c", 1, log), threads, "two") == "c"
        assert await long == "a"
        threads.close()
        return log

    log = asyncio.run(scenario())
    assert log.count("a") == 12
    assert log.index("b") <= 3
    assert log.index("c") <= 6
