"""ModelRegistry: the models of one server by the names that requests use.

Owns the names, and what a route needs to know of a model: its engine, how its output is parsed, and
its admission control. Finding a model is one read of a dict, since every request does it. How
models are loaded and unloaded is in model_loading.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from quire.engine.core.engine_info import EngineInfo
from quire.engine.frontend.async_engine import AsyncEngine
from quire.engine.processes.control_channel import ModelState, ModelStatus
from quire.errors import ModelNotFoundError, ModelNotLoadedError
from quire.server.admission.admission_control import Admission, Capacity
from quire.server.admission.in_flight import InFlightCounter, local_counters
from quire.server.parsing.template_variables import known_defaults, parse_template_defaults
from quire.server.parsing.tool_parsers import ModelParsers, choose_parsers
from quire.server.settings import ServerSettings
from quire.version import __version__

_LATEST = ":latest"


class RegisteredModel(msgspec.Struct, frozen=True, eq=False):
    """A loaded model. parsers: for its tool calls and reasoning.

    request_defaults: the fields that a generation request has where it leaves them out, by name.
    fingerprint: the system_fingerprint of its answers. template_defaults: variables of its chat
    template that requests get which do not set them. forces_usage: whether each chunk of a stream
    has token counts, whatever its request says.
    """

    name: str
    engine: AsyncEngine
    parsers: ModelParsers
    admission: Admission
    request_defaults: Mapping[str, float]
    fingerprint: str
    template_defaults: Mapping[str, Any] = msgspec.field(default_factory=dict)
    forces_usage: bool = False


class ModelEntry:
    """One model name, whether the model is loaded or not.

    model: None until it is loaded for the first time. num_waiting: requests that wait for it to be
    loaded.
    """

    def __init__(self, status: ModelStatus, admission: Admission) -> None:
        self.status = status
        self.admission = admission
        self.model: RegisteredModel | None = None
        self.num_waiting = 0

    @property
    def name(self) -> str:
        """The name that requests use."""
        return self.status.name

    @property
    def is_usable(self) -> bool:
        """Whether requests can find it."""
        return self.status.state == "loaded" and self.model is not None

    @property
    def state(self) -> ModelState:
        """Its state here: "loading" until this process is connected to a loaded model."""
        is_loading = self.status.state == "loaded" and self.model is None
        return "loading" if is_loading else self.status.state

    @property
    def num_running(self) -> int:
        """Answers of this process that use the model, or are about to."""
        return self.admission.in_flight.num_own_answers - self.num_waiting


class ModelRegistry:
    """All models by name; requests without a name get the first.

    make_counters: makes a number of counters, shared with the other API processes.
    """

    def __init__(
        self,
        statuses: Sequence[ModelStatus],
        settings: ServerSettings,
        make_counters: Callable[[int], list[InFlightCounter]] = local_counters,
    ) -> None:
        self._settings = settings
        self._on_engine: list[Callable[[AsyncEngine], None]] = []
        capacities = [self._capacity(status) for status in statuses]
        num_counters = 1 if len(statuses) == 1 else 1 + len(statuses)
        first, *others = make_counters(num_counters)
        # counts requests that are not parsed yet, so that their model is unknown
        self.entrance = Admission(_sum(capacities), in_flight=first)
        parts = [self.entrance]
        if others:
            parts = [
                Admission(capacity, in_flight=counter, parent=self.entrance)
                for capacity, counter in zip(capacities, others, strict=True)
            ]
        entries = map(ModelEntry, statuses, parts)
        self._entries = {entry.name: entry for entry in entries}
        self._names = {  # of all that requests may use; a model's own name goes before an alias
            alias: status.name for status in statuses for alias in status.aliases
        } | {name: name for name in self._entries}
        self._first = statuses[0].name
        self._loaded: dict[str | None, RegisteredModel] = {}

    @classmethod
    def of(cls, engine: AsyncEngine, settings: ServerSettings) -> ModelRegistry:
        """A registry of one model that is loaded and stays."""
        info = engine.info
        seqs = info.limits.max_num_seqs
        status = ModelStatus(name=info.model_name, state="loaded", at_start=True, max_num_seqs=seqs)
        models = cls([status], settings)
        models.attach(info.model_name, engine)
        return models

    # ------------------------------------------------------------------ for requests

    def find(self, name: str | None) -> RegisteredModel:
        """The loaded model of this name; of none, or of an empty one, the first.

        Raises ModelNotFoundError or ModelNotLoadedError.
        """
        name = name or None
        model = self._loaded.get(name) or self._loaded.get(name and self._untagged(name))
        if model is None:
            raise self._missing(name)
        return model

    def entry(self, name: str | None) -> ModelEntry:
        """The entry of a model, loaded or not. Raises ModelNotFoundError."""
        known = self._first if name is None else self._names.get(self._untagged(name))
        if known is None:
            raise ModelNotFoundError(self._unknown(str(name)))
        return self._entries[known]

    def named_entries(self) -> list[tuple[str, ModelEntry]]:
        """All models by all names that requests may use, the default model first."""
        aliases = {name: self._entries[own] for name, own in self._names.items()}
        return list((self._entries | aliases).items())

    def entries(self) -> list[ModelEntry]:
        """The entries of all models, the default model first."""
        return list(self._entries.values())

    def loaded(self) -> list[RegisteredModel]:
        """All loaded models, the default model first."""
        return [self._loaded[name] for name in self._entries if name in self._loaded]

    @property
    def may_answer(self) -> bool:
        """Whether any model runs or can be loaded."""
        for model in self._loaded.values():
            if model.engine.is_alive:
                return True
        return len(self.loaded()) < len(self._entries)

    # ------------------------------------------------------------------ loading and unloading

    def attach(self, name: str, engine: AsyncEngine) -> None:
        """Connect a model that was loaded for the first time to its engine, for good."""
        entry = self._entries[name]
        tokenizer = engine.tokenizer
        parsers = choose_parsers(
            tokenizer.chat_template_text,
            tokenizer.chat_variables,
            tools=self._settings.tool_call_parser,
            reasoning=self._settings.reasoning_parser,
        )
        defaults = engine.info.sampling_defaults
        if self._settings.return_tokens_as_token_ids:
            defaults = defaults | {"return_tokens_as_token_ids": True}
        variables = parse_template_defaults(self._settings.default_chat_template_kwargs)
        entry.model = RegisteredModel(
            name=name,
            engine=engine,
            parsers=parsers,
            admission=entry.admission,
            request_defaults=defaults,
            fingerprint=_fingerprint(engine.info),
            template_defaults=known_defaults(variables, tokenizer.chat_variables, name),
            forces_usage=self._settings.enable_force_include_usage,
        )
        entry.admission.capacity = self._capacity(entry.status, engine.info.limits.max_kv_tokens)
        for on_engine in self._on_engine:
            on_engine(engine)
        self.set_status(entry.status)

    def set_status(self, status: ModelStatus) -> None:
        """Update a model's state, as the parent process reports it."""
        entry = self._entries[status.name]
        entry.status = status
        names = [name for name, own in self._names.items() if own == entry.name]
        for name in (*names, None) if entry.name == self._first else names:
            if entry.is_usable and entry.model is not None:
                self._loaded[name] = entry.model
            else:
                self._loaded.pop(name, None)

    def on_engine(self, callback: Callable[[AsyncEngine], None]) -> None:
        """Call back for each engine: those known now, and later ones."""
        self._on_engine.append(callback)
        for entry in self._entries.values():
            if entry.model is not None:
                callback(entry.model.engine)

    async def close(self) -> None:
        """Close the connections to all engines."""
        for entry in self._entries.values():
            if entry.model is not None:
                await entry.model.engine.close()

    def _capacity(self, status: ModelStatus, max_kv_tokens: int | None = None) -> Capacity:
        """The capacity of one model. Tokens are counted once the size of the KV cache is known."""
        tokens = self._settings.max_queued_tokens
        return Capacity(
            max_running=status.max_num_seqs,
            max_waiting=self._settings.max_queued_requests,
            max_prompt_tokens=(
                None if tokens is None or max_kv_tokens is None else max_kv_tokens + tokens
            ),
        )

    def _missing(self, name: str | None) -> ModelNotLoadedError | ModelNotFoundError:
        if name is not None and self._untagged(name) not in self._names:
            return ModelNotFoundError(f"{self._unknown(name)}, or leave it out")
        entry = self.entry(name)
        status = entry.status
        text = f"model {entry.name} is {entry.state}; send the request again later"
        return ModelNotLoadedError(
            entry.name, status.failure or text, retry_after=status.retry_after
        )

    def _untagged(self, name: str) -> str:
        """The name without the tag of Ollama's clients, unless a model has it with the tag."""
        return name if name in self._names else name.removesuffix(_LATEST)

    def _unknown(self, name: str) -> str:
        known = " or ".join(repr(known) for known, _ in self.named_entries())
        return f"model: {name[:128]!r} is not served here; use {known}"


def _fingerprint(info: EngineInfo) -> str:
    """The system_fingerprint of a started engine, such as "build-0.1.0-5f0c2d1e".

    It changes with what made an answer, but not with other weights under the same name. It begins
    with "b", as that of llama.cpp's server, whose clients look for the build there.
    """
    facts = (info.model_name, info.dtype, info.device, info.quantization, info.kv_cache_dtype)
    digest = hashlib.sha256("\0".join(facts).encode()).hexdigest()[:8]
    return f"build-{__version__}-{digest}"


def _sum(capacities: Sequence[Capacity]) -> Capacity:
    """The capacity of all models together. Prompt tokens are bounded for each model alone."""
    if len(capacities) == 1:
        return capacities[0]
    return Capacity(
        max_running=sum(capacity.max_running for capacity in capacities),
        max_waiting=sum(capacity.max_waiting for capacity in capacities),
    )
