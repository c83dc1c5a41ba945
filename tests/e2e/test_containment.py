"""Errors reach the request that caused them, and no other."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from quire import LLM, SamplingParams
from quire.config import EngineConfig
from quire.core.messages import AbortRequests
from quire.core.request_output import RequestOutput
from quire.engine.frontend.async_engine import AsyncEngine
from quire.errors import CheckpointError, ConfigError, EngineError, InvalidRequestError

FREE = SamplingParams(seed=1, max_tokens=30, ignore_eos=True)


def run(model: Path, scenario: Callable[[AsyncEngine], Awaitable[None]]) -> None:
    async def main() -> None:
        options = {"dtype": "float32", "threads": 1, "num_blocks": 100}
        engine = await AsyncEngine.start(EngineConfig.from_options(model=str(model), **options))
        try:
            await scenario(engine)
        finally:
            await engine.close()

    asyncio.run(main())


async def collect(engine: AsyncEngine, prompt: list[int]) -> list[RequestOutput]:
    return [part async for part in engine.generate(prompt, FREE)]


def test_an_answer_that_cannot_be_worded_costs_only_its_caller(tiny_model: Path) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        add = engine._tracker._processor.add

        def add_and_break(prepared, arrival: float) -> None:
            add(prepared, arrival)
            if prepared.prompt_token_ids == [13]:
                answer = engine._tracker._processor._answers[prepared.messages[0].request_id]
                answer.detokenizer = None  # type: ignore[assignment]

        engine._tracker._processor.add = add_and_break  # type: ignore[method-assign]
        sick, *well = await asyncio.gather(
            *(collect(engine, [token]) for token in (13, 14, 15)), return_exceptions=True
        )
        assert isinstance(sick, EngineError)
        assert all(isinstance(parts, list) and parts[-1].finished for parts in well)
        assert engine.is_alive

    run(tiny_model, scenario)


def test_a_loop_that_breaks_ends_every_stream(tiny_model: Path) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        stream = engine.generate([5] * 4, SamplingParams(max_tokens=1500, ignore_eos=True))
        await anext(stream)
        engine._link.send([AbortRequests(request_ids=None)])  # type: ignore[arg-type]
        with pytest.raises(EngineError, match="restart"):
            async for _ in stream:
                pass
        assert not engine.is_alive
        with pytest.raises(EngineError):
            await collect(engine, [5])

    run(tiny_model, scenario)


@pytest.mark.parametrize(
    ("prompt", "fields"),
    [
        ([20.5] * 40, {}),
        ([True, False], {}),
        (["a"], {}),
        ([None], {}),
        ([5], {"cache_salt": 7}),
        ([5], {"priority": "high"}),
    ],
)
def test_wrong_types_are_refused_and_harm_nobody(tiny_model: Path, prompt, fields) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        with pytest.raises(InvalidRequestError):
            await anext(engine.generate(prompt, FREE, **fields))
        assert (await collect(engine, [5]))[-1].finished

    run(tiny_model, scenario)


def test_a_missing_tokenizer_leaves_no_engine_behind(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        asyncio.run(AsyncEngine.start(EngineConfig.from_options(model=str(folder), threads=1)))
    for thread in threading.enumerate():
        if thread.name == "quire-engine":
            thread.join(timeout=20)
            assert not thread.is_alive()


def test_a_small_kv_cache_limits_the_context(tiny_model: Path) -> None:
    llm = LLM(str(tiny_model), dtype="float32", threads=1, num_blocks=10)
    assert llm.info.limits.max_model_len == 160
    (output,) = llm.generate(
        [[5] * 20], SamplingParams(max_tokens=None, ignore_eos=True), use_tqdm=False
    )
    assert len(output.outputs[0].token_ids) == 140
    with pytest.raises(ConfigError, match="160"):
        LLM(str(tiny_model), num_blocks=10, max_model_len=500)


def test_memory_that_is_not_there_is_a_setting_to_change(tiny_model: Path) -> None:
    with pytest.raises(ConfigError, match="num_blocks"):
        LLM(str(tiny_model), num_blocks=10**12)


def test_end_tokens_beyond_the_vocabulary_are_ignored(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 5000]}))
    llm = LLM(str(folder), dtype="float32", threads=1, num_blocks=20)
    sampling = SamplingParams(min_tokens=5, max_tokens=8, seed=1)
    assert len(llm.generate([[5]], sampling, use_tqdm=False)[0].outputs[0].token_ids) >= 5
