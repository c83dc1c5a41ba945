"""One model of a server: how the settings name it, and what has become of it.

Owns its state; who changes it is model_fleet.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from quire.config import EngineConfig
from quire.engine.processes.control_channel import ModelState, ModelStatus
from quire.engine.processes.process_supervisors import EngineSupervisor
from quire.engine.startup.footprint import Footprint
from quire.errors import UserError

FAILURE_SECONDS = 5.0  # for which a model that could not be loaded is not tried again


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """A model as the settings name it. at_start: loaded with the server, not on demand.

    explain: makes of what is wrong with it an error that says where its settings come from.
    """

    name: str
    config: EngineConfig
    at_start: bool = True
    explain: Callable[[UserError], UserError] = lambda error: error


class Model:
    """One model and what has become of it."""

    def __init__(self, plan: ModelSpec) -> None:
        self.plan = plan
        self.state: ModelState = "unloaded"
        self.footprint: Footprint | None = None
        self.keeper: EngineSupervisor | None = None  # from loading to unloaded
        self.failure = ""
        self.failed_at = -FAILURE_SECONDS
        self.retry_after = FAILURE_SECONDS
        self.changing = asyncio.Lock()  # held by who loads or unloads it
        self.load: asyncio.Task[None] | None = None  # that somebody has asked for
        self.answers: dict[str, asyncio.Future[bool]] = {}  # may it leave? by API process

    @property
    def num_bytes(self) -> int | None:
        """Of memory while it is loaded, None before its files were looked at."""
        return None if self.footprint is None else self.footprint.total

    @property
    def size_in_words(self) -> str:
        """How much, of what. Its files have been looked at."""
        size = self.footprint
        assert size is not None, "it has been measured"
        parts = f"weights {size.weights:,}, KV cache {size.kv_cache:,}, process {size.base:,}"
        return f"{size.total:,} bytes ({parts})"

    @property
    def may_be_tried(self) -> bool:
        """Whether the last failure to load it is long enough ago."""
        return time.monotonic() - self.failed_at > FAILURE_SECONDS

    def note_kv_cache(self, num_bytes: int) -> None:
        """The KV cache has its size now."""
        assert self.footprint is not None, "it has been measured"
        self.footprint = replace(self.footprint, kv_cache=num_bytes)

    def note_answer(self, client: str, *, agreed: bool) -> None:
        """An API process says whether it may leave, if it was asked."""
        answer = self.answers.get(client)
        if answer is not None and not answer.done():
            answer.set_result(agreed)

    def condition(self) -> ModelStatus:
        """As API processes have to know it."""
        return ModelStatus(
            name=self.plan.name,
            state=self.state,
            at_start=self.plan.at_start,
            max_num_seqs=self.plan.config.scheduler.max_num_seqs,
            num_bytes=self.num_bytes,
            failure=self.failure,
            retry_after=self.retry_after,
        )
