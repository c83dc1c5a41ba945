"""Invalid frames in both directions are dropped and counted; the engine goes on."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quire.config import EngineConfig
from quire.core.messages import (
    AbortRequests,
    AddRequest,
    EngineStats,
    EngineView,
    GetEngineView,
    RequestDelta,
    RequestTiming,
    ResetPrefixCache,
    StepOutput,
    StepSummary,
    TokenLogprobs,
)
from quire.core.sampling_params import SamplingParams
from quire.engine.frontend.async_engine import AsyncEngine
from quire.engine.processes.engine_process import EngineProcess
from quire.engine.processes.ipc import EngineSocket
from quire.engine.processes.process_link import ProcessLink
from quire.engine.processes.status_page import StatusPage
from quire.engine.startup.null_engine import start_null_engine
from quire.errors import QuireError
from quire.hub import tokenizer_folder
from quire.shared_memory import clear_page, create_shared_memory
from quire.tokenizer.tokenizer import Tokenizer

CONFIG = EngineConfig.from_options(load_format="null", num_blocks=500, max_model_len=64)
DEPTH = 100_000
REQUEST = AddRequest(
    request_id="a",
    prompt_token_ids=[5, 6, 7],
    sampling=SamplingParams(max_tokens=4, logprobs=2, prompt_logprobs=1, bad_words=["x"]),
    eos_token_ids=[2],
    bad_words_ids=[[3, 4]],
    output_token_ids=[9],
    queue_timeout=5.0,
)
LOGPROBS = TokenLogprobs([7, 8], [-0.5, -1.0], 1)
STEP = StepOutput(
    deltas=[
        RequestDelta(
            request_id="a",
            token_ids=[7],
            logprobs=[LOGPROBS],
            prompt_logprobs=[LOGPROBS],
            finish_reason="length",
            timing=RequestTiming(1.0, 2.0, 3.0, 4.0),
        ),
        RequestDelta(request_id="b", error="no", embedding=b"\0\0\0\0"),
    ],
    stats=EngineStats(num_running=1, prefix_cache_misses={"never": 3}),
    view=EngineView(time=1.0, block_states=b"\1\2", steps=[StepSummary(1, 1.0, 0.1, 3, 4, 2, 2)]),
)
TO_ENGINE = [
    msgspec.msgpack.encode([message])
    for message in (REQUEST, AbortRequests(request_ids=["a"]), ResetPrefixCache(), GetEngineView())
]
FROM_ENGINE = [msgspec.msgpack.encode(STEP)]

# Heads of msgpack values that promise far more than there is.
LIARS = [head + b"\xff\xff\xff" for head in (b"\xdd\xff", b"\xdf\xff", b"\xc6\xff", b"\xdb\x7f")]
DEEP = [b"\x91" * DEPTH + b"\xc0", b"\x81\xa1a" * DEPTH + b"\xc0"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn, whole: list[bytes]) -> bytes:
    """A frame of which a part is missing, doubled or something else."""
    frame = draw(st.sampled_from(whole))
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, len(frame)))
        end = min(len(frame), begin + draw(st.integers(0, 4)))
        put = draw(st.one_of(st.binary(max_size=3), st.sampled_from(LIARS), st.just(frame[:end])))
        frame = frame[:begin] + put + frame[end:]
    return frame


@st.composite
def twisted(draw: st.DrawFn, whole: list[bytes]) -> bytes:
    """A frame that is msgpack, with other values in some places of it."""
    value = msgspec.msgpack.decode(draw(st.sampled_from(whole)))
    for _ in range(draw(st.integers(1, 2))):
        path, inner = [], value
        while isinstance(inner, dict | list) and inner and (not path or draw(st.booleans())):
            keys = sorted(inner) if isinstance(inner, dict) else range(len(inner))
            path.append((inner, draw(st.sampled_from(list(keys)))))
            inner = inner[path[-1][1]]
        holder, key = path[-1]
        holder[key] = draw(VALUES)
    return msgspec.msgpack.encode(value)


def frames(whole: list[bytes]) -> st.SearchStrategy[bytes]:
    return st.one_of(twisted(whole), damaged(whole), st.binary(max_size=60))


# ---------------------------------------------------------------------- to the engine


class Engine:
    """An engine process without the process, and a client of it."""

    def __init__(self, folder: Path) -> None:
        memory = create_shared_memory()
        clear_page(memory, 0)
        self.core, _ = start_null_engine(CONFIG)
        self.socket = EngineSocket(f"ipc://{folder}/engine")
        page = StatusPage(memory, 0, writable=True)
        self._process = EngineProcess(self.core, self.socket, page)
        self._context = zmq.Context()
        self.client = self._context.socket(zmq.DEALER)
        self.client.setsockopt(zmq.IDENTITY, b"front")
        self.client.connect(f"ipc://{folder}/engine")
        self._numbers = itertools.count()

    def answer(self) -> list[int]:
        """The tokens of one more request, after all that was sent before it."""
        request_id = f"check-{next(self._numbers)}"
        request = msgspec.structs.replace(REQUEST, request_id=request_id)
        self.client.send(msgspec.msgpack.encode([request]))
        tokens: list[int] = []
        for _ in range(2000):
            self._process.run_once(0.01)
            while self.client.poll(0):
                step = msgspec.msgpack.decode(self.client.recv(), type=StepOutput)
                for delta in step.deltas:
                    if delta.request_id == request_id:
                        assert delta.error is None
                        tokens += delta.token_ids
                        if delta.finish_reason is not None:
                            return tokens
        raise AssertionError("no answer")

    def forget(self) -> None:
        """Abort all that the client has asked for."""
        unfinished = self._process._clients.forget(b"front")
        self.core.handle(AbortRequests(request_ids=unfinished))
        self._process.run_once(0.0)

    def close(self) -> None:
        self._context.destroy(linger=0)
        self.socket.close()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = Engine(tmp_path_factory.mktemp("fuzz"))
    yield engine
    engine.close()


@settings(max_examples=60)
@given(frame=frames(TO_ENGINE))
@example(frame=DEEP[0])
@example(frame=DEEP[1])
@example(frame=LIARS[0])
@example(frame=msgspec.msgpack.encode([{"type": "watch", "x": msgspec.Raw(DEEP[0])}]))
def test_an_engine_goes_on_whatever_comes(engine: Engine, frame: bytes) -> None:
    engine.client.send(frame)
    assert engine.answer()
    engine.forget()


def test_what_makes_no_sense_is_counted(engine: Engine) -> None:
    bad = [DEEP[0], DEEP[1], *LIARS, TO_ENGINE[0][:-1], TO_ENGINE[0] + b"\0"]
    before = engine.socket.num_bad_frames
    for frame in bad:
        engine.client.send(frame)
    engine.answer()
    assert engine.socket.num_bad_frames == before + len(bad)


# ---------------------------------------------------------------------- from the engine


class Front:
    """A frontend whose engine is played by the test. problems: errors of the event loop."""

    def __init__(self, folder: Path) -> None:
        self.problems: list[dict[str, Any]] = []
        self.runner = asyncio.Runner()
        self.runner.get_loop().set_exception_handler(
            lambda _, problem: self.problems.append(problem)
        )
        _, info = start_null_engine(CONFIG)
        self._context = zmq.Context()
        self._engine = self._context.socket(zmq.ROUTER)
        self._engine.bind(f"ipc://{folder}/engine")
        memory = create_shared_memory()
        clear_page(memory, 0)
        tokenizer = Tokenizer.from_folder(tokenizer_folder(CONFIG))

        async def connect() -> AsyncEngine:
            page = StatusPage(memory, 0)
            self.link = ProcessLink("front", f"ipc://{folder}/engine", page)
            return AsyncEngine(self.link, tokenizer, info, 0)

        self.engine = self.runner.run(connect())

    def ask(self, *frames: bytes) -> tuple[str, list[int]]:
        """What a request gets whose engine sends these frames first: how it ends, and tokens."""
        return self.runner.run(self._ask(frames))

    async def _ask(self, frames: Iterable[bytes]) -> tuple[str, list[int]]:
        sampling = SamplingParams(max_tokens=4, logprobs=1)
        answer = asyncio.create_task(self._collect(sampling))
        while not self._engine.poll(0):
            await asyncio.sleep(0.001)
        client, frame = self._engine.recv_multipart()
        (message,) = msgspec.msgpack.decode(frame, type=list[AddRequest])
        request_id = message.request_id.encode()
        end = RequestDelta(
            request_id=message.request_id, token_ids=[7], logprobs=[LOGPROBS], finish_reason="stop"
        )
        last = msgspec.msgpack.encode(StepOutput(deltas=[end], stats=EngineStats()))
        for part in (*(f.replace(b"\xa1a", _text(request_id)) for f in frames), last):
            self._engine.send_multipart((client, part))
        async with asyncio.timeout(10):
            found = await answer
        while self._engine.poll(0):  # aborts of what could not be read
            self._engine.recv_multipart()
        return found

    async def _collect(self, sampling: SamplingParams) -> tuple[str, list[int]]:
        tokens: list[int] = []
        try:
            async for part in self.engine.generate([5, 6], sampling):
                for output in part.outputs:
                    tokens += output.token_ids
        except QuireError:
            return "error", tokens
        return "end", tokens

    def close(self) -> None:
        self.runner.run(self.engine.close())
        self.runner.close()
        self._context.destroy(linger=0)


def _text(data: bytes) -> bytes:
    """msgpack of a text of up to 255 bytes."""
    return b"\xd9" + bytes([len(data)]) + data


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    front = Front(tmp_path_factory.mktemp("fuzz"))
    yield front
    front.close()


@settings(max_examples=60)
@given(frame=frames(FROM_ENGINE))
@example(frame=DEEP[0])
@example(frame=LIARS[0])
def test_a_front_goes_on_whatever_its_engine_says(front: Front, frame: bytes) -> None:
    front.ask(frame)
    assert front.engine.is_alive
    assert front.problems == []


def test_a_front_counts_what_makes_no_sense(front: Front) -> None:
    bad = [DEEP[0], DEEP[1], *LIARS, b"", FROM_ENGINE[0][:-1], FROM_ENGINE[0] + b"\0"]
    before = front.link._connection.num_bad_frames
    assert front.ask(*bad) == ("end", [7])
    assert front.link._connection.num_bad_frames == before + len(bad)
