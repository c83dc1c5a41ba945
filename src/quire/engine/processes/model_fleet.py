"""Which models are loaded: those of the start, those that somebody asks for, and who has to go.

Owns the memory that they may take together (the state of one: fleet_model.py). A model whose
memory is needed leaves only when every API process agrees that none of its requests use it.
Processes are started and ended by the supervisor.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from quire.config import EngineConfig
from quire.engine.core.engine_info import EngineInfo
from quire.engine.processes.control_channel import (
    Control,
    EngineUp,
    LoadModel,
    ModelReleased,
    ModelState,
    ModelStatus,
    ReleaseModel,
    UnloadModel,
)
from quire.engine.processes.fleet_model import FAILURE_SECONDS, Model, ModelSpec
from quire.engine.processes.process_supervisors import EngineSupervisor
from quire.engine.processes.server_supervisor import ServerSupervisor
from quire.engine.startup.footprint import footprint_of
from quire.errors import ConfigError, QuireError, UserError
from quire.hub import tokenizer_folder
from quire.tokenizer.tokenizer_folder import check_folder

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0  # that API processes have to say whether a model may go
ROOM_SECONDS = 2.0  # after which there may be room where there was none
UNLOADED = "the model was unloaded before the answer was complete; send the request again"


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetSettings:
    """memory_bytes: of all loaded models; idle_seconds: then models on demand leave. None: never"""

    memory_bytes: int | None = None
    idle_seconds: float | None = None


class NoRoomError(QuireError):
    """All models that could leave are in use."""


class Fleet:
    """All models of a server, and what API processes ask of them."""

    def __init__(
        self, supervisor: ServerSupervisor, plans: Sequence[ModelSpec], settings: FleetSettings
    ) -> None:
        self._supervisor = supervisor
        self._settings = settings
        self._models = {plan.name: Model(plan) for plan in plans}
        self._choosing = asyncio.Lock()  # held by who decides what the memory is for
        self._has_started = False

    async def start(self) -> list[EngineInfo]:
        """Start all processes; returns when requests can come to the models of the start.

        Raises what keeps a model from being loaded: ConfigError, CheckpointError, EngineError.
        """
        self._supervisor.start_workers(self)
        await self._check_memory()
        first = [model for model in self._models.values() if model.plan.at_start]
        infos = await self._supervisor.unless_failed(asyncio.gather(*map(self._load_first, first)))
        await self._supervisor.wait_until_workers_ready()
        self._has_started = True
        if self._settings.idle_seconds is not None:
            self._supervisor.begin(self._unload_idle(self._settings.idle_seconds))
        return infos

    # ------------------------------------------------------------------ asked by API processes

    def conditions(self) -> list[ModelStatus]:
        """All models as they are now."""
        return [model.condition() for model in self._models.values()]

    def reachable(self) -> list[EngineUp]:
        """The engines that requests can be sent to."""
        return self._supervisor.reachable()

    def on_message(self, client: str, message: Control) -> None:
        """An API process wants a model to come or to go, or says that it may."""
        match message:
            case LoadModel() if (model := self._models[message.name]).load is None:
                model.load = self._supervisor.begin(self._load_for_request(model))
            case UnloadModel():
                model = self._models[message.name]
                self._supervisor.begin(self._unload_for_admin(model, message.grace))
            case ModelReleased():
                self._models[message.name].note_answer(client, agreed=message.agreed)

    def on_death(self, client: str) -> None:
        """An API process has died: nothing of it uses a model."""
        self._supervisor.forget_client(client)
        for model in self._models.values():
            model.note_answer(client, agreed=True)

    # ------------------------------------------------------------------ loading

    async def _load_first(self, model: Model) -> EngineInfo:
        try:
            return await self._load(model)
        except UserError as error:
            raise model.plan.explain(error) from error

    async def _load_for_request(self, model: Model) -> None:
        try:
            if model.may_be_tried:
                await self._load(model)
            else:
                self._become(model, model.state, failure=model.failure)
        except NoRoomError as error:
            self._become(model, model.state, failure=str(error), retry_after=ROOM_SECONDS)
        except QuireError as error:
            self._note_failure(model, error)
        finally:
            model.load = None

    async def _load(self, model: Model) -> EngineInfo:
        """Load a model, unless it is; tells API processes in any case."""
        async with model.changing:
            if model.keeper is None:
                async with self._choosing:
                    await self._make_room(model)
                    model.keeper = self._start_engine(model)
                self._become(model, "loading")
            info = await self._supervisor.wait_until_started(model.keeper)
            model.note_kv_cache(info.kv_cache_bytes)
            self._become(model, "loaded")
            return info

    def _start_engine(self, model: Model) -> EngineSupervisor:
        on_end = partial(self._note_end, model)
        return self._supervisor.start_engine(model.plan.name, self._config(model), on_end)

    def _config(self, model: Model) -> EngineConfig:
        """Where memory is counted, the KV cache gets the size that was counted."""
        config = model.plan.config
        if self._settings.memory_bytes is None or config.cache.num_blocks is not None:
            return config
        assert model.footprint is not None, "it has been measured"
        size = model.footprint.kv_cache or config.cache.kv_cache_memory_bytes
        return replace(config, cache=replace(config.cache, kv_cache_memory_bytes=size))

    def _note_end(self, model: Model, error: BaseException) -> None:
        """Its engine cannot be started or kept. Others are not to suffer from that."""
        model.keeper = None
        if model.state != "loaded":  # who loads it is told
            return
        if not self._has_started or (len(self._models) == 1 and model.plan.at_start):
            self._supervisor.give_up(error)
        else:
            self._note_failure(model, error)

    def _note_failure(self, model: Model, error: BaseException) -> None:
        logger.error("model %s: %s", model.plan.name, error)
        model.failed_at = time.monotonic()
        self._become(model, "unloaded", failure=str(error), retry_after=FAILURE_SECONDS)

    def _become(
        self, model: Model, state: ModelState, *, failure: str = "", retry_after: float = 1.0
    ) -> None:
        if state != model.state:
            logger.info("model %s: %s", model.plan.name, state)
        model.state, model.failure, model.retry_after = state, failure, retry_after
        self._supervisor.broadcast(model.condition())

    # ------------------------------------------------------------------ memory

    async def _check_memory(self) -> None:
        """Whether each model could be loaded, and those of the start together.

        Their files are downloaded if need be, so that no request has to wait for that; a tokenizer
        that is not there is told now, too. Raises ConfigError or CheckpointError.
        """
        await asyncio.gather(*map(self._measure, self._models.values()))
        limit = self._settings.memory_bytes
        if limit is None:
            return
        for model in self._models.values():
            if (model.num_bytes or 0) > limit:
                raise ConfigError(
                    f"model {model.plan.name} takes {model.size_in_words}, but "
                    f"model_memory_bytes is {limit:,}; raise it, or lower kv_cache_memory_bytes"
                )
        first = [model for model in self._models.values() if model.plan.at_start]
        if (needed := sum(model.num_bytes or 0 for model in first)) > limit:
            raise ConfigError(
                f"the models of the start take {needed:,} bytes, but model_memory_bytes is "
                f"{limit:,}; raise it, or load some of them on_demand"
            )

    async def _measure(self, model: Model) -> None:
        config, limit = model.plan.config, self._settings.memory_bytes
        try:
            model.footprint = await asyncio.to_thread(footprint_of, config, limit)
            check_folder(await asyncio.to_thread(tokenizer_folder, config))
        except UserError as error:
            raise model.plan.explain(error) from error

    async def _make_room(self, model: Model) -> None:
        """Unload what was not used for longest until there is memory. Raises NoRoomError."""
        limit = self._settings.memory_bytes
        if limit is None:
            return
        others = [other for other in self._models.values() if other.keeper is not None]
        others.sort(key=lambda other: 0.0 if other.keeper is None else other.keeper.last_used)
        for other in others:
            is_free = other.state == "loaded" and not other.changing.locked()
            if is_free and self._num_bytes_with(model) > limit:
                async with other.changing:
                    await self._unload(other, grace=0.0)
        if (needed := self._num_bytes_with(model)) > limit:
            loaded = ", ".join(f"{o.plan.name} ({o.size_in_words})" for o in others if o.keeper)
            raise NoRoomError(
                f"model {model.plan.name} takes {model.size_in_words}; with those that are in use, "
                f"{loaded}, that would be {needed:,} of {limit:,} bytes; send it again later"
            )

    def _num_bytes_with(self, model: Model) -> int:
        """Of all loaded models, and this one."""
        loaded = {other for other in self._models.values() if other.keeper is not None}
        return sum(other.num_bytes or 0 for other in loaded | {model})

    # ------------------------------------------------------------------ unloading

    async def _unload_for_admin(self, model: Model, grace: float) -> None:
        async with model.changing:
            if model.state == "loaded":
                await self._unload(model, grace=max(grace, 0.001))
            else:
                self._become(model, model.state)

    async def _unload_idle(self, seconds: float) -> None:
        """Unload what nobody has asked for so long, for ever."""
        while True:
            await asyncio.sleep(min(5.0, seconds / 5))
            for model in self._models.values():
                is_old = model.keeper and time.monotonic() - model.keeper.last_used > seconds
                if is_old and model.state == "loaded" and not model.plan.at_start:
                    async with model.changing:
                        if model.keeper is not None:  # nobody else was quicker
                            await self._unload(model, grace=0.0)

    async def _unload(self, model: Model, grace: float) -> None:
        """End a model's engine: after grace seconds in any case, without any if it is not in use.

        model.changing is held.
        """
        self._become(model, "unloading")
        may_go = await self._may_go(model, grace) or bool(grace)
        if model.keeper is not None:  # else it has ended by itself meanwhile
            if not may_go:
                self._become(model, "loaded")
                return
            await self._supervisor.stop_engine(model.plan.name, UNLOADED)
            model.keeper = None
        self._become(model, "unloaded")

    async def _may_go(self, model: Model, grace: float) -> bool:
        """Ask all API processes. One that says nothing says no."""
        loop = asyncio.get_running_loop()
        model.answers = {client: loop.create_future() for client in self._supervisor.clients}
        self._supervisor.broadcast(ReleaseModel(name=model.plan.name, grace=grace))
        answers = list(model.answers.values())
        if answers:
            await asyncio.wait(answers, timeout=grace + ANSWER_SECONDS)
        return all(answer.done() and answer.result() for answer in answers)
