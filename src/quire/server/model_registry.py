"""The models of one server, as requests name them.

Owns which names there are, and what a route has to know of a model before it may run: its engine,
how its answers are read, and how many answers of it are in the house. Looking one up is one read of
a dict: every request does it. How models come and go is model_loading.py's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quire.engine.processes.control_channel import ModelCondition
from quire.errors import ModelNotFoundError, ModelNotLoadedError
from quire.server.admission.admission_control import Admission, Capacity
from quire.server.admission.in_flight import InFlightCounter, own_counts
from quire.server.engine_protocol import EngineProtocol
from quire.server.parsing.choose_parser import AnswerFormats, choose_formats
from quire.server.settings import ServerSettings


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """A model that can be asked. formats: how it writes tool calls and thoughts."""

    name: str
    engine: EngineProtocol
    formats: AnswerFormats
    admission: Admission


class Entry:
    """One name of the server's, whether its model is loaded or not.

    served: from its first loading on; num_waiting: requests that wait for it to be loaded.
    """

    def __init__(self, condition: ModelCondition, admission: Admission) -> None:
        self.condition = condition
        self.admission = admission
        self.served: Served | None = None
        self.num_waiting = 0

    @property
    def name(self) -> str:
        """As requests name it."""
        return self.condition.name

    @property
    def is_usable(self) -> bool:
        """Whether requests can find it."""
        return self.condition.state == "loaded" and self.served is not None

    @property
    def state(self) -> str:
        """In words. A loaded one is not there for a process that has not met its engine yet."""
        if self.condition.state == "loaded" and self.served is None:
            return "about to be ready"
        return self.condition.state

    @property
    def num_running(self) -> int:
        """Answers of this process that use the model, or are about to."""
        return self.admission.heads.num_own_answers - self.num_waiting


class ModelRegistry:
    """All models by name; the first is the one that requests without a name are for.

    counts: makes so many of them, which the server's processes may share.
    """

    def __init__(
        self,
        conditions: Sequence[ModelCondition],
        settings: ServerSettings,
        counts: Callable[[int], list[InFlightCounter]] = own_counts,
    ) -> None:
        self._settings = settings
        self._on_new: list[Callable[[EngineProtocol], None]] = []
        shares = [self._capacity(condition) for condition in conditions]
        first, *others = counts(1 if len(conditions) == 1 else 1 + len(conditions))
        # where requests are counted that name none yet
        self.entrance = Admission(_sum(shares), heads=first)
        parts = [self.entrance]
        if others:
            parts = [
                Admission(share, heads=heads, house=self.entrance)
                for share, heads in zip(shares, others, strict=True)
            ]
        self._entries = {c.name: Entry(c, part) for c, part in zip(conditions, parts, strict=True)}
        self._first = conditions[0].name
        self._loaded: dict[str | None, Served] = {}

    @classmethod
    def of(cls, engine: EngineProtocol, settings: ServerSettings) -> ModelRegistry:
        """One model that is there and stays."""
        info = engine.info
        seqs = info.limits.max_num_seqs
        condition = ModelCondition(
            name=info.model_name, state="loaded", at_start=True, max_num_seqs=seqs
        )
        models = cls([condition], settings)
        models.attach(info.model_name, engine)
        return models

    # ------------------------------------------------------------------ for requests

    def find(self, name: str | None) -> Served:
        """The model that a request names. Raises ModelNotFoundError or ModelNotLoadedError."""
        served = self._loaded.get(name)
        if served is None:
            raise self._absent(name)
        return served

    def entry(self, name: str | None) -> Entry:
        """The model by its name, loaded or not. Raises ModelNotFoundError."""
        entry = self._entries.get(self._first if name is None else name)
        if entry is None:
            raise ModelNotFoundError(self._unknown(str(name)))
        return entry

    def entries(self) -> list[Entry]:
        """All models, the first one first."""
        return list(self._entries.values())

    def loaded(self) -> list[Served]:
        """Those that can be asked now."""
        return [served for name, served in self._loaded.items() if name is not None]

    @property
    def may_answer(self) -> bool:
        """Whether a request can come: there is a model that runs, or that can be loaded."""
        for served in self._loaded.values():
            if served.engine.is_alive:
                return True
        return len(self.loaded()) < len(self._entries)

    # ------------------------------------------------------------------ models that come and go

    def attach(self, name: str, engine: EngineProtocol) -> None:
        """The model was loaded for the first time: this is its engine, for good."""
        entry = self._entries[name]
        tokenizer = engine.tokenizer
        formats = choose_formats(
            tokenizer.chat_template_text,
            tokenizer.chat_variables,
            tools=self._settings.tool_call_parser,
            reasoning=self._settings.reasoning_parser,
        )
        entry.served = Served(name, engine, formats, entry.admission)
        entry.admission.capacity = self._capacity(entry.condition, engine.info.limits.max_kv_tokens)
        for on_new in self._on_new:
            on_new(engine)
        self.tell(entry.condition)

    def tell(self, condition: ModelCondition) -> None:
        """The model is like this now."""
        entry = self._entries[condition.name]
        entry.condition = condition
        names = (entry.name, None) if entry.name == self._first else (entry.name,)
        for name in names:
            if entry.is_usable and entry.served is not None:
                self._loaded[name] = entry.served
            else:
                self._loaded.pop(name, None)

    def follow(self, on_new: Callable[[EngineProtocol], None]) -> None:
        """Tell of each engine, those of now and those to come."""
        self._on_new.append(on_new)
        for entry in self._entries.values():
            if entry.served is not None:
                on_new(entry.served.engine)

    async def close(self) -> None:
        """Leave all engines."""
        for entry in self._entries.values():
            if entry.served is not None:
                await entry.served.engine.close()

    def _capacity(self, condition: ModelCondition, max_kv_tokens: int | None = None) -> Capacity:
        """What the settings let in. Tokens are counted once the KV cache is known."""
        tokens = self._settings.max_queued_tokens
        return Capacity(
            max_running=condition.max_num_seqs,
            max_waiting=self._settings.max_queued_requests,
            max_prompt_tokens=(
                None if tokens is None or max_kv_tokens is None else max_kv_tokens + tokens
            ),
        )

    def _absent(self, name: str | None) -> ModelNotLoadedError | ModelNotFoundError:
        if name is not None and name not in self._entries:
            return ModelNotFoundError(f"{self._unknown(name)}, or leave it out")
        entry = self.entry(name)
        found = entry.condition
        return ModelNotLoadedError(
            found.name,
            found.failure or f"model {found.name} is {entry.state}; send the request again later",
            retry_after=found.retry_after,
        )

    def _unknown(self, name: str) -> str:
        known = " or ".join(map(repr, self._entries))
        return f"model: {name[:128]!r} is not served here; use {known}"


def _sum(shares: Sequence[Capacity]) -> Capacity:
    """What all models together take in. Prompt tokens are each model's own matter."""
    if len(shares) == 1:
        return shares[0]
    return Capacity(
        max_running=sum(share.max_running for share in shares),
        max_waiting=sum(share.max_waiting for share in shares),
    )
