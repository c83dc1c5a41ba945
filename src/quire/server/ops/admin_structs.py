"""The structs that the admin endpoints take and return."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from quire.core.messages import EngineStats
from quire.engine.processes.control_channel import ModelState


class AdmissionStats(msgspec.Struct):
    """Requests in flight and their limit, over all API processes. num_refused: by this one."""

    num_answers: int
    num_waiting: int
    num_prompt_tokens: int
    num_refused: int
    max_answers: int


class AdminStats(msgspec.Struct):
    """All counters of one model. num_tasks: asyncio tasks of this API process."""

    engine: EngineStats
    admission: AdmissionStats
    num_tasks: int


class ModelStatus(msgspec.Struct, kw_only=True):
    """One model. num_bytes: its memory while it is loaded. failure: of the latest loading.

    idle_seconds: since it had work; None if it never had. running, waiting: its requests in the
    engine; waiting_for_load: requests of this process that wait for it to be loaded.
    """

    name: str
    state: ModelState
    at_start: bool
    num_bytes: int | None
    idle_seconds: float | None
    running: int
    waiting: int
    waiting_for_load: int
    failure: str | None


class ModelStatuses(msgspec.Struct):
    """All models. num_bytes: of the loaded ones together; limit_bytes: their limit."""

    models: list[ModelStatus]
    num_bytes: int
    limit_bytes: int | None


class LoadRequest(msgspec.Struct):
    """Body of the load endpoint: which model to load."""

    model: str


class UnloadRequest(msgspec.Struct):
    """The model to unload. grace: seconds for its requests to finish."""

    model: str
    grace: Annotated[float, msgspec.Meta(ge=0.0)] | None = None


class Done(msgspec.Struct):
    """Reply: the action was done."""

    status: Literal["ok"] = "ok"
