"""Ctrl-C, errors and cancellation at any moment of a step leave an engine that works as a new one.

Signals are real ones, sent at random moments to processes of their own. The sweeps raise at each
line of the engine instead, which reaches what a signal hits once in a million times.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import linecache
import queue
import random
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from child_process import run_to_end

import quire
from quire import LLM, SamplingParams
from quire.config import EngineConfig
from quire.core.messages import EngineStats
from quire.engine.frontend.async_engine import AsyncEngine
from quire.engine.frontend.llm_engine import LLMEngine
from quire.errors import EngineError
from quire.tokenizer.encoding_guard import MAX_THREADS

OPTIONS: dict[str, Any] = {"dtype": "float32", "threads": 1, "num_blocks": 100}
GREEDY = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
MIXED = [
    GREEDY,
    SamplingParams(n=2, seed=1, max_tokens=4, stop=["zz"], logprobs=2, repetition_penalty=1.1),
    SamplingParams(temperature=0.0, max_tokens=3, prompt_logprobs=1, logit_bias={5: 1.0}),
]
PROMPTS = [[5 + i % 7 for i in range(40)], [5 + i % 7 for i in range(40)], [9, 8, 7]]
FOLDERS = tuple(
    f"{Path(quire.__file__).parent}/{folder}/"
    for folder in ("engine/core", "engine/frontend", "scheduler", "kvcache", "sampling")
)
# where prompts and grammars are prepared: before a step
PREPARING = (
    *(f"{Path(quire.__file__).parent}/{folder}/" for folder in ("grammar", "tokenizer")),
    *(
        f"{FOLDERS[1]}{name}"
        for name in ("loaded_model", "offline_engine", "input_processor", "llm_engine")
    ),
    *(str(module.__file__) for module in (queue, threading)),
)

PROGRAM = """
import asyncio, os, random, signal, sys, threading, time
from quire import LLM, SamplingParams

model, seed, way = sys.argv[1], int(sys.argv[2]), sys.argv[3]
number, error = signal.SIGINT, KeyboardInterrupt
if way == "timeout":
    number, error = signal.SIGALRM, TimeoutError

    def on_alarm(*_):
        raise TimeoutError

    signal.signal(number, on_alarm)
llm = LLM(model, dtype="float32", threads=1, num_blocks=100)
params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
prompts = [[5 + (3 * i + j) % 40 for j in range(30)] for i in range(6)]

def tokens(outputs):
    return [output.outputs[0].token_ids for output in outputs]

def answers():
    return tokens(llm.generate(prompts, params, use_tqdm=seed % 2 == 0))

def attempt_with_grammars():
    schemas = [{"const": rng.random()} for _ in prompts]  # which are compiled anew
    found = llm.generate(
        ["hello " * 30] * len(prompts),
        [SamplingParams(max_tokens=3, structured_outputs={"json": each}) for each in schemas],
    )
    assert len(found) == len(prompts)

rng = random.Random(seed)
llm._inputs.grammar_checker._wait_seconds = 0.1
llm.tokenizer._encoder._quick_chars = 0  # each text is encoded in a thread
attempt_with_grammars()
expected, begin = answers(), time.monotonic()
(attempt_with_grammars if way == "grammars" else answers)()
seconds = time.monotonic() - begin

def send(delays):
    go.wait()
    for delay in delays:
        time.sleep(delay)
        os.kill(os.getpid(), number)

def catching(work, levels=4):
    # each level catches one signal, also one that comes while another is caught
    if not levels:
        return work()
    try:
        catching(work, levels - 1)
    except error:
        counts.append(1)

def settle():
    sender.join()
    time.sleep(0.01)  # a busy machine delivers a signal late

async def in_loop():
    await asyncio.sleep(0)
    return answers()

def attempt():
    go.set()
    if way in ("script", "timeout"):
        answers()
    elif way == "grammars":
        attempt_with_grammars()
    else:
        asyncio.run(in_loop())

def attempt_and_settle():
    catching(attempt)
    catching(settle)

def settle_for_sure():
    while sender.is_alive() or signal.sigpending():
        catching(settle)
    time.sleep(0.01)  # a busy machine delivers a signal late

interrupts = 0
for round in range(25):
    delays = [rng.uniform(0, seconds)] + [rng.uniform(0, seconds / 50)] * rng.randrange(3)
    counts, go = [], threading.Event()
    sender = threading.Thread(target=send, args=(delays,))
    sender.start()
    catching(attempt_and_settle)
    catching(settle_for_sure)
    catching(settle_for_sure)
    interrupts += bool(counts)
    stats = llm.stats
    free = stats.num_free_blocks + stats.num_cached_blocks
    assert (stats.num_running, stats.num_waiting, free) == (0, 0, stats.num_blocks), stats
    assert answers() == expected, round
    attempt_with_grammars()
    batch = llm._awake()._core._executor._runner._running.batch
    assert len(batch._free_rows) >= 250
print(interrupts)
"""


@pytest.mark.parametrize("mode", ["script", "event loop", "grammars", "timeout"])
@pytest.mark.parametrize("seed", [1, 2])
def test_signals_at_random_moments(tiny_model: Path, seed: int, mode: str) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tiny_model), str(seed), mode]
    done = run_to_end(command)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[-1]) > 5


class Raiser:
    """Raises an error at one line event of the engine, counted from the start of a run.

    lines: those of all events, in order, if `at` is None. files: what their names begin with. The
    end of a `with` is none of them: no signal is handled between its body and its `__exit__`, where
    a trace function could raise.
    """

    def __init__(
        self,
        at: int | None,
        error: type[BaseException],
        files: tuple[str, ...] = FOLDERS,
    ) -> None:
        self.at, self.error, self.files = at, error, files
        self.lines: list[tuple[str, int]] = []
        self._inside: set[tuple[FrameType, int]] = set()  # the `with` lines that were entered

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(self.files):
            return None
        if event == "line" and not self._leaves_with(frame):
            self.lines.append((name, frame.f_lineno))
            if self.at is not None and len(self.lines) == self.at + 1:
                sys.settrace(None)
                self.act()
        return self

    def act(self) -> None:
        """What happens at the line."""
        raise self.error

    def _leaves_with(self, frame: FrameType) -> bool:
        key = (frame, frame.f_lineno)
        source = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if not source.lstrip().startswith("with "):
            return False
        leaves = key in self._inside
        (self._inside.discard if leaves else self._inside.add)(key)
        return leaves

    def run(self, work: Callable[[], object]) -> None:
        sys.settrace(self)
        try:
            work()
        finally:
            sys.settrace(None)
            self._inside.clear()  # its frames


class Interrupter(Raiser):
    """Sends a signal at a line instead: what handles it decides where it raises."""

    def act(self) -> None:
        """What happens at the line."""
        signal.raise_signal(signal.SIGINT)


def moments(lines: list[tuple[str, int]]) -> list[int]:
    """An event of each line, from the middle of those that it has."""
    events: dict[tuple[str, int], list[int]] = {}
    for index, line in enumerate(lines):
        events.setdefault(line, []).append(index)
    return sorted(each[len(each) // 2] for each in events.values())


def texts(llm: LLM) -> list[list[list[int]]]:
    found = llm.generate(PROMPTS, MIXED, use_tqdm=False)
    return [[answer.token_ids for answer in output.outputs] for output in found]


def assert_nothing_is_left(stats: EngineStats) -> None:
    free = stats.num_free_blocks + stats.num_cached_blocks
    assert (stats.num_running, stats.num_waiting, free) == (0, 0, stats.num_blocks)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_error_at_any_line_of_a_run(tiny_model: Path, error: type[BaseException]) -> None:
    sweep(tiny_model, error, FOLDERS, every=2 if error is KeyboardInterrupt else 5)


def sweep(model: Path, error: type[BaseException], files: tuple[str, ...], every: int = 1) -> None:
    """Raise an error at every so many lines of some files; answers stay those of a new engine."""
    llm = LLM(str(model), max_num_seqs=4, max_num_batched_tokens=32, **OPTIONS)
    expected = texts(llm)
    count = Raiser(None, error, files)
    count.run(lambda: texts(llm))
    points = moments(count.lines)[::every]
    assert len(points) > 60
    last: list[tuple[str, int]] = []
    for point in points:
        raiser = Raiser(point, error, files)
        with contextlib.suppress(error, EngineError):
            raiser.run(lambda: texts(llm))
        assert_nothing_is_left(llm.stats)
        last.append(raiser.lines[-1])
        if len(last) % 4 == 0:  # what one of them damages, stays so
            assert texts(llm) == expected, last[-4:]
    assert texts(llm) == expected, last[-4:]
    executor: Any = llm._awake()._core._executor
    batch = getattr(executor, "_runner", executor)._running.batch
    llm.generate([5], SamplingParams(max_tokens=1), use_tqdm=False)
    assert len(batch._free_rows) >= 3
    llm._awake()._core._scheduler._kv.pool.check()


@pytest.mark.usefixtures("raises_interrupts")
@pytest.mark.parametrize("method", ["generate", "embed", "add_request"])
def test_a_signal_at_any_line_before_a_step(tiny_model: Path, method: str) -> None:
    """Nothing that calls share is lost: a validator, a thread for the tokenizer, a lock."""
    options = EngineConfig.from_options(model=str(tiny_model), **OPTIONS)
    llm = LLMEngine(options) if method == "add_request" else LLM(str(tiny_model), **OPTIONS)
    inputs = llm._inputs
    inputs.grammar_checker._wait_seconds = 0.1
    encoder = inputs._tokenizer._encoder
    encoder._quick_chars = 0  # each text is encoded in a thread
    numbers = itertools.count()

    def work() -> None:
        schema = {"const": next(numbers)}  # one that is compiled anew
        params = SamplingParams(max_tokens=2, structured_outputs={"json": schema})
        if isinstance(llm, LLMEngine):
            llm.add_request(str(next(numbers)), "hello " * 50, params)
            llm.abort_request(str(llm._num_requests))
        elif method == "generate":
            llm.generate(["hello " * 50], params, use_tqdm=False)
        else:
            llm.embed(["hello " * 50], use_tqdm=False)

    work()
    count = Interrupter(None, KeyboardInterrupt, PREPARING)
    count.run(work)
    points = moments(count.lines)
    num_interrupts = 0
    for point in points:  # threads wait more or less often, so a run may have fewer lines
        try:
            Interrupter(point, KeyboardInterrupt, PREPARING).run(work)
        except KeyboardInterrupt:
            num_interrupts += 1
        work()
        assert inputs.grammar_checker._free.qsize() == 1
        assert encoder._guard._threads._value == MAX_THREADS
    assert num_interrupts > 100


def test_cancelled_tasks_leave_nothing(tiny_model: Path) -> None:
    async def scenario() -> None:
        engine = await AsyncEngine.start(
            EngineConfig.from_options(model=str(tiny_model), **OPTIONS)
        )
        rng = random.Random(5)

        async def answer() -> list[int]:
            return (await engine.complete(PROMPTS[0], GREEDY)).outputs[0].token_ids

        async def stream() -> None:
            async for _ in engine.generate(PROMPTS[1], GREEDY):
                pass

        expected = await answer()
        for _ in range(60):
            tasks = [asyncio.create_task(work()) for work in (answer, stream, answer)]
            await asyncio.sleep(rng.uniform(0, 0.01))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert await answer() == expected
        assert_nothing_is_left(engine.stats)
        assert not engine._tracker._queues
        assert not engine._tracker._processor._answers
        await engine.close()

    asyncio.run(scenario())


def test_ctrl_c_while_outputs_are_delivered_ends_streams_and_not_the_engine(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a notebook the event loop continues after a KeyboardInterrupt was raised out of it."""
    loop = asyncio.new_event_loop()
    config = EngineConfig.from_options(model=str(tiny_model), **OPTIONS)
    engine = loop.run_until_complete(AsyncEngine.start(config))
    process = engine._tracker._processor.process

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine._tracker._processor, "process", interrupt)
    task = loop.create_task(engine.complete(PROMPTS[0], GREEDY))
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(task)
    monkeypatch.setattr(engine._tracker._processor, "process", process)
    with pytest.raises(EngineError, match="interrupted; send the request again"):
        loop.run_until_complete(task)
    output = loop.run_until_complete(engine.complete(PROMPTS[0], GREEDY))
    assert len(output.outputs[0].token_ids) == 5
    assert_nothing_is_left(engine.stats)
    loop.run_until_complete(engine.close())
    loop.close()
