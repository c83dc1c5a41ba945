"""The engine as a server uses it: many streams on one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from quire.config import EngineConfig
from quire.core.pooling_params import PoolingParams
from quire.core.request_output import RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.engine.frontend.async_engine import AsyncEngine
from quire.engine.frontend.input_processor import PreparedRequest
from quire.engine.frontend.prompt_inputs import OnePrompt
from quire.engine.frontend.request_metrics import RequestMetrics
from quire.errors import CheckpointError, EngineError, InvalidRequestError


def run(model: Path, scenario: Callable[[AsyncEngine], Awaitable[None]]) -> None:
    async def main() -> None:
        config = EngineConfig.from_options(
            model=str(model), dtype="float32", threads=1, num_blocks=100
        )
        engine = await AsyncEngine.start(config)
        try:
            await scenario(engine)
        finally:
            await engine.close()

    asyncio.run(main())


def sampling(max_tokens: int = 20, **fields: object) -> SamplingParams:
    return SamplingParams(**({"seed": 1, "max_tokens": max_tokens, "ignore_eos": True} | fields))


async def collect(engine: AsyncEngine, prompt: list[int], params: SamplingParams) -> RequestOutput:
    whole: RequestOutput | None = None
    async for part in engine.generate(prompt, params):
        if whole is None:
            whole = part
        else:
            whole.append(part)
    assert whole is not None
    return whole


def test_streams_are_independent_and_complete(tiny_model: Path) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        prompts = [[5 + i] * (1 + i) for i in range(20)]
        alone = [await collect(engine, p, sampling(n=1 + len(p) % 3)) for p in prompts]
        together = await asyncio.gather(
            *(collect(engine, p, sampling(n=1 + len(p) % 3)) for p in prompts)
        )
        for one, other in zip(alone, together, strict=True):
            assert one.finished
            assert other.finished
            assert [o.token_ids for o in one.outputs] == [o.token_ids for o in other.outputs]
            assert [o.text for o in one.outputs] == [o.text for o in other.outputs]

    run(tiny_model, scenario)


def test_closing_a_stream_frees_its_blocks(tiny_model: Path) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        stream = engine.generate([5] * 40, sampling(max_tokens=1000))
        await anext(stream)
        await stream.aclose()
        other = await collect(engine, [7], sampling(max_tokens=30))
        assert other.finished
        stats = engine.stats
        assert stats.num_running == 0
        assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_blocks
        assert stats.num_generation_tokens < 200

    run(tiny_model, scenario)


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_ends_when_its_text_is_enough(tiny_model: Path, stream: bool) -> None:
    def three_parts() -> Callable[[str], bool]:
        parts: list[str] = []

        def is_over(text: str) -> bool:
            parts.append(text)
            return len(parts) == 3

        return is_over

    async def scenario(engine: AsyncEngine) -> None:
        sampling_params = sampling(max_tokens=200, n=2)
        ends = {}
        async for part in engine.generate(
            [5], sampling_params, stream=stream, stop_when=three_parts
        ):
            ends |= {o.index: o.finish_reason for o in part.outputs}
        assert ends == {0: "stop", 1: "stop"}
        await collect(engine, [7], sampling())
        assert engine.stats.num_running == 0
        assert engine.stats.num_generation_tokens < 200

    run(tiny_model, scenario)


def test_a_slow_reader_gets_everything_in_few_parts(tiny_model: Path) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        stream = engine.generate([5] * 4, sampling(max_tokens=60))
        first = await anext(stream)
        await collect(engine, [9], sampling(max_tokens=100))  # meanwhile the answer goes on
        parts = [part async for part in stream]
        assert len(parts) < 10
        for part in parts:
            first.append(part)
        assert len(first.outputs[0].token_ids) == 60
        assert first.finished

    run(tiny_model, scenario)


def test_prompts_in_the_types_of_llm(tiny_model: Path) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        (whole,) = (await engine.complete([5, 6], sampling())).outputs
        vector = (await engine.embed([5, 6], PoolingParams())).embedding
        maps: list[OnePrompt] = [{"prompt_token_ids": [5, 6]}, {"prompt_token_ids": (5, 6)}]
        for prompt in (*maps, (5, 6), np.array([5, 6]), [5, np.int64(6)]):
            assert (await engine.complete(prompt, sampling())).outputs == [whole]
            assert (await engine.embed(prompt, PoolingParams())).embedding == vector
        with pytest.raises(InvalidRequestError, match="prompt: must be text or a list of token"):
            await anext(engine.generate(None, sampling()))  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError, match=r"prompt\.images: not supported"):
            await anext(engine.generate({"prompt": "x", "images": []}, sampling()))

    run(tiny_model, scenario)


def test_bad_requests_raise_before_the_first_part(tiny_model: Path) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        with pytest.raises(InvalidRequestError):
            await anext(engine.generate([], sampling()))
        with pytest.raises(InvalidRequestError, match="priority"):
            await anext(engine.generate([5], sampling(), priority=3))
        assert (await collect(engine, [5], sampling())).finished

    run(tiny_model, scenario)


def test_a_missing_model_raises_from_start(tmp_path: Path) -> None:
    config = EngineConfig.from_options(model=str(tmp_path / "nowhere"))
    with pytest.raises(CheckpointError):
        asyncio.run(AsyncEngine.start(config))


def test_shutting_down_ends_open_streams_with_an_error(tiny_model: Path) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        stream = engine.generate([5] * 4, sampling(max_tokens=1500))
        await anext(stream)
        await engine.close()
        assert not engine.is_alive
        with pytest.raises(EngineError):
            async for _ in stream:
                pass

    run(tiny_model, scenario)


def test_every_request_is_counted_once_by_how_it_ended(tiny_model: Path) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        whole = [collect(engine, [5 + i], sampling(n=1 + i % 2)) for i in range(4)]
        cut = engine.generate([9, 9, 9], sampling(max_tokens=500))
        await anext(cut)
        await asyncio.gather(*whole)
        await cut.aclose()
        left = engine.generate([8, 8], sampling(max_tokens=500))
        await anext(left)
        await engine.close()
        with pytest.raises(EngineError):
            await anext(left)
        metrics, stats = RequestMetrics(), engine.stats
        metrics.add(engine.metrics.figures())
        assert metrics.finished == {"length": 6, "abort": 1, "error": 1}
        assert metrics.num_sent == sum(metrics.finished.values()) == metrics.e2e_latency.count
        assert metrics.time_to_first_token.count == 8
        assert metrics.queue_time.count == metrics.decode_time.count == 8
        answered = int(metrics.num_generation_tokens.sum)
        assert answered >= 6 * 20 + 2
        assert metrics.inter_token_latency.count == answered - 8
        assert stats.num_generation_tokens >= answered  # tokens of steps after the abort
        assert sum(stats.step_tokens.counts) == stats.num_steps

    run(tiny_model, scenario)


def test_a_view_of_the_engine_whether_it_works_or_not(tiny_model: Path) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        idle = await engine.view()
        assert idle is not None
        assert idle.block_states == bytes(100)
        stream = engine.generate([7] * 40, sampling(max_tokens=200))
        await anext(stream)
        views = await asyncio.gather(engine.view(), engine.view())  # who wait together share it
        assert views[0] is views[1] is not None
        assert sum(state > 0 for state in views[0].block_states) >= 3
        assert views[0].steps[0].num_prefill_tokens == 40
        await stream.aclose()

    run(tiny_model, scenario)


def test_a_request_that_cannot_be_followed_fails_alone(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests of one event loop turn are sent together; an error of one does not affect others."""

    async def scenario(engine: AsyncEngine) -> None:
        follow = engine._tracker._processor.add

        def fail_for_some(prepared: PreparedRequest, arrival: float) -> None:
            if len(prepared.prompt_token_ids) == 2:
                raise RuntimeError("cannot be followed")
            follow(prepared, arrival)

        monkeypatch.setattr(engine._tracker._processor, "add", fail_for_some)
        answers = await asyncio.gather(
            *(collect(engine, [5] * length, sampling(3)) for length in (1, 2, 3)),
            return_exceptions=True,
        )
        assert isinstance(answers[1], EngineError)
        assert all(len(answers[i].outputs[0].token_ids) == 3 for i in (0, 2))
        assert len((await collect(engine, [5], sampling(3))).outputs[0].token_ids) == 3

    run(tiny_model, scenario)


def test_another_event_loop_is_refused(tiny_model: Path) -> None:
    """No output would arrive there: a call would wait for ever."""
    config = EngineConfig.from_options(model=str(tiny_model), dtype="float32", num_blocks=100)
    engine = asyncio.run(AsyncEngine.start(config))
    calls = [
        lambda: collect(engine, [5], sampling(3)),
        lambda: engine.complete([5], sampling(3)),
        lambda: engine.embed([5], PoolingParams()),
        engine.reset_prefix_cache,
    ]
    for call in calls:
        with pytest.raises(EngineError, match=r"event loop .* is closed; make all calls on one"):
            asyncio.run(call())
    asyncio.run(engine.close())

    async def scenario(running: AsyncEngine) -> None:
        with pytest.raises(EngineError, match=r"event loop .* is another one; "):
            await asyncio.to_thread(asyncio.run, collect(running, [5], sampling(3)))

    run(tiny_model, scenario)
