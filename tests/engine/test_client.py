"""The frontend's end of an engine, over a link without one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from quire.config import EngineConfig
from quire.core.messages import (
    AbortRequests,
    AddRequest,
    EngineMessage,
    EngineStats,
    RequestDelta,
    StepOutput,
)
from quire.core.request_output import RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.engine.frontend.async_engine import AsyncEngine
from quire.engine.frontend.input_processor import InputProcessor
from quire.engine.frontend.request_tracker import RequestTracker
from quire.engine.startup.null_engine import start_null_engine
from quire.errors import ContextLengthError, EngineError, InvalidRequestError, QuireError
from quire.hub import tokenizer_folder
from quire.tokenizer.tokenizer import Tokenizer

CONFIG = EngineConfig.from_options(load_format="null", num_blocks=100)
TOO_LARGE = 7  # of a prompt's length, for EagerLink
TOKENIZER = Tokenizer.from_folder(tokenizer_folder(CONFIG))


class EagerLink:
    """Brings the next step while an abort is being sent, as a socket does that is read then.

    sent: what was sent together, by turns of the event loop.
    """

    client = "front"
    is_alive, last_work, seconds_since_heartbeat = True, 0.0, 0.0

    def __init__(self, *steps: StepOutput) -> None:
        self._steps = list(steps)
        self.sent: list[list[EngineMessage]] = []

    def attach(self, listener: RequestTracker) -> None:
        self.listener = listener

    def send(self, messages: Sequence[EngineMessage]) -> dict[str, QuireError]:
        self.sent.append(list(messages))
        if self._steps and any(isinstance(message, AbortRequests) for message in messages):
            self.listener.on_step(self._steps.pop(0))
        return {
            message.request_id: InvalidRequestError("too large")
            for message in messages
            if isinstance(message, AddRequest) and len(message.prompt_token_ids) == TOO_LARGE
        }

    async def close(self) -> None:
        pass


def step(**token_ids: int) -> StepOutput:
    """A token for each of these requests, which are the engine's first and second, a and b."""
    names = {"a": "a-1/0", "b": "b-2/0"}
    deltas = [RequestDelta(request_id=names[n], token_ids=[i]) for n, i in token_ids.items()]
    return StepOutput(deltas=deltas, stats=EngineStats())


def test_a_step_that_arrives_during_delivery_is_delivered_after_it() -> None:
    """A stop string ends the first answer; its abort is sent while the step is delivered."""
    last, second, third = (TOKENIZER.encode(text)[0] for text in ("one", "two", "four"))
    stops = SamplingParams(max_tokens=9, stop=[TOKENIZER.token_text(last)])

    async def main() -> None:
        _, info = start_null_engine(CONFIG)
        link = EagerLink(step(b=third))
        engine = AsyncEngine(link, TOKENIZER, info, 0)
        streams = [
            engine.generate([5], stops, request_id="a"),
            engine.generate([5], SamplingParams(max_tokens=9), request_id="b"),
        ]
        readers = [asyncio.ensure_future(anext(stream)) for stream in streams]
        await asyncio.sleep(0.0)  # until they are sent
        await asyncio.sleep(0.0)
        link.listener.on_step(step(a=last, b=second))
        ended, other = [(await reader).outputs[0] for reader in readers]
        assert ended.finish_reason == "stop"
        assert other.token_ids == [second]
        assert (await anext(streams[1])).outputs[0].token_ids == [third]
        for stream in streams:
            await stream.aclose()
        await engine.close()

    asyncio.run(main())


def test_what_one_turn_submits_is_sent_together() -> None:
    """Requests with all answers, aborts and the rest; one that is too large fails alone."""

    async def main() -> None:
        _, info = start_null_engine(CONFIG)
        link = EagerLink()
        engine = AsyncEngine(link, TOKENIZER, info, 0)
        two = SamplingParams(max_tokens=9, n=2)
        running = [asyncio.ensure_future(engine.complete([5], two)) for _ in range(2)]
        large = asyncio.ensure_future(engine.complete([5] * TOO_LARGE, two))
        view = asyncio.ensure_future(engine.view())
        with pytest.raises(InvalidRequestError, match="too large"):
            await large
        kinds = [[type(message).__name__ for message in turn] for turn in link.sent]
        assert kinds == [["AddRequest"] * 6 + ["GetEngineView"], ["AbortRequests"]]
        for task in (*running, view):
            task.cancel()
        await asyncio.gather(*running, view, return_exceptions=True)
        await asyncio.sleep(0)
        kinds = [[type(message).__name__ for message in turn] for turn in link.sent[2:]]
        assert kinds == [["AbortRequests"] * 2]
        await engine.close()

    asyncio.run(main())


def test_a_request_that_cannot_be_tracked_fails_alone() -> None:
    """Its second answer cannot: nothing is left of the first, and none is sent."""

    async def main() -> None:
        _, info = start_null_engine(CONFIG)
        link = EagerLink()
        engine = AsyncEngine(link, TOKENIZER, info, 0)
        made = iter([lambda _: False])  # StopIteration for the second
        two = SamplingParams(max_tokens=9, n=2)
        other = asyncio.ensure_future(engine.complete([5], two))
        with pytest.raises(EngineError, match="could not be sent"):
            await engine.complete([5], two, stop_when=made.__next__)
        await asyncio.sleep(0)
        assert [len(turn) for turn in link.sent] == [2]
        link.listener.on_up(info)
        assert [message.request_id for message in link.sent[-1]] == ["front-2/0", "front-2/1"]
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
        await engine.close()
        finished = engine.metrics.finished
        assert finished == {"error": 2, "abort": 2}
        assert engine.metrics.num_sent == 4

    asyncio.run(main())


def test_the_failure_of_an_engine_keeps_nothing_of_its_requests() -> None:
    async def main() -> None:
        _, info = start_null_engine(CONFIG)
        link = EagerLink()
        engine = AsyncEngine(link, TOKENIZER, info, 0)
        running = [asyncio.ensure_future(engine.complete([5], SamplingParams())) for _ in range(2)]
        await asyncio.sleep(0)
        link.listener.on_failure(EngineError("the engine has stopped"))
        running.append(asyncio.ensure_future(engine.complete("a" * 9999, SamplingParams())))
        for task in running:
            with pytest.raises(EngineError, match="the engine has stopped"):
                await task
        failure = engine._tracker.failure
        assert failure is not None
        assert failure.__traceback__ is None
        await engine.close()

    asyncio.run(main())


def test_each_interrupted_request_has_an_error_of_its_own() -> None:
    """A shared one would keep the frames, and texts, of all that raise it."""

    async def main() -> None:
        _, info = start_null_engine(CONFIG)
        link = EagerLink()
        engine = AsyncEngine(link, TOKENIZER, info, 0)
        running = [asyncio.ensure_future(engine.complete([5], SamplingParams())) for _ in range(2)]
        await asyncio.sleep(0)
        engine._tracker._processor.process = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            link.listener.on_step(StepOutput(deltas=[], stats=EngineStats(), view=None))
        first, second = await asyncio.gather(*running, return_exceptions=True)
        assert str(first) == str(second) == "the program was interrupted; send the request again"
        assert first is not second
        await engine.close()

    def interrupted(_: object) -> Any:
        raise KeyboardInterrupt

    asyncio.run(main())


@pytest.mark.parametrize("will_return", [False, True])
def test_an_engine_that_has_ended_runs_nothing(will_return: bool) -> None:
    """A gauge of its last step would stay for as long as it is unloaded."""
    stats = EngineStats(
        epoch=3, num_steps=7, num_blocks=9, num_free_blocks=2, num_cached_blocks=4,
        num_shared_blocks=1, num_running=5, num_waiting=6,
    )  # fmt: skip
    ended = EngineStats(epoch=3, num_steps=7, num_blocks=9, num_free_blocks=9)

    async def main() -> None:
        _, info = start_null_engine(CONFIG)
        link = EagerLink()
        engine = AsyncEngine(link, TOKENIZER, info, 0)
        link.listener.on_step(StepOutput(deltas=[], stats=stats))
        assert engine.stats.num_used_blocks == 3
        if will_return:
            link.listener.on_down(lambda _: set())
        else:
            link.listener.on_failure(EngineError("unloaded"))
        assert engine.stats == ended
        await engine.close()

    asyncio.run(main())


def test_requests_are_checked_again_where_a_smaller_engine_replaces_theirs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What was running fails alone if it is too long now; what was just being prepared, too."""
    caplog.set_level("INFO", "quire")

    async def main() -> None:
        _, info = start_null_engine(CONFIG)
        smaller = replace(info, limits=replace(info.limits, max_model_len=16))
        link = EagerLink()
        engine = AsyncEngine(link, TOKENIZER, info, 0)
        params = SamplingParams(max_tokens=8)
        running = [asyncio.ensure_future(engine.complete([5] * n, params)) for n in (4, 12)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # the requests of a turn are sent at its end
        prepared = engine._inputs.prepare("late", [5] * 12, params)
        link.sent.clear()
        link.listener.on_down(lambda _: set())
        link.listener.on_up(smaller)
        assert "restarted: 2 unfinished answers continue" in caplog.text
        assert [[len(message.prompt_token_ids) for message in turn] for turn in link.sent] == [[4]]
        with pytest.raises(EngineError, match="too large to continue"):
            await running[1]
        with pytest.raises(ContextLengthError, match="maximum context length is 16 tokens"):
            engine._tracker.send(prepared, 0.0)
        assert not running[0].done()
        await engine.close()
        with pytest.raises(EngineError, match="shut down"):
            await running[0]
        caplog.clear()
        link.listener.on_up(info)  # as of a model that is loaded again on demand
        assert "restarted" not in caplog.text

    asyncio.run(main())


def test_long_texts_are_encoded_in_an_order_that_is_fair_among_callers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also of one caller: a text that is not so long goes first."""
    going, order = threading.Event(), list[str]()

    def prepare(_id: str, text: str, _params: SamplingParams, **_options: Any) -> None:
        order.append(text[0])
        assert going.wait(10)
        raise InvalidRequestError("it is enough")

    greedy = [letter * 8000 for letter in "abcdefgh"]
    others = {"x": "near", "y": "far"}

    async def main() -> None:
        _, info = start_null_engine(CONFIG)
        engine = AsyncEngine(EagerLink(), TOKENIZER, info, 0)
        monkeypatch.setattr(engine._inputs, "prepare", prepare)
        params = SamplingParams(max_tokens=1)

        def complete(text: str, caller: str) -> asyncio.Task[RequestOutput]:
            return asyncio.create_task(engine.complete(text, params, caller=caller))

        tasks = [complete(text, "near") for text in greedy]
        await asyncio.sleep(0)
        tasks += [complete(text * 5000, caller) for text, caller in others.items()]
        await asyncio.sleep(0)
        going.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        await engine.close()
        with pytest.raises(EngineError, match="shut down"):
            await complete("z" * 5000, "far")

    asyncio.run(main())
    assert sorted(order[:4]) == ["a", "b", "x", "y"]


def test_a_short_text_among_many_is_encoded_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = list[bool]()

    def prepare(*_: object, **options: object) -> None:
        assert options == {"stream": False}
        threads.append(threading.current_thread() is not threading.main_thread())
        raise InvalidRequestError("it is enough")

    async def main() -> None:
        _, info = start_null_engine(CONFIG)
        engine = AsyncEngine(EagerLink(), TOKENIZER, info, 0)
        monkeypatch.setattr(engine._inputs, "prepare", prepare)
        for in_thread in (False, True):
            with pytest.raises(InvalidRequestError):
                await engine.complete("a", SamplingParams(), in_thread=in_thread)
        await engine.close()

    asyncio.run(main())
    assert threads == [False, True]


def test_bad_words_of_many_prompts_are_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[object]()

    def bad_words_ids(words: Iterable[str]) -> list[list[int]]:
        calls.append([*words])
        return [[5]]

    monkeypatch.setattr(TOKENIZER, "bad_words_ids", bad_words_ids)
    _, info = start_null_engine(CONFIG)
    inputs = InputProcessor(TOKENIZER, info, 0)
    params = SamplingParams(bad_words=["a", "b"])
    for index in range(9):
        (message,) = inputs.prepare(str(index), [5], params).messages
        assert message.bad_words_ids == [[5]]
    assert calls == [["a", "b"]]
