"""ModelLoader: loads and unloads models through the parent process, for one API process.

Owns the requests that wait for a model, and the wait for a model's last requests before it is
unloaded. Whether there is memory for a model is decided by the parent
(engine/processes/model_fleet.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import msgspec

from quire.engine.frontend.async_engine import AsyncEngine
from quire.engine.processes.control_channel import (
    ControlMessage,
    LoadModel,
    ModelReleased,
    ModelStatus,
    ReleaseModel,
    UnloadModel,
)
from quire.errors import ModelNotLoadedError, OverloadedError
from quire.server.http.http_errors import HttpError
from quire.server.model_registry import ModelEntry, ModelRegistry

POLL_SECONDS = 0.02  # between checks whether a model's last request has ended
UNLOAD_SECONDS = 15.0  # beyond the grace period, for the parent to end the engine
RETRY_SECONDS = 5.0  # Retry-After for a model that took too long to load


class ModelLoader:
    """Loads models on demand. send: to the parent process; None where there is none."""

    def __init__(
        self, models: ModelRegistry, send: Callable[[ControlMessage], None] | None = None
    ) -> None:
        self.models = models
        self._send_control = send
        self._readers: dict[str, set[asyncio.Queue[ModelStatus]]] = {}

    # ------------------------------------------------------------------ for requests

    async def load(self, name: str, seconds: float) -> None:
        """Wait until a model is loaded. Raises ModelNotLoadedError, also if it takes longer."""
        try:
            async with asyncio.timeout(seconds):
                await self._until_loaded(self.models.entry(name))
        except TimeoutError:
            waited = f"{round(seconds, 2):g} s"
            text = f"model {name} was not loaded within {waited}; send the request again later"
            raise ModelNotLoadedError(name, text, retry_after=RETRY_SECONDS) from None

    async def unload_all(self, entries: Iterable[ModelEntry], grace: float) -> None:
        """Unload those that are loaded, and wait until all their engines have ended.

        grace: seconds that requests have. Raises HttpError before anything is unloaded if one is
        being loaded, and the first error of an unload after the last has ended.
        """
        there = [entry for entry in entries if entry.status.state != "unloaded"]
        for entry in there:
            if entry.status.state == "loading":
                text = f"model: {entry.name} is being loaded; unload it when it is there"
                raise HttpError(409, text, code="model_is_loading")
        unloads = (self.unload(entry.name, grace) for entry in there)
        for result in await asyncio.gather(*unloads, return_exceptions=True):
            if result is not None:
                raise result

    async def unload(self, name: str, grace: float) -> None:
        """Unload a model and wait for it; its requests have `grace` seconds to finish."""
        try:
            async with asyncio.timeout(grace + UNLOAD_SECONDS):
                with self._statuses_of(name) as statuses:
                    self._send(UnloadModel(name=name, grace=grace), name)
                    while (await statuses.get()).state in ("loaded", "unloading"):
                        pass
        except TimeoutError:
            text = f"model {name} has not ended yet; GET /admin/models shows its state"
            raise OverloadedError(text, retry_after=RETRY_SECONDS) from None

    async def _until_loaded(self, entry: ModelEntry) -> None:
        name, is_requested = entry.name, False
        with self._statuses_of(name) as statuses:
            while not entry.is_usable:
                if not is_requested:
                    self._send(LoadModel(name=name), name)
                status = await statuses.get()
                if failure := status.failure:
                    raise ModelNotLoadedError(name, failure, retry_after=status.retry_after)
                is_requested = status.state != "unloaded"  # else it had to be unloaded first

    @contextmanager
    def _statuses_of(self, name: str) -> Iterator[asyncio.Queue[ModelStatus]]:
        """A queue of the model's statuses from now on, in order."""
        queue: asyncio.Queue[ModelStatus] = asyncio.Queue()
        readers = self._readers.setdefault(name, set())
        readers.add(queue)
        try:
            yield queue
        finally:
            readers.discard(queue)

    def _send(self, message: ControlMessage, name: str) -> None:
        if self._send_control is None:
            raise ModelNotLoadedError(name, f"model {name} is not loaded and cannot be")
        self._send_control(message)

    # ------------------------------------------------------------------ from the parent process

    def attach(self, name: str, engine: AsyncEngine) -> None:
        """Connect a model that was loaded for the first time to its engine."""
        self.models.attach(name, engine)
        self._wake(self.models.entry(name).status)

    def give_up(self, name: str, reason: str) -> None:
        """Unload a model that this process cannot use."""
        status = self.models.entry(name).status
        self.set_status(msgspec.structs.replace(status, failure=reason, retry_after=RETRY_SECONDS))
        self._send(UnloadModel(name=name, grace=0.0), name)

    def set_status(self, status: ModelStatus) -> None:
        """Update a model's state and wake the requests that wait for it."""
        self.models.set_status(status)
        self._wake(status)

    async def leave(self, order: ReleaseModel) -> None:
        """Wait for a model's running requests and report to the parent whether it may unload."""
        entry = self.models.entry(order.name)
        agreed = entry.admission.in_flight.num_own_answers == 0
        if order.grace:
            await _until_idle(entry, order.grace)
            agreed = entry.num_running == 0
        reply = ModelReleased(name=order.name, number=order.number, agreed=agreed)
        self._send(reply, order.name)

    def _wake(self, status: ModelStatus) -> None:
        for queue in self._readers.get(status.name, ()):
            queue.put_nowait(status)


async def _until_idle(entry: ModelEntry, grace: float) -> None:
    end = asyncio.get_running_loop().time() + grace
    while entry.num_running > 0 and asyncio.get_running_loop().time() < end:
        await asyncio.sleep(POLL_SECONDS)
