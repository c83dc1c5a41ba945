"""The model fleet: decides which models of a server are loaded, within a memory limit.

Models are loaded at the start or on demand (the state of one: fleet_model.py). A model whose memory
is needed (fleet_memory.py) is unloaded only if every API process agrees that none of its requests
use it; where that does not come by itself, it gets no new ones. The server supervisor starts and
ends the processes.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from quire.config import EngineConfig
from quire.engine.core.engine_info import EngineInfo
from quire.engine.processes.control_channel import (
    ControlMessage,
    EngineUp,
    LoadModel,
    ModelReleased,
    ModelState,
    ModelStatus,
    ReleaseModel,
    UnloadModel,
)
from quire.engine.processes.fleet_memory import FleetMemory, OutOfModelMemoryError
from quire.engine.processes.fleet_model import FAILURE_SECONDS, FleetModel, ModelSpec
from quire.engine.processes.server_supervisor import ServerSupervisor
from quire.errors import CheckpointError, EngineError, QuireError, UserError

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0  # for API processes to say whether a model may be unloaded
END_SECONDS = 0.1  # for the engine and API processes to end a request that was answered
MEMORY_RETRY_SECONDS = 2.0  # until a request may find memory free
UNLOADED = "the model was unloaded before the answer was complete; send the request again"


class ModelFleet:
    """All models of a server; loads and unloads them for API processes.

    memory_bytes: of all loaded models; None: no limit. idle_seconds: until unused on-demand models
    are unloaded; None: never.
    """

    def __init__(
        self,
        supervisor: ServerSupervisor,
        plans: Sequence[ModelSpec],
        *,
        memory_bytes: int | None = None,
        idle_seconds: float | None = None,
    ) -> None:
        self._supervisor = supervisor
        self._memory_bytes, self._idle_seconds = memory_bytes, idle_seconds
        self._models = {plan.name: FleetModel(plan) for plan in plans}
        limit = math.inf if memory_bytes is None else memory_bytes
        self._memory = FleetMemory(self._models, limit, self._unload)
        self._has_started = False

    async def start(self) -> list[EngineInfo]:
        """Start all processes; returns when the models of the start accept requests.

        Raises ConfigError for settings, also of models on demand, and of a model of the start that
        cannot be loaded its CheckpointError or EngineError.
        """
        self._supervisor.start_workers(self)
        await self._check_models()
        first = [model for model in self._models.values() if model.plan.at_start]
        infos = await self._supervisor.unless_failed(asyncio.gather(*map(self._load_first, first)))
        await self._supervisor.wait_until_workers_ready()
        self._has_started = True
        if self._idle_seconds is not None:
            self._supervisor.spawn(self._unload_unused(self._idle_seconds))
        return infos

    # ------------------------------------------------------------------ called for API processes

    def statuses(self) -> list[ModelStatus]:
        """The current state of all models."""
        return [model.status() for model in self._models.values()]

    def reachable(self) -> list[EngineUp]:
        """The engines that accept requests."""
        return self._supervisor.reachable()

    def on_message(self, client: str, message: ControlMessage) -> None:
        """Handle an API process's message: load, unload, or its consent to unload."""
        match message:
            case LoadModel() if (model := self._models[message.name]).load is None:
                model.load = self._supervisor.spawn(self._load_for_request(model))
            case UnloadModel():
                model = self._models[message.name]
                self._supervisor.spawn(self._unload_for_admin(model, message.grace))
            case ModelReleased():
                model = self._models[message.name]
                if message.number == model.num_questions:
                    model.record_consent(client, agreed=message.agreed)

    def on_death(self, client: str) -> None:
        """Handle the death of an API process: it uses no model any more."""
        for model in self._models.values():
            model.record_consent(client, agreed=True)

    # ------------------------------------------------------------------ loading

    async def _load_first(self, model: FleetModel) -> EngineInfo:
        try:
            return await self._load(model)
        except UserError as error:
            raise model.plan.explain(error) from error

    async def _load_for_request(self, model: FleetModel) -> None:
        try:
            if model.can_retry:
                await self._load(model)
            else:
                self._set_state(model, model.state, failure=model.failure)
        except OutOfModelMemoryError as error:
            retry = MEMORY_RETRY_SECONDS
            self._set_state(model, model.state, failure=str(error), retry_after=retry)
            # that is for requests which wait now: nothing is wrong with it, also for /ready
            self._set_state(model, model.state)
        except QuireError as error:
            self._record_failure(model, error)
        except Exception:  # requests wait for the outcome
            logger.exception("model %s could not be loaded", model.plan.name)
            text = "the model could not be loaded; the log says why"
            self._record_failure(model, EngineError(text))
        finally:
            model.load = None

    async def _load(self, model: FleetModel) -> EngineInfo:
        """Load a model if it is not loaded; reports its state to API processes in any case."""
        async with model.changing:
            if model.engine is None:
                try:
                    await self._start_engine(model)
                except OutOfModelMemoryError:
                    if not (pause := max(o.seconds_until_idle for o in self._models.values())):
                        raise
                    await asyncio.sleep(pause + END_SECONDS)
                    await self._start_engine(model)
                assert model.engine is not None, "it has been started"
                self._set_state(model, "loading")
            info = await self._supervisor.wait_until_started(model.engine)
            if model.state != "loaded":
                model.record_loaded(info.kv_cache_bytes)
            self._set_state(model, "loaded")
            return info

    async def _start_engine(self, model: FleetModel) -> None:
        """Start its engine, once there is memory. Raises OutOfModelMemoryError or UserError."""
        if model.footprint is None:  # its files were wrong, or the server is about to start
            await model.measure(self._memory_bytes)
        await self._memory.ensure_fits(model)
        # nothing is awaited between that and the start, which takes the memory
        on_end = partial(self._on_engine_end, model)
        name, config = model.plan.name, self._config(model)
        model.engine = self._supervisor.start_engine(name, config, on_end)

    def _config(self, model: FleetModel) -> EngineConfig:
        """The model's settings; with a memory limit, the KV cache has its reserved size."""
        config = model.plan.config
        if self._memory_bytes is None or config.cache.num_blocks is not None:
            return config
        assert model.footprint is not None, "it has been measured"
        size = model.footprint.kv_cache or config.cache.kv_cache_memory_bytes
        return replace(config, cache=replace(config.cache, kv_cache_memory_bytes=size))

    def _on_engine_end(self, model: FleetModel, error: BaseException) -> None:
        """Handle an engine that cannot be started or kept running; other models go on."""
        model.engine = None
        if model.state != "loaded":  # the caller of `_load` gets the error
            return
        if not self._has_started or (len(self._models) == 1 and model.plan.at_start):
            self._supervisor.fail(error)
        else:
            self._record_failure(model, error)

    def _record_failure(self, model: FleetModel, error: BaseException) -> None:
        logger.error("model %s: %s", model.plan.name, error)
        model.failed_at = time.monotonic()
        self._set_state(model, "unloaded", failure=str(error), retry_after=FAILURE_SECONDS)

    def _set_state(
        self, model: FleetModel, state: ModelState, *, failure: str = "", retry_after: float = 1.0
    ) -> None:
        if state != model.state:
            logger.info("model %s: %s", model.plan.name, state)
        model.state, model.failure, model.retry_after = state, failure, retry_after
        self._supervisor.broadcast(model.status())

    # ------------------------------------------------------------------ memory

    async def _check_models(self) -> None:
        """Check the files of all models, that each fits, and those of the start together.

        Downloads files if need be, so that no request waits for that. With wrong files a model on
        demand is only refused, like one that cannot be loaded, unless all others are, too. Raises
        ConfigError or CheckpointError.
        """
        models = list(self._models.values())
        failures = await asyncio.gather(*map(self._failure_of_files, models))
        if None not in failures:
            raise next(filter(None, failures))
        self._memory.check(models)

    async def _failure_of_files(self, model: FleetModel) -> UserError | None:
        """Measure a model; returns why it is refused for now. Raises what ends the start."""
        try:
            await model.measure(self._memory_bytes)
        except UserError as error:
            explained = model.plan.explain(error)
            if model.plan.at_start or not isinstance(error, CheckpointError):
                raise explained from error
            self._record_failure(model, error)
            return explained
        self._set_state(model, model.state)  # with its size and quality
        return None

    # ------------------------------------------------------------------ unloading

    async def _unload_for_admin(self, model: FleetModel, grace: float) -> None:
        async with model.changing:
            if model.state == "loaded":
                await self._unload(model, max(grace, 0.001), is_final=True)
            else:
                self._set_state(model, model.state)

    async def _unload_unused(self, seconds: float) -> None:
        """Unload on-demand models that were not used for this many seconds; runs for ever."""
        while True:
            await asyncio.sleep(min(5.0, seconds / 5))
            for model in self._models.values():
                await self._unload_if_unused(model, seconds)

    async def _unload_if_unused(self, model: FleetModel, seconds: float) -> None:
        is_old = model.engine and time.monotonic() - model.engine.last_used > seconds
        if is_old and model.can_unload and not model.plan.at_start:
            async with model.changing:
                await self._unload(model, grace=0.0)

    async def _unload(self, model: FleetModel, grace: float, *, is_final: bool = False) -> None:
        """Unload a model if it is not in use any more after grace seconds; is_final: in any case.

        It gets no new requests meanwhile. The caller holds model.changing.
        """
        self._set_state(model, "unloading")
        may_unload = await self._all_agree(model, grace) or is_final
        if model.engine is not None:  # else its engine has ended meanwhile
            if not may_unload:
                model.declined_at = time.monotonic()
                if grace:
                    model.turn_began = model.declined_at
                self._set_state(model, "loaded")
                return
            await self._supervisor.stop_engine(model.plan.name, UNLOADED)
            model.engine = None
        self._set_state(model, "unloaded")

    async def _all_agree(self, model: FleetModel, grace: float) -> bool:
        """Ask all API processes; no reply counts as no."""
        loop = asyncio.get_running_loop()
        model.consents = {client: loop.create_future() for client in self._supervisor.clients}
        model.num_questions += 1
        name, number = model.plan.name, model.num_questions
        self._supervisor.broadcast(ReleaseModel(name=name, number=number, grace=grace))
        consents = list(model.consents.values())
        if consents:
            await asyncio.wait(consents, timeout=grace + ANSWER_SECONDS)
        return all(consent.done() and consent.result() for consent in consents)
