"""LLMEngine and AsyncLLM, as scripts for vLLM use them, against the answers of LLM."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from quire import LLM, AsyncEngineArgs, AsyncLLM, EngineArgs, LLMEngine, SamplingParams
from quire.core.messages import AbortRequests
from quire.core.request_output import RequestOutput
from quire.core.sampling_params import RequestOutputKind
from quire.errors import EngineError, InvalidRequestError

ARGS = EngineArgs(model="quire-tiny", dtype="float32", max_model_len=256, tensor_parallel_size=1)
PROMPTS = ["A list is", "The key to", "def f("]
PARAMS = SamplingParams(temperature=0, max_tokens=12)


@pytest.fixture(scope="module")
def engine() -> Iterator[LLMEngine]:
    """One engine for all tests, each of which leaves it without requests."""
    engine = LLMEngine.from_engine_args(ARGS)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """The whole answers to PROMPTS."""
    with LLM("quire-tiny", dtype="float32", max_model_len=256) as llm:
        return [o.outputs[0].text for o in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]


def params(kind: RequestOutputKind) -> SamplingParams:
    """PARAMS with items of a kind."""
    return SamplingParams(temperature=0, max_tokens=12, output_kind=kind)


def run(engine: LLMEngine) -> dict[str, list[RequestOutput]]:
    """All items by request id."""
    found: dict[str, list[RequestOutput]] = {}
    while engine.has_unfinished_requests():
        for item in engine.step():
            found.setdefault(item.request_id, []).append(item)
    return found


def test_requests_that_come_one_by_one(engine: LLMEngine, texts: list[str]) -> None:
    waiting, found = list(PROMPTS), dict[str, str]()
    while waiting or engine.has_unfinished_requests():
        if waiting:
            engine.add_request(str(len(PROMPTS) - len(waiting)), waiting.pop(0), PARAMS)
        for item in engine.step():
            assert item.outputs[0].text.startswith(found.get(item.request_id, ""))
            found[item.request_id] = item.outputs[0].text
    assert found == dict(zip("012", texts, strict=True))
    assert engine.step() == []


def test_kinds_of_items(engine: LLMEngine, texts: list[str]) -> None:
    for kind in RequestOutputKind:
        engine.add_request(kind.name, {"prompt": PROMPTS[0]}, params(kind))
    found = run(engine)
    assert "".join(item.outputs[0].text for item in found["DELTA"]) == texts[0]
    assert [item.outputs[0].text for item in found["FINAL_ONLY"]] == [texts[0]]
    assert found["CUMULATIVE"][-1].outputs[0].text == texts[0]
    assert len(found["CUMULATIVE"]) == len(found["DELTA"]) > 1


def test_prompts_and_options_by_vllms_names(engine: LLMEngine, texts: list[str]) -> None:
    ids = engine.get_tokenizer().encode(PROMPTS[0])
    engine.add_request("ids", None, PARAMS, prompt_token_ids=ids, lora_request=None)
    long = [*engine.get_tokenizer().encode(PROMPTS[1]), *ids]
    engine.add_request(
        "cut", long, PARAMS, tokenization_kwargs={"truncate_prompt_tokens": len(ids)}
    )
    found = run(engine)
    assert {name: items[-1].outputs[0].text for name, items in found.items()} == {
        "ids": texts[0], "cut": texts[0],
    }  # fmt: skip
    with pytest.raises(InvalidRequestError, match=r"^lora_request 'x' is not supported: .*; merge"):
        engine.add_request("a", PROMPTS[0], PARAMS, lora_request="x")
    assert not engine.has_unfinished_requests()


def test_sleep_has_the_arguments_of_vllms(engine: LLMEngine, texts: list[str]) -> None:
    engine.add_request("a", PROMPTS[0], PARAMS)
    with pytest.raises(InvalidRequestError, match=r"^level: must be 1 or 2, not 3"):
        engine.sleep(level=3)
    assert engine.has_unfinished_requests(), "nothing was dropped"
    engine.sleep(level=1)
    assert engine.is_sleeping()
    assert not engine.has_unfinished_requests()
    engine.wake_up(tags=["weights", "kv_cache"])
    assert not engine.is_sleeping()
    engine.add_request("b", PROMPTS[0], PARAMS)
    assert run(engine)["b"][-1].outputs[0].text == texts[0]


def test_aborted_and_refused_requests_leave_others(engine: LLMEngine, texts: list[str]) -> None:
    for request_id, prompt in zip("ab", PROMPTS, strict=False):
        engine.add_request(request_id, prompt, PARAMS)
    with pytest.raises(InvalidRequestError, match=r"^request_id: 'a' runs already"):
        engine.add_request("a", "x", PARAMS)
    with pytest.raises(InvalidRequestError, match=r"maximum context length is 256"):
        engine.add_request("c", [1] * 300, PARAMS)
    engine.step()
    engine.abort_request(["a", "unknown"])
    assert engine.get_num_unfinished_requests() == 1
    found = run(engine)
    assert "a" not in found
    assert found["b"][-1].outputs[0].text == texts[1]
    assert engine.stats.num_running == 0


# ends with an error, as every token that may come is banned until min_tokens are there
NO_TOKEN = SamplingParams(
    allowed_token_ids=[5, 6], stop_token_ids=[5, 6], min_tokens=3, max_tokens=9
)


def test_no_item_follows_an_abort_or_an_error(engine: LLMEngine) -> None:
    """Items of a step that raised another request's error come later, but not of ended ones."""
    for end in ("abort", "sleep"):
        for request_id in ("goes on", "fails", "fails too"):
            fails = request_id.startswith("fails")
            engine.add_request(request_id, PROMPTS[0], NO_TOKEN if fails else PARAMS)
        with pytest.raises(InvalidRequestError, match="left no token to draw") as caught:
            run(engine)
        assert caught.value.param == "allowed_token_ids"
        assert engine.has_unfinished_requests()
        if end == "abort":
            engine.abort_request(["goes on", "fails too", "unknown"])
        else:
            engine.sleep()
        assert not engine.has_unfinished_requests()
        engine.wake_up()
        engine.add_request("goes on", PROMPTS[1], PARAMS)
        (items,) = run(engine).values()
        assert {item.prompt for item in items} == {PROMPTS[1]}


def test_an_id_may_be_used_again_at_once(engine: LLMEngine, texts: list[str]) -> None:
    """After an abort, and after a stop string, which ends an answer before the engine does."""
    stopping = SamplingParams(temperature=0, max_tokens=12, stop=[texts[0][2:4]])
    engine.add_request("a", PROMPTS[0], stopping)
    assert run(engine)["a"][-1].outputs[0].finish_reason == "stop"
    for _ in range(2):
        engine.add_request("a", PROMPTS[0], PARAMS)
        engine.step()
        engine.abort_request("a")
    engine.add_request("a", PROMPTS[0], PARAMS)
    assert run(engine)["a"][-1].outputs[0].text == texts[0]


@pytest.mark.usefixtures("raises_interrupts")
def test_ctrl_c_loses_nothing(engine: LLMEngine, texts: list[str], monkeypatch: Any) -> None:
    inner, steps = engine._take, 0

    def take(step: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == 3:
            os.kill(os.getpid(), signal.SIGINT)
        inner(step)

    monkeypatch.setattr(engine, "_take", take)
    engine.add_request("a", PROMPTS[0], params(RequestOutputKind.DELTA))
    text, interrupts = "", 0
    while engine.has_unfinished_requests():
        try:
            text += "".join(item.outputs[0].text for item in engine.step())
        except KeyboardInterrupt:
            interrupts += 1
    assert (text, interrupts) == (texts[0], 1)


def test_an_error_within_a_step_ends_all_and_breaks_nothing(
    engine: LLMEngine, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    engine.add_request("a", PROMPTS[0], PARAMS)
    with monkeypatch.context() as patch:
        patch.setattr(engine._outputs, "process", fail)
        with pytest.raises(MemoryError):
            engine.step()
    assert not engine.has_unfinished_requests()
    engine.add_request("a", PROMPTS[0], PARAMS)
    assert run(engine)["a"][-1].outputs[0].text == texts[0]


def test_an_error_within_another_call_ends_all_and_breaks_nothing(
    engine: LLMEngine, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert engine._engine is not None
    handle, twice = engine._engine._core.handle, SamplingParams(n=2)

    def fail_second(message: object) -> None:
        if getattr(message, "request_id", "").endswith("/1"):
            raise MemoryError
        handle(message)  # type: ignore[arg-type]

    def fail_abort(message: object) -> None:
        if isinstance(message, AbortRequests):
            raise MemoryError
        handle(message)  # type: ignore[arg-type]

    for fail, call in (
        (fail_second, lambda: engine.add_request("b", PROMPTS[1], twice)),
        (fail_abort, lambda: engine.abort_request("a")),
    ):
        engine.add_request("a", PROMPTS[0], PARAMS)
        with monkeypatch.context() as patch:
            patch.setattr(engine._engine._core, "handle", fail)
            with pytest.raises(MemoryError):
                call()
        assert not engine.has_unfinished_requests()
        engine.add_request("a", PROMPTS[0], PARAMS)
        assert run(engine)["a"][-1].outputs[0].text == texts[0]


def test_streams_at_a_time(texts: list[str]) -> None:
    async def last(llm: AsyncLLM, index: int) -> str:
        text = ""
        async for item in llm.generate(PROMPTS[index], PARAMS, str(index)):
            assert item.request_id == str(index)
            assert item.outputs[0].text.startswith(text)
            text = item.outputs[0].text
        return text

    async def main() -> None:
        llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**vars(ARGS)))
        assert await asyncio.gather(*(last(llm, index) for index in range(3))) == texts
        items = llm.generate(PROMPTS[0], SamplingParams(max_tokens=200, ignore_eos=True), "long")
        assert not (await anext(items)).finished
        await llm.abort(["long", "unknown"])
        assert [item async for item in items if item.finished] == []
        await llm.check_health()
        assert await last(llm, 1) == texts[1]
        left = llm.generate(PROMPTS[0], SamplingParams(max_tokens=200, ignore_eos=True), "left")
        await anext(left)
        llm.shutdown()
        with pytest.raises(EngineError, match="was shut down"):
            [item async for item in left]
        with pytest.raises(EngineError, match="was shut down; make another one"):
            await last(llm, 0)

    asyncio.run(main())


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_shutdown_ends_streams_that_run_and_that_wait(elsewhere: bool) -> None:
    async def main() -> None:
        asyncio.get_running_loop().set_debug(True)  # refuses calls from other threads
        llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**vars(ARGS) | {"max_num_seqs": 1}))
        long = SamplingParams(max_tokens=200, ignore_eos=True)
        runs, waits = (llm.generate(PROMPTS[0], long, name) for name in ("runs", "waits"))
        await anext(runs)
        waiting = asyncio.create_task(anext(waits))
        await asyncio.sleep(0.01)
        if elsewhere:
            await asyncio.to_thread(llm.shutdown)
        else:
            llm.shutdown()
        with pytest.raises(EngineError, match="was shut down"):
            await asyncio.wait_for(waiting, 60)
        with pytest.raises(EngineError, match="was shut down"):
            [item async for item in runs]

    asyncio.run(main())


def test_another_event_loop_is_refused(texts: list[str]) -> None:
    llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**vars(ARGS)))

    async def last() -> str:
        items = [item async for item in llm.generate(PROMPTS[0], PARAMS, "a")]
        return items[-1].outputs[0].text

    assert asyncio.run(last()) == texts[0]
    with pytest.raises(EngineError, match=r"event loop .* is closed; make all calls on one loop"):
        asyncio.run(last())
    llm.shutdown()
