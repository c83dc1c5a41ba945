"""The link between a frontend and its engine: what a link does, and what its listener receives.

Links: ThreadLink (thread_link.py) to a thread, ProcessLink (processes/process_link.py) to engine
processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from quire.core.messages import EngineMessage, StepOutput
from quire.engine.core.engine_info import EngineInfo
from quire.errors import QuireError


class EngineListener(Protocol):
    """Receives what comes from the engine; all methods are called on the event loop."""

    def on_step(self, step: StepOutput) -> None:
        """Called with the outputs of a finished step."""

    def on_failure(self, error: QuireError) -> None:
        """The engine has ended, and no other one is being started. error: what requests get."""

    def on_down(
        self, find_started: Callable[[Iterable[str]], set[str]], *, is_blameless: bool = False
    ) -> None:
        """The engine process has died, and another one is being started.

        find_started: which of some engine request ids may have caused that: those that had entered
        the batch, or none where the cause came from outside.
        """

    def on_up(self, info: EngineInfo) -> None:
        """Another engine process has started. It has no requests."""


class EngineLink(Protocol):
    """Takes messages to an engine. client: this frontend's unique name."""

    client: str

    def attach(self, listener: EngineListener) -> None:
        """Send outputs and state changes to this listener from now on."""

    def send(self, messages: Sequence[EngineMessage]) -> Mapping[str, QuireError]:
        """Pass messages on together; never blocks.

        Returns the errors of requests that are too large or cannot be encoded, by engine request
        id; the others are sent.
        """

    @property
    def is_alive(self) -> bool:
        """Whether there is an engine that takes messages."""

    @property
    def last_work(self) -> float:
        """When the engine last had work, in monotonic seconds; 0: never."""

    @property
    def seconds_since_heartbeat(self) -> float:
        """Seconds since the engine's last heartbeat; there is one with each layer of a step."""

    async def close(self) -> None:
        """Disconnect from the engine."""
