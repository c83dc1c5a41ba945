"""The way from a front to its engine: to a thread here, to processes in process_link.py.

No torch is imported here: the engine's thread does that.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from quire.config import EngineConfig
from quire.core.messages import EngineMessage, StepOutput
from quire.engine.frontend.engine_info import EngineInfo
from quire.engine.frontend.engine_thread import EngineThread


class Listener(Protocol):
    """Who is told what comes from the engine; always on the event loop."""

    def on_step(self, step: StepOutput) -> None:
        """A step's news."""

    def on_failure(self, message: str) -> None:
        """The engine is gone, and nobody is starting another one."""

    def on_down(self, has_begun: Callable[[Iterable[str]], set[str]]) -> None:
        """The engine process has died, and another one is being started.

        has_begun: which of some engine request ids were running, or had been.
        """

    def on_up(self, info: EngineInfo) -> None:
        """Another engine process is there, and knows of nothing."""


class Link(Protocol):
    """Takes messages to an engine. client: a name that no other front of it has."""

    client: str

    def attach(self, listener: Listener) -> None:
        """Tell this listener from now on."""

    def send(self, message: EngineMessage) -> None:
        """Pass a message on; never blocks. Raises InvalidRequestError for one that cannot pass."""

    @property
    def is_alive(self) -> bool:
        """Whether somebody is there to take messages."""

    @property
    def last_work(self) -> float:
        """When there was work for the last time, in seconds of the monotonic clock; 0: never."""

    @property
    def silent_seconds(self) -> float:
        """Since the engine's last sign of life; one comes with each layer of a step."""

    async def close(self) -> None:
        """Hang up."""


class ThreadLink:
    """An engine in a thread of this process."""

    client = "request"

    def __init__(self, config: EngineConfig) -> None:
        self._listener: Listener | None = None
        call = _caller_on(asyncio.get_running_loop())
        self._thread = EngineThread(
            config,
            on_step=lambda step: call(lambda: self._tell_step(step)),
            on_failure=lambda: call(self._tell_failure),
        )

    async def started(self) -> EngineInfo:
        """Wait for the engine. Raises CheckpointError or ConfigError."""
        return await asyncio.wrap_future(self._thread.started)

    @property
    def is_alive(self) -> bool:
        """Whether the loop runs."""
        return self._thread.is_alive

    def attach(self, listener: Listener) -> None:
        """Tell this listener from now on."""
        self._listener = listener

    @property
    def last_work(self) -> float:
        """A thread keeps no page that would say."""
        return 0.0

    @property
    def silent_seconds(self) -> float:
        """Nor is there anybody who would restart it."""
        return 0.0

    def send(self, message: EngineMessage) -> None:
        """Pass a message on."""
        self._thread.send(message)

    async def close(self) -> None:
        """Stop the loop after the step it is in."""
        await asyncio.to_thread(self._thread.stop)

    def _tell_step(self, step: StepOutput) -> None:
        if self._listener is not None:
            self._listener.on_step(step)

    def _tell_failure(self) -> None:
        if self._listener is not None:
            self._listener.on_failure("the engine stopped; restart the server")


def _caller_on(loop: asyncio.AbstractEventLoop) -> Callable[[Callable[[], Any]], None]:
    """A way for other threads to run something on the loop; without effect once it is closed."""

    def call(function: Callable[[], Any]) -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(function)

    return call
