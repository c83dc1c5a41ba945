"""The models of one server, as requests name them.

Owns which names there are, and what a route has to know of a model before it may run: its engine,
how its answers are read, and how many answers of it are in the house. Looking one up is one read of
a dict: every request does it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quire.errors import ModelNotFoundError
from quire.server.admission import Admission, Capacity
from quire.server.engine_protocol import EngineProtocol
from quire.server.parsing.choose import AnswerFormats, choose_formats
from quire.server.settings import ServerSettings


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """A model that can be asked. formats: how it writes tool calls and thoughts."""

    name: str
    engine: EngineProtocol
    formats: AnswerFormats
    admission: Admission

    @classmethod
    def of(cls, engine: EngineProtocol, settings: ServerSettings) -> Served:
        """A model with its part of what the settings let in."""
        capacity = Capacity.share(
            engine.info.limits,
            settings.max_queued_requests,
            settings.max_queued_tokens,
            settings.api_server_count,
        )
        formats = choose_formats(
            engine.tokenizer.chat_template_text,
            engine.tokenizer.chat_variables,
            tools=settings.tool_call_parser,
            reasoning=settings.reasoning_parser,
        )
        return cls(engine.info.model_name, engine, formats, Admission(capacity))


class ServedModels:
    """All models, by name. first: the one that requests without a name are for."""

    def __init__(self, first: Served) -> None:
        self.first = first
        self._by_name: dict[str | None, Served] = {None: first, first.name: first}

    def find(self, name: str | None) -> Served:
        """The model that a request names. Raises ModelNotFoundError."""
        served = self._by_name.get(name)
        if served is None:
            raise self._unknown(str(name))
        return served

    def all(self) -> list[Served]:
        """Each model once, the first one first."""
        return list(dict.fromkeys(self._by_name.values()))

    def follow(self, on_new: Callable[[EngineProtocol], None]) -> None:
        """Tell of each engine, those of now and those to come."""
        for served in self.all():
            on_new(served.engine)

    @property
    def is_any_alive(self) -> bool:
        """Whether there is a model that can answer now."""
        return any(served.engine.is_alive for served in self._by_name.values())

    @property
    def entrance(self) -> Admission:
        """Where requests are counted while it is not known yet which model they name."""
        return self.first.admission

    async def close(self) -> None:
        """Leave all engines."""
        for served in self.all():
            await served.engine.close()

    def _unknown(self, name: str) -> ModelNotFoundError:
        known = " or ".join(repr(served.name) for served in self.all())
        return ModelNotFoundError(
            f"model: {name[:128]!r} is not served here; use {known}, or leave it out"
        )
