"""What the admin endpoints take and tell, as it stands in JSON."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from quire.core.messages import EngineStats
from quire.engine.processes.control_channel import ModelState


class AdmissionStats(msgspec.Struct):
    """What the server has let in, and may, over its processes. num_refused: by this one."""

    num_answers: int
    num_waiting: int
    num_prompt_tokens: int
    num_refused: int
    max_answers: int


class AdminStats(msgspec.Struct):
    """All that is counted of one model. num_tasks: asyncio tasks of this server process."""

    engine: EngineStats
    admission: AdmissionStats
    num_tasks: int


class ModelStatus(msgspec.Struct, kw_only=True):
    """One model. num_bytes: what it takes while it is loaded. failure: of the latest loading.

    idle_seconds: since it had work; None if it never had. running, waiting: its requests in the
    engine; waiting_for_load: those of this process that it is being loaded for.
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
    """All models. num_bytes: of the loaded ones; limit_bytes: what those may take together."""

    models: list[ModelStatus]
    num_bytes: int
    limit_bytes: int | None


class LoadRequest(msgspec.Struct):
    """Which model to load."""

    model: str


class UnloadRequest(msgspec.Struct):
    """Which model to unload. grace: seconds that its requests have to end."""

    model: str
    grace: Annotated[float, msgspec.Meta(ge=0.0)] | None = None


class Done(msgspec.Struct):
    """It was done."""

    status: Literal["ok"] = "ok"
