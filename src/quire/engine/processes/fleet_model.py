"""One model of a server: its settings, its size and its state, which model_fleet.py changes."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from quire.config import EngineConfig
from quire.engine.processes.control_channel import ModelState, ModelStatus
from quire.engine.processes.engine_supervisor import EngineSupervisor
from quire.engine.processes.liveness import NOTE_SECONDS, open_files
from quire.errors import QualityGateError, UserError
from quire.hub import pinned
from quire.processes import in_detached_thread

if TYPE_CHECKING:
    from quire.engine.startup.footprint import Footprint
    from quire.models.config.quality_gate import Quality

logger = logging.getLogger(__name__)

FAILURE_SECONDS = 5.0  # after a failed load, until it is tried again
# that requests of a model are refused until another one makes room; it has been loaded as long
TURN_SECONDS = 30.0
IDLE_SECONDS = 1.0  # without work, after which one that has not had its turn makes room
FORGET_SECONDS = 60.0  # without a request, after which one is the first to be refused again


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A model as configured. at_start: loaded with the server, not on demand.

    explain: adds to an error where the model's settings come from (a line of a file).
    """

    name: str
    config: EngineConfig
    at_start: bool = True
    explain: Callable[[UserError], UserError] = lambda error: error


class FleetModel:
    """One model and its state. engine: its supervisor, from loading to unloaded."""

    def __init__(self, plan: ModelSpec) -> None:
        self.plan = plan
        self.state: ModelState = "unloaded"
        self.footprint: Footprint | None = None
        self.quality: Quality | None = None
        self.engine: EngineSupervisor | None = None
        self.failure = ""
        self.failed_at = -FAILURE_SECONDS
        self.retry_after = FAILURE_SECONDS
        self.turn_began = 0.0  # when it was loaded, or last could not make room
        self.declined_at = -TURN_SECONDS  # when it last was in use as it was asked to make room
        self._first_refused = self._last_refused = -FORGET_SECONDS  # for want of memory
        self.changing = asyncio.Lock()  # held while it is loaded or unloaded
        self.load: asyncio.Task[None] | None = None  # a load that a request asked for
        self.consents: dict[str, asyncio.Future[bool]] = {}  # may it be unloaded? by API process
        self.num_questions = 0  # of that kind, so that no late reply to one answers the next

    @property
    def num_bytes(self) -> int | None:
        """Memory while it is loaded, in bytes; None before it has been measured."""
        return None if self.footprint is None else self.footprint.total

    @property
    def size_text(self) -> str:
        """Its memory as text for error messages."""
        assert self.footprint is not None, "it has been measured"
        return str(self.footprint)

    @property
    def can_retry(self) -> bool:
        """Whether the last failed load is long enough ago."""
        return time.monotonic() - self.failed_at > FAILURE_SECONDS

    @property
    def can_unload(self) -> bool:
        """Whether it is loaded, and is not being unloaded or loaded again."""
        return self.state == "loaded" and not self.changing.locked()

    @property
    def has_had_turn(self) -> bool:
        """Whether it has been loaded for so long that it makes room, even if it is in use."""
        return time.monotonic() - self.turn_began > TURN_SECONDS

    @property
    def seconds_until_idle(self) -> float:
        """For how long it is not even asked to make room; 0: it is idle, or has had its turn.

        One that declined has begun another turn in this respect: it is not asked at each request.
        """
        now = time.monotonic()
        if self.engine is None or now - max(self.turn_began, self.declined_at) > TURN_SECONDS:
            return 0.0
        return max(0.0, max(self.engine.last_used, self.turn_began) + IDLE_SECONDS - now)

    async def measure(self, memory_bytes: int | None) -> None:
        """Check its files; learn its size and quality. memory_bytes: the limit, if there is one.

        Downloads files if need be. Raises ConfigError or CheckpointError.
        """
        self.quality = None
        loop = asyncio.get_running_loop()
        note = loop.call_later(NOTE_SECONDS, _note_slow_files, self.plan.name)
        try:
            measured = await in_detached_thread(partial(_measured, self.plan.config, memory_bytes))
        except QualityGateError as error:
            self.quality = error.quality  # /v1/models tells it of refused weights, too
            raise
        finally:
            note.cancel()
        config, self.footprint, self.quality = measured
        self.plan = msgspec.structs.replace(self.plan, config=config)

    def may_demand_memory(self) -> bool:
        """Record that there is no memory for it; returns whether that has lasted for long."""
        now = time.monotonic()
        if now - self._last_refused > FORGET_SECONDS:
            self._first_refused = now
        self._last_refused = now
        return now - self._first_refused > TURN_SECONDS

    def record_loaded(self, kv_cache_bytes: int) -> None:
        """Record that it is loaded, and the size of its KV cache, which is known now."""
        assert self.footprint is not None, "it has been measured"
        self.footprint = msgspec.structs.replace(self.footprint, kv_cache=kv_cache_bytes)
        self.turn_began, self._last_refused = time.monotonic(), -FORGET_SECONDS

    def record_consent(self, client: str, *, agreed: bool) -> None:
        """Record whether an API process agrees that the model is unloaded."""
        consent = self.consents.get(client)
        if consent is not None and not consent.done():
            consent.set_result(agreed)

    def status(self) -> ModelStatus:
        """Its state as a message to API processes."""
        return ModelStatus(
            name=self.plan.name,
            aliases=self.plan.config.model.aliases,
            state=self.state,
            at_start=self.plan.at_start,
            max_num_seqs=self.plan.config.scheduler.max_num_seqs,
            num_bytes=self.num_bytes,
            failure=self.failure,
            retry_after=self.retry_after,
            quality=self.quality,
        )


def _measured(
    config: EngineConfig, limit: int | None
) -> tuple[EngineConfig, Footprint, Quality | None]:
    """The settings for all processes of a model, which are checked, its footprint and quality.

    Imports late: meanwhile the API processes start.
    """
    from quire.engine.startup.device_policy import device_type
    from quire.engine.startup.footprint import footprint_of
    from quire.engine.startup.resolved_config import check_start

    quality = check_start(config, device_type(config))
    footprint = footprint_of(config, limit)
    return pinned(config), footprint, quality


def _note_slow_files(name: str) -> None:
    text = "the files of model %s are still being downloaded or read after %.0f s; open: %s"
    logger.warning(text, name, NOTE_SECONDS, open_files(os.getpid()))
