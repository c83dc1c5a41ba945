"""How requests wait in a real engine: priorities, queue timeouts, latency targets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from quire.config import EngineConfig
from quire.core.sampling_params import SamplingParams
from quire.engine.frontend.async_engine import AsyncEngine
from quire.errors import QueueTimeoutError


def run(model: Path, scenario: Callable[[AsyncEngine], Awaitable[None]], **options: object) -> None:
    async def main() -> None:
        options.update(model=str(model), dtype="float32", threads=1, num_blocks=100)
        engine = await AsyncEngine.start(EngineConfig.from_options(**options))
        try:
            await scenario(engine)
        finally:
            await engine.close()

    asyncio.run(main())


def length(num_tokens: int) -> SamplingParams:
    return SamplingParams(seed=1, max_tokens=num_tokens, ignore_eos=True)


def test_waiting_requests_go_by_priority(tiny_model: Path) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        ended: list[int] = []

        async def ask(priority: int) -> None:
            async for _ in engine.generate([5], length(4), priority=priority):
                pass
            ended.append(priority)

        first = engine.generate([7], length(60))  # the only row is taken meanwhile
        await anext(first)
        waiting = [asyncio.create_task(ask(priority)) for priority in (3, -1, 2, 0)]
        async for _ in first:
            pass
        await asyncio.gather(*waiting)
        assert ended == [-1, 0, 2, 3]

    run(tiny_model, scenario, max_num_seqs=1, scheduling_policy="priority")


def test_nobody_waits_longer_than_asked(tiny_model: Path) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        first = engine.generate([7], length(900), queue_timeout=0.05)
        await anext(first)  # has begun, so its time in the queue is over
        with pytest.raises(QueueTimeoutError, match="longer than its timeout"):
            await anext(engine.generate([5], length(4), queue_timeout=0.05))
        assert (await anext(first)).outputs
        await first.aclose()
        async for part in engine.generate([5], length(4), queue_timeout=5.0):
            last = part
        assert last.finished

    run(tiny_model, scenario, max_num_seqs=1)


def test_answers_are_the_same_under_an_itl_target(tiny_model: Path) -> None:
    answers: list[list[list[int]]] = []

    async def scenario(engine: AsyncEngine) -> None:
        async def ask(prompt: list[int]) -> list[int]:
            parts = [part async for part in engine.generate(prompt, length(30))]
            return [token for part in parts for token in part.outputs[0].token_ids]

        prompts = [[5 + i] * (1 + 60 * i) for i in range(6)]
        answers.append(await asyncio.gather(*map(ask, prompts)))

    run(tiny_model, scenario)
    run(tiny_model, scenario, itl_target_ms=3.0)
    assert answers[0] == answers[1]
