"""How models come and go under an API process: it asks the parent, waits, and lets go of them.

Owns the requests that wait for a model, and the last ones before it leaves. Whether there is memory
for a model is decided by the parent (engine/processes/model_fleet.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from quire.engine.processes.control_channel import (
    Control,
    LeaveModel,
    LoadModel,
    ModelCondition,
    ModelLeft,
    UnloadModel,
)
from quire.errors import ModelNotLoadedError, OverloadedError
from quire.server.engine_protocol import EngineProtocol
from quire.server.model_registry import Entry, ModelRegistry

POLL_SECONDS = 0.02  # between looks at whether a model's last request has ended
TELL_SECONDS = 15.0  # beyond a grace, for the parent to do what it was asked
RETRY_SECONDS = 5.0  # after which a model that took too long may be there


class Loader:
    """Asks for models, and waits for them. ask: sends to the parent; None: nobody can be asked."""

    def __init__(self, models: ModelRegistry, ask: Callable[[Control], None] | None = None) -> None:
        self.models = models
        self._ask = ask
        self._readers: dict[str, set[asyncio.Queue[ModelCondition]]] = {}

    # ------------------------------------------------------------------ asked by requests

    async def load(self, name: str, seconds: float) -> None:
        """Wait until a model is loaded. Raises ModelNotLoadedError, also if it takes longer."""
        try:
            async with asyncio.timeout(seconds):
                await self._until_loaded(self.models.entry(name))
        except TimeoutError:
            text = f"model {name} was not loaded within {seconds:g} s; send the request again later"
            raise ModelNotLoadedError(name, text, retry_after=RETRY_SECONDS) from None

    async def unload(self, name: str, grace: float) -> None:
        """Ask for a model's end, and wait for it; its requests have `grace` seconds to finish."""
        try:
            async with asyncio.timeout(grace + TELL_SECONDS):
                with self._news(name) as news:
                    self._send(UnloadModel(name=name, grace=grace), name)
                    while (await news.get()).state in ("loaded", "unloading"):
                        pass
        except TimeoutError:
            text = f"model {name} has not ended yet; ask for its state"
            raise OverloadedError(text, retry_after=RETRY_SECONDS) from None

    async def _until_loaded(self, entry: Entry) -> None:
        name, is_asked = entry.name, False
        with self._news(name) as news:
            while not entry.is_usable:
                if not is_asked:
                    self._send(LoadModel(name=name), name)
                found = await news.get()
                if found.failure:
                    raise ModelNotLoadedError(name, found.failure, retry_after=found.retry_after)
                is_asked = found.state != "unloaded"  # otherwise it had to leave first

    @contextmanager
    def _news(self, name: str) -> Iterator[asyncio.Queue[ModelCondition]]:
        """All that is said of a model from now on, in its order."""
        queue: asyncio.Queue[ModelCondition] = asyncio.Queue()
        readers = self._readers.setdefault(name, set())
        readers.add(queue)
        try:
            yield queue
        finally:
            readers.discard(queue)

    def _send(self, message: Control, name: str) -> None:
        if self._ask is None:
            raise ModelNotLoadedError(name, f"model {name} is not loaded, and nothing can load it")
        self._ask(message)

    # ------------------------------------------------------------------ told by the parent

    def attach(self, name: str, engine: EngineProtocol) -> None:
        """The model's engine can be reached for the first time."""
        self.models.attach(name, engine)
        self._wake(self.models.entry(name).condition)

    def give_up(self, name: str, why: str) -> None:
        """The model is loaded, but cannot be used in this process."""
        condition = self.models.entry(name).condition
        self.tell(msgspec.structs.replace(condition, failure=why, retry_after=RETRY_SECONDS))
        self._send(UnloadModel(name=name, grace=0.0), name)

    def tell(self, condition: ModelCondition) -> None:
        """The model is like this now."""
        self.models.tell(condition)
        self._wake(condition)

    async def leave(self, order: LeaveModel) -> None:
        """Begin no more requests with a model, wait for those that run, and say how that went."""
        entry = self.models.entry(order.name)
        agreed = bool(order.grace) or entry.admission.heads.num_own_answers == 0
        await _until_idle(entry, order.grace)
        self._send(ModelLeft(name=order.name, agreed=agreed), order.name)

    def _wake(self, condition: ModelCondition) -> None:
        for queue in self._readers.get(condition.name, ()):
            queue.put_nowait(condition)


async def _until_idle(entry: Entry, grace: float) -> None:
    end = asyncio.get_running_loop().time() + grace
    while entry.num_running > 0 and asyncio.get_running_loop().time() < end:
        await asyncio.sleep(POLL_SECONDS)
