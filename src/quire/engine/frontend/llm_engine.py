"""LLMEngine: requests that come one by one, and steps that the caller runs, as vLLM has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self, Unpack

from quire.compat.missing_names import ModelOwner
from quire.compat.own_options import OPTION_SCOPES, names_as_given
from quire.compat.sleep_tags import check_level
from quire.config import EngineConfig
from quire.core.request_output import RequestOutput
from quire.core.sampling_params import RequestOutputKind, SamplingParams
from quire.engine.core.deferred_interrupt import DeferredInterrupt
from quire.engine.frontend.input_processor import PreparedRequest
from quire.engine.frontend.loaded_model import LoadedModel
from quire.engine.frontend.output_processor import OutputProcessor, Processed
from quire.engine.frontend.output_queue import StreamedItems, streamed_items
from quire.engine.frontend.prompt_options import EncodingOptions, read_one_call, refuse_unknown
from quire.engine.frontend.request_metrics import RequestMetrics
from quire.engine.startup.resolved_config import check_files
from quire.errors import QuireError, invalid_value
from quire.tokenizer.load_tokenizer import load_tokenizer
from quire.tokenizer.transformers_api import TransformersTokenizer


class LLMEngine(ModelOwner, LoadedModel):
    """A model whose steps its caller runs. For one thread.

    Items have the answer so far, unless the params have another output_kind.
    """

    def __init__(self, config: EngineConfig) -> None:
        check_files(config)  # before the model is loaded
        super().__init__(config, load_tokenizer(config))
        self._outputs = OutputProcessor(self.tokenizer, RequestMetrics())
        self._requests: dict[str, tuple[PreparedRequest, StreamedItems | None]] = {}
        # the caller's id by the engine's, which is never used again: its abort may be under way
        self._names: dict[str, str] = {}
        self._items: list[RequestOutput] = []  # of steps, not returned yet
        self._failures: list[tuple[str, QuireError]] = []  # of requests by id, not raised yet

    @classmethod
    def from_engine_args(cls, engine_args: Any, **_: Any) -> Self:
        """Load the model of EngineArgs. Raises ConfigError or CheckpointError."""
        settings = engine_args.settings()
        with names_as_given(settings, OPTION_SCOPES):
            return cls(EngineConfig.from_options(**settings))

    def add_request(
        self,
        request_id: str,
        prompt: Any,
        params: SamplingParams,
        *,
        priority: int = 0,
        **encoding: Unpack[EncodingOptions],
    ) -> str:
        """Start a request; returns its id. prompt, encoding: as `LLM.generate` takes them.

        Raises InvalidRequestError.
        """
        if request_id in self._requests:
            raise invalid_value("request_id", f"{request_id!r} runs already; use another one")
        if not isinstance(params, SamplingParams):
            raise invalid_value("params", "must be SamplingParams; use LLM.embed for embeddings")
        engine, (one, how) = self._awake(), read_one_call(prompt, encoding)
        with DeferredInterrupt() as interrupt:
            prepared = self._inputs.prepare(
                self._next_id(), one, params, priority=priority, encoding=how, cut_to_context=True
            )
            if params.structured_outputs is not None:
                self._inputs.grammar_checker.check(params.structured_outputs)
            interrupt.deliver()
            kind = params.output_kind
            kind = RequestOutputKind.CUMULATIVE if kind is None else kind
            with self._all_or_none():
                self._requests[request_id] = prepared, streamed_items(kind)
                self._names[prepared.request_id] = request_id
                engine.add(prepared, self._outputs)
        return request_id

    def step(self) -> list[RequestOutput]:
        """Run one step; returns an item for each request that has something new.

        Raises the error that ended a request; the others go on. Ctrl-C comes between two steps,
        and loses nothing; what else is raised within a call ends all requests.
        """
        engine = self._awake()
        with DeferredInterrupt(), self._all_or_none():
            if self._requests:
                self._take(engine.step(self._outputs))
        if self._failures:
            raise self._failures.pop(0)[1]
        items, self._items = self._items, []
        return items

    def has_unfinished_requests(self) -> bool:
        """Whether a request runs, or has an item that no step returned."""
        return bool(self._requests or self._items or self._failures)

    def get_num_unfinished_requests(self) -> int:
        """The number of requests that run."""
        return len(self._requests)

    def abort_request(self, request_ids: str | Sequence[str], **options: Any) -> None:
        """End requests without further items or errors; unknown ids are ignored.

        options: of vLLM's method, as in all methods.
        """
        refuse_unknown(options)
        ids = [request_ids] if isinstance(request_ids, str) else [*request_ids]
        with DeferredInterrupt(), self._all_or_none():
            for request_id in ids:
                if request_id in self._requests:
                    prepared, _ = self._requests.pop(request_id)
                    del self._names[prepared.request_id]
                    self._awake().abort(prepared.request_id, self._outputs)
            self._drop_items(ids)
            self._failures = [each for each in self._failures if each[0] not in ids]

    def get_tokenizer(self, **options: Any) -> TransformersTokenizer:
        """The tokenizer with the methods that `transformers` gives its own."""
        refuse_unknown(options)
        return TransformersTokenizer(self.tokenizer)

    def sleep(self, level: int = 1, **options: Any) -> None:
        """End all requests, and free the memory of weights and KV cache until `wake_up`."""
        check_level(level)  # before anything is dropped
        refuse_unknown(options)
        self._check_caller()
        self._drop_all()
        super().sleep(level)

    @contextmanager
    def _all_or_none(self) -> Iterator[None]:
        """A context in which an error ends all requests, as some may be half added or taken."""
        try:
            yield
        except BaseException:
            self._drop_all()
            raise

    def _drop_all(self) -> None:
        requests = [prepared for prepared, _ in self._requests.values()]
        self._requests.clear()
        self._names.clear()
        self._items.clear()
        self._failures.clear()
        if self._engine is not None:
            self._engine.drop(requests, self._outputs)
        self._outputs = OutputProcessor(self.tokenizer, RequestMetrics())

    def _drop_items(self, request_ids: Sequence[str]) -> None:
        """Drop items that wait because a step has raised another request's error."""
        self._items = [item for item in self._items if item.request_id not in request_ids]

    def _take(self, step: Processed) -> None:
        for engine_id, failure in step.failures.items():
            request_id = self._names.pop(engine_id)
            del self._requests[request_id]
            self._drop_items([request_id])
            self._failures.append((request_id, failure))
        for engine_id, part in step.outputs.items():
            part.request_id = self._names[engine_id]
            _, items = self._requests[part.request_id]
            item = part if items is None else items.add(part)
            if item is not None:
                self._items.append(item)
            if part.finished:
                del self._requests[self._names.pop(engine_id)]
