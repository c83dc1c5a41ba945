"""A step may be slow, layer by layer; only an engine that gives no sign of life has hung."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quire.config import EngineConfig
from quire.core.messages import AddRequest
from quire.core.sampling_params import SamplingParams
from quire.engine.processes import engine_supervisor, status_page
from quire.engine.processes.control_channel import EngineStarted, StartEngine
from quire.engine.processes.engine_supervisor import EngineSupervisor
from quire.engine.processes.status_page import StatusPage
from quire.engine.startup.start_engine import start_engine
from quire.kernels.cpu import native
from quire.logs import LogOptions
from quire.models.families.llama import LlamaDecoderLayer
from quire.models.runtimes import compiled_decoder
from quire.models.runtimes.compiled_decoder import FEW_TOKENS
from quire.shared_memory import clear_page, create_shared_memory

HANG = 60.0
SLOW_LAYER = 40.0  # seconds: shorter than HANG, but several of them are longer


class Clock:
    """A clock that moves only when it is advanced."""

    def __init__(self) -> None:
        self.now = 1.0

    def monotonic_ns(self) -> int:
        return int(self.now * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(status_page, "time", clock)
    return clock


@pytest.mark.parametrize(
    ("modules", "tokens", "calls"),
    [(True, 10, 6), (False, 2 * FEW_TOKENS, 6), (False, FEW_TOKENS, 3)],
    ids=["modules", "compiled", "joined"],
)
def test_a_step_of_slow_layers_is_seen_to_go_on(
    modules: bool,
    tokens: int,
    calls: int,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = create_shared_memory()
    clear_page(memory, 1)
    writer, reader = StatusPage(memory, 1, writable=True), StatusPage(memory, 1)
    ages: list[float] = []

    def slowly(function: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*args: object) -> Any:
            clock.now += SLOW_LAYER
            ages.append(reader.age())
            return function(*args)

        return slow

    if modules:
        monkeypatch.setattr(LlamaDecoderLayer, "forward", slowly(LlamaDecoderLayer.forward))
    else:
        slow_layers(monkeypatch, slowly)
    quantization = "fp8" if modules else "none"  # of which there are no compiled products
    config = EngineConfig.from_options(device="cpu", num_blocks=16, quantization=quantization)
    core, _ = start_engine(config, writer.heartbeat_within_step)
    core.handle(
        AddRequest(
            request_id="r",
            prompt_token_ids=list(range(tokens)),
            sampling=SamplingParams(max_tokens=1, prompt_logprobs=0),
            eos_token_ids=[],
        )
    )
    writer.heartbeat(0, has_work=True)
    begin = clock.now
    core.step()
    assert len(ages) == calls, "the layers went another way"
    assert clock.now - begin > HANG, "the step was not long enough to be taken for a hang"
    assert max(ages) == pytest.approx(SLOW_LAYER)
    assert reader.age() == 0.0, "it scored the prompt after the last layer"
    assert reader.last_work == clock.now, "an engine at work is not idle"


def slow_layers(
    monkeypatch: pytest.MonkeyPatch, slowly: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Two layers in a call of compiled code, which is slow."""
    if (library := native.library()) is None:
        pytest.skip("the kernels were not built")

    class Library:
        quire_cpu_layers = staticmethod(slowly(library.quire_cpu_layers))

        def __getattr__(self, name: str) -> Any:
            return getattr(library, name)

    slow = Library()
    monkeypatch.setattr(native, "compiled", lambda: slow)
    monkeypatch.setattr(compiled_decoder, "_TOGETHER", 2)


def test_the_supervisor_ends_a_process_without_heartbeat(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock advances with heartbeats, so that a busy machine delays none."""
    hang, heartbeats = 0.01, 30

    class Slow:
        """A fake engine process: sends heartbeats for a while, and then none."""

        pid = 1

        def __init__(self, first: StartEngine) -> None:
            self.page = StatusPage(first.memory, first.page, writable=True)
            self.num_heartbeats = 0
            self.replies = [EngineStarted(info=SimpleNamespace())]  # type: ignore[arg-type]

        async def receive(self) -> EngineStarted:
            if self.replies:
                return self.replies.pop()
            for _ in range(heartbeats):
                clock.now += 0.9 * hang
                await asyncio.sleep(hang / 5)  # the supervisor looks twice as often
                self.page.heartbeat_within_step()
                self.num_heartbeats += 1
            clock.now += 2 * hang
            await asyncio.Event().wait()
            raise AssertionError

        async def end(self) -> int:
            ended.set()
            return -9

    children: list[Slow] = []
    ended = asyncio.Event()

    async def spawn(_module: str, first: StartEngine, **_: object) -> Slow:
        children.append(Slow(first))
        return children[-1]

    async def keep() -> None:
        first = StartEngine(
            config=EngineConfig(), epoch=0, address=f"ipc://{tmp_path}/engine",
            memory=create_shared_memory(), page=1, log=LogOptions(level="info", format="text"),
        )  # fmt: skip
        supervisor = EngineSupervisor("m", first, (1, 2), lambda _: None, hang, load=0)
        task = asyncio.create_task(supervisor.run())
        await ended.wait()
        task.cancel()

    monkeypatch.setattr(engine_supervisor.Child, "spawn", spawn)
    asyncio.run(keep())
    assert children[0].num_heartbeats == heartbeats
