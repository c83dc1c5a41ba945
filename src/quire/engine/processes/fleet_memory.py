"""The memory limit of a server's models: whether a model fits, and which make room for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from quire.engine.processes.fleet_model import FleetModel, ModelSpec
from quire.errors import ConfigError, QuireError

if TYPE_CHECKING:
    from quire.engine.startup.footprint import Footprint

DRAIN_SECONDS = 60.0  # for the requests of a model that makes room; longer ones go on


class OutOfModelMemoryError(QuireError):
    """The memory limit is reached, and all other models are in use."""


def limit_problems(models: Sequence[tuple[ModelSpec, Footprint]], limit: float) -> dict[str, str]:
    """The problems of models that do not fit in model_memory_bytes, by name. limit: that."""
    problems = {
        model.name: f"model {model.name} takes {size}, but model_memory_bytes is {limit:,}; "
        "raise it, or lower kv_cache_memory_bytes"
        for model, size in models
        if size.total > limit
    }
    first = {model.name: size.total for model, size in models if model.at_start}
    if (needed := sum(first.values())) > limit:
        text = (
            f"the models of the start take {needed:,} bytes, but model_memory_bytes is {limit:,}; "
            "raise it, or load some of them on_demand"
        )
        problems = dict.fromkeys(first, text) | problems
    return problems


class FleetMemory:
    """Makes room for a model among all others.

    models: of the server, by name. limit: bytes of all loaded ones. unload: unloads a model if it
    is not in use any more after so many seconds; called with its `changing` held.
    """

    def __init__(
        self,
        models: Mapping[str, FleetModel],
        limit: float,
        unload: Callable[[FleetModel, float], Coroutine[Any, Any, None]],
    ) -> None:
        self._models, self._limit, self._unload = models, limit, unload
        self._lock = asyncio.Lock()  # held while memory is being freed
        self._claimant: FleetModel | None = None  # which it is being freed for
        self._due: list[FleetModel] = []  # those whose unloading makes room for it

    def check(self, models: Sequence[FleetModel]) -> None:
        """Raise ConfigError if models do not fit in the memory limit, however few are loaded."""
        sizes = [(model.plan, model.footprint) for model in models]
        measured = [(plan, size) for plan, size in sizes if size is not None]
        for problem in limit_problems(measured, self._limit).values():
            raise ConfigError(problem)

    async def ensure_fits(self, model: FleetModel) -> None:
        """Return when a model fits; unloads others. Raises ConfigError or OutOfModelMemoryError."""
        self.check([model])
        if self._fits_now(model):
            return
        async with self._lock:
            try:
                await self._free_memory(model)
            finally:
                self._claimant, self._due = None, []

    async def _free_memory(self, model: FleetModel) -> None:
        """Unload least recently used models, if this one fits then. Raises OutOfModelMemoryError.

        Those in use are not asked before they have had their turn: between two requests of a client
        nothing is in flight, and models would be swapped all the time.
        If all are in use, and have been while requests of this one were refused, those that were
        loaded first get no new requests until theirs have ended.
        """
        self._claimant = model
        others = [other for other in self._models.values() if other.engine is not None]
        others.sort(key=lambda other: 0.0 if other.engine is None else other.engine.last_used)
        await self._unload_enough(model, [o for o in others if not o.seconds_until_idle])
        if self._num_bytes_with(model) > self._limit and model.may_demand_memory():
            idle = [o for o in others if not (o.seconds_until_idle or o.has_had_turn)]
            due = sorted((o for o in others if o.has_had_turn), key=lambda other: other.turn_began)
            await self._unload_enough(model, idle + due, grace=DRAIN_SECONDS)
        if (needed := self._num_bytes_with(model)) > self._limit:
            loaded = ", ".join(f"{o.plan.name} ({o.size_text})" for o in others if o.engine)
            raise OutOfModelMemoryError(
                f"model {model.plan.name} takes {model.size_text}; with those that are in use, "
                f"{loaded}, that would be {needed:,} of {self._limit:,} bytes; send it again later"
            )

    async def _unload_enough(
        self, model: FleetModel, others: Sequence[FleetModel], grace: float = 0.0
    ) -> None:
        """Unload as many others, in this order, as free enough for a model; if all do not, none.

        Those that are changing stay, and those in use: after grace seconds if they have had their
        turn, else at once. Without grace the last one is asked first: the most recently used, which
        may refuse before another makes room in vain.
        """
        left = [other for other in others if other.can_unload]
        while (missing := self._num_bytes_with(model) - self._limit) > 0:
            freed = accumulate(other.num_bytes or 0 for other in left)
            count = next((i for i, size in enumerate(freed, 1) if size >= missing), 0)
            if count == 0:
                return
            self._due = left[:count]
            other = left.pop(0 if grace else count - 1)
            if other.can_unload:  # and not changing meanwhile
                async with other.changing:
                    await self._unload(other, grace if other.has_had_turn else 0.0)

    def _fits_now(self, model: FleetModel) -> bool:
        """Whether it fits as it is, and still beside the one that memory is being freed for."""
        claimant = self._claimant or model
        after = self._num_bytes_with(model, claimant, without=self._due)
        return max(self._num_bytes_with(model), after) <= self._limit

    def _num_bytes_with(self, *models: FleetModel, without: Sequence[FleetModel] = ()) -> int:
        """Memory of these models and all loaded ones but those without."""
        loaded = {other for other in self._models.values() if other.engine is not None}
        return sum(other.num_bytes or 0 for other in loaded.difference(without).union(models))
