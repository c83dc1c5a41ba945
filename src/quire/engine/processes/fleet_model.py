"""One model of a server: its settings and its state. model_fleet.py changes the state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from quire.config import EngineConfig
from quire.engine.processes.control_channel import ModelState, ModelStatus
from quire.engine.processes.engine_supervisor import EngineSupervisor
from quire.errors import UserError

if TYPE_CHECKING:
    from quire.engine.startup.footprint import Footprint

FAILURE_SECONDS = 5.0  # after a failed load, until it is tried again


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
        self.engine: EngineSupervisor | None = None
        self.failure = ""
        self.failed_at = -FAILURE_SECONDS
        self.retry_after = FAILURE_SECONDS
        self.changing = asyncio.Lock()  # held while it is loaded or unloaded
        self.load: asyncio.Task[None] | None = None  # a load that a request asked for
        self.consents: dict[str, asyncio.Future[bool]] = {}  # may it be unloaded? by API process

    @property
    def num_bytes(self) -> int | None:
        """Memory while it is loaded, in bytes; None before it has been measured."""
        return None if self.footprint is None else self.footprint.total

    @property
    def size_text(self) -> str:
        """Its memory as text for error messages."""
        size = self.footprint
        assert size is not None, "it has been measured"
        parts = f"weights {size.weights:,}, KV cache {size.kv_cache:,}, process {size.base:,}"
        return f"{size.total:,} bytes ({parts})"

    @property
    def can_retry(self) -> bool:
        """Whether the last failed load is long enough ago."""
        return time.monotonic() - self.failed_at > FAILURE_SECONDS

    def set_kv_cache_bytes(self, num_bytes: int) -> None:
        """Set the size of its KV cache, once that is known."""
        assert self.footprint is not None, "it has been measured"
        self.footprint = msgspec.structs.replace(self.footprint, kv_cache=num_bytes)

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
        )
