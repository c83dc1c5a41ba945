"""Fair slots: callers get equal time whatever their work costs, also when some give up."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire import fair_queue
from quire.background import poll_intervals
from quire.errors import DrainingError
from quire.fair_queue import FairExecutor, FairSlots


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(fair_queue, "time", made)
    return made


@asynccontextmanager
async def turn(slots: FairSlots, caller: str) -> AsyncIterator[None]:
    await slots.enter(caller)
    begin = fair_queue.time.monotonic()
    try:
        yield
    finally:
        slots.leave(caller, fair_queue.time.monotonic() - begin)


def run_all(clock: Clock, slots: FairSlots, work: list[tuple[str, float]]) -> list[str]:
    """The callers in the order in which their work began; all ask at once."""
    began: list[str] = []

    async def one(caller: str, seconds: float) -> None:
        async with turn(slots, caller):
            began.append(caller)
            await asyncio.sleep(0)
            clock.now += seconds

    async def main() -> None:
        await asyncio.gather(*(one(*item) for item in work))

    asyncio.run(main())
    return began


def test_a_caller_with_costly_work_delays_another_by_one_piece(clock: Clock) -> None:
    began = run_all(clock, FairSlots(1), [("a", 2.0)] * 20 + [("b", 0.01)] * 5)
    assert began[:7] == ["a", "b", "b", "b", "b", "b", "a"]


def test_equal_callers_alternate(clock: Clock) -> None:
    began = run_all(clock, FairSlots(1), [("a", 1.0)] * 4 + [("b", 1.0)] * 4 + [("c", 1.0)] * 4)
    assert [sorted(began[i : i + 3]) for i in range(0, 12, 3)] == [["a", "b", "c"]] * 4


def test_one_caller_has_no_more_slots_than_it_may() -> None:
    slots = FairSlots(3, most_each=2)

    async def main() -> int:
        most = running = 0

        async def one() -> None:
            nonlocal most, running
            async with turn(slots, "a"):
                running += 1
                most = max(most, running)
                await asyncio.sleep(0)
                running -= 1

        await asyncio.gather(*(one() for _ in range(9)))
        return most

    assert asyncio.run(main()) == 2


def test_who_was_away_has_saved_nothing(clock: Clock) -> None:
    slots = FairSlots(1)
    run_all(clock, slots, [("a", 1.0)] * 50)
    began = run_all(clock, slots, [("b", 1.0)] * 10 + [("a", 1.0)] * 10)
    assert abs(began[:10].count("a") - 5) <= 1


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), num_slots=st.integers(1, 4))
def test_no_turn_is_lost_when_callers_give_up(seed: int, num_slots: int) -> None:
    rng, slots = random.Random(seed), FairSlots(num_slots)
    running = 0

    async def one(caller: str) -> None:
        nonlocal running
        async with turn(slots, caller):
            running += 1
            assert running <= num_slots
            try:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            finally:
                running -= 1

    async def main() -> None:
        tasks = [asyncio.create_task(one(rng.choice("abc"))) for _ in range(30)]
        for task in rng.sample(tasks, 15):
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with asyncio.timeout(1.0):
            await asyncio.gather(*(one(caller) for caller in "abcd"))

    asyncio.run(main())
    assert (running, slots._num_free) == (0, num_slots)
    assert (slots._waiting, slots._num_running) == ({}, {})


def test_work_that_cannot_begin_frees_its_slot() -> None:
    executor = FairExecutor(1, "test")

    async def main() -> None:
        executor.close()
        for _ in range(3):
            with pytest.raises(DrainingError, match="shutting down"):
                await executor.run("a", list, max_wait=1.0)

    asyncio.run(main())


def test_closing_ends_what_waits_and_finishes_what_runs() -> None:
    threads, go = FairExecutor(1, "test"), threading.Event()

    async def main() -> None:
        tasks = [asyncio.create_task(threads.run(caller, go.wait)) for caller in "aabc"]
        for _ in range(3):
            await asyncio.sleep(0)
        threads.close()
        go.set()
        async with asyncio.timeout(5.0):
            first, *others = await asyncio.gather(*tasks, return_exceptions=True)
        assert first is True
        assert [type(other) for other in others] == [DrainingError] * 3

    asyncio.run(main())


def test_quicker_work_goes_first_among_equals() -> None:
    slots = FairSlots(1)
    began: list[str] = []

    async def one(caller: str, expected: float) -> None:
        await slots.enter(caller, expected)
        began.append(caller)
        await asyncio.sleep(0)
        slots.leave(caller, 1.0)

    async def main() -> None:
        work = {"a": 0.0, "b": 2.0, "c": 0.5, "d": 0.1}
        await asyncio.gather(*(one(*item) for item in work.items()))

    asyncio.run(main())
    assert began == ["a", "d", "c", "b"]


def order_of_one_caller(clock: Clock, expected: list[float], step: float = 0.0) -> list[int]:
    """Indices of one caller's work in the order in which it began; `step` seconds lie between."""
    slots, began = FairSlots(1), list[int]()

    async def one(index: int) -> None:
        await slots.enter("a", expected[index])
        began.append(index)
        slots.leave("a", 0.1)

    async def main() -> None:
        await slots.enter("a")
        tasks = []
        for index in range(len(expected)):
            tasks.append(asyncio.create_task(one(index)))
            await asyncio.sleep(0)
            clock.now += step
        slots.leave("a", 0.1)
        await asyncio.gather(*tasks)

    asyncio.run(main())
    return began


def test_a_callers_own_quick_work_goes_before_its_costly_work(clock: Clock) -> None:
    assert order_of_one_caller(clock, [2.0, 0.5, 2.0, 0.01, 0.01]) == [3, 4, 1, 0, 2]


def test_costly_work_waits_for_quicker_work_within_bounds(clock: Clock) -> None:
    began = order_of_one_caller(clock, [2.0] + 20 * [0.01], step=1.0)
    assert began.index(0) == pytest.approx(2.0 * fair_queue.PATIENCE, abs=1)


def test_memory_of_callers_is_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_queue, "MAX_CALLERS", 50)
    slots = FairSlots(1)
    run_all(clock, slots, [(str(i), 0.1) for i in range(3 * fair_queue.MAX_CALLERS)])
    assert len(slots._used) <= fair_queue.MAX_CALLERS + 1


def test_work_of_a_caller_that_has_left_keeps_its_slot_until_it_ends() -> None:
    threads, go = FairExecutor(1, "test"), threading.Event()

    async def main() -> None:
        left = asyncio.create_task(threads.run("a", go.wait))
        await asyncio.sleep(0.05)
        left.cancel()
        with pytest.raises(TimeoutError):
            await threads.run("b", bool, max_wait=0.05)
        go.set()
        assert await threads.run("b", lambda: 5, max_wait=5.0) == 5
        with pytest.raises(ZeroDivisionError):
            await threads.run("b", lambda: 1 // 0)

    asyncio.run(main())
    threads.close()


def test_failed_work_leaves_no_cycles_behind() -> None:
    threads, bodies = FairExecutor(1, "test"), []

    class Body:
        pass

    def fail() -> None:
        body = Body()
        bodies.append(weakref.ref(body))
        raise ValueError

    async def main() -> int:
        for _ in range(9):
            with suppress(ValueError):
                await threads.run("a", fail)
            await asyncio.sleep(0.001)
        return sum(found() is not None for found in bodies)

    gc.disable()
    try:
        assert asyncio.run(main()) <= 1  # the last one may be in a frame that is still there
    finally:
        gc.enable()
        threads.close()


def test_work_learns_that_its_caller_has_gone() -> None:
    """The slot of a caller that left in the middle is free as soon as its work looks."""
    executor = FairExecutor(1, "test")
    started = threading.Event()

    def work() -> None:
        started.set()
        for _ in poll_intervals(30.0):
            threading.Event().wait(0.001)

    async def main() -> None:
        async with asyncio.timeout(10.0):
            leaver = asyncio.create_task(executor.run("a", work))
            await asyncio.to_thread(started.wait, 10.0)
            leaver.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaver
            assert await executor.run("b", lambda: 5) == 5

    asyncio.run(main())
    executor.close()
