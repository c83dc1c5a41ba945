"""OfflineEngine: a model in this process, for callers that wait for whole answers.

Owns how a batch of requests is prepared and run. Calls from several threads run one after another.
"""

from __future__ import annotations

import reprlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from quire.core.pooling_params import PoolingParams
from quire.core.request_output import RequestOutput, RequestTimes
from quire.core.sampling_params import SamplingParams
from quire.engine.core.deferred_interrupt import DeferredInterrupt
from quire.engine.frontend.input_processor import PreparedRequest, errors_name_field
from quire.engine.frontend.loaded_model import LoadedModel
from quire.engine.frontend.output_processor import OutputProcessor, Processed
from quire.engine.frontend.progress_bar import ProgressBar
from quire.engine.frontend.prompt_encoding import USUAL_ENCODING, Encoding, Prompt
from quire.engine.frontend.request_metrics import RequestMetrics
from quire.errors import InvalidRequestError, QuireError, invalid_value
from quire.processes import interrupted

Item = TypeVar("Item")
Arguments = ParamSpec("Arguments")
OnOutput = Callable[[RequestOutput], None]
Outputs = list[RequestOutput]


def _one_call(
    work: Callable[Concatenate[OfflineEngine, DeferredInterrupt, Arguments], Outputs],
) -> Callable[Concatenate[OfflineEngine, Arguments], Outputs]:
    """Run a method under the engine's lock, with Ctrl-C between its steps only."""

    @wraps(work)
    def call(
        engine: OfflineEngine, /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Outputs:
        with engine._call_lock:  # an interrupt anywhere inside of it releases the lock
            return _interruptible(lambda interrupt: work(engine, interrupt, *args, **kwargs))

    return call


def _interruptible(work: Callable[[DeferredInterrupt], Outputs]) -> Outputs:
    """The result of work in which Ctrl-C comes where it delivers one, and half does nothing.

    A function of its own: where the lock's `with` had this in its body, an error at some line left
    the lock held.
    """
    interrupted.clear()  # a program may go on after Ctrl-C
    try:
        with DeferredInterrupt() as interrupt:
            return work(interrupt)
    except KeyboardInterrupt:
        interrupted.set()
        raise


class OfflineEngine(LoadedModel):
    """A model that runs batches of requests to their end."""

    @_one_call
    def _answer(
        self,
        interrupt: DeferredInterrupt,
        field: str,
        items: Sequence[tuple[Item, SamplingParams]],
        request_of: Callable[[Item, SamplingParams], tuple[Prompt, SamplingParams]],
        encoding: Encoding = USUAL_ENCODING,
        *,
        use_tqdm: bool,
        raise_errors: bool,
        on_output: OnOutput | None = None,
        on_answer: OnOutput | None = None,
    ) -> list[RequestOutput]:
        """The answers to prompts, in their order. field: the argument of the items, for errors.

        request_of: from an item and its params to its prompt, and what its params become. encoding:
        how texts become token ids. raise_errors: if False, an item that is refused or fails has a
        result with `error`, and the others run.
        on_output: gets each part of an answer as it comes; there is no progress bar then.
        on_answer: gets each result in the order of the prompts, once those before it have ended.
        """
        for name, callback in (("on_output", on_output), ("on_answer", on_answer)):
            if callback is not None and not callable(callback):
                problem = f"must be a function that takes a result, not {reprlib.repr(callback)}"
                raise invalid_value(name, problem)
        self._awake()
        prepared, refused, ids = list[PreparedRequest](), dict[str, RequestOutput](), list[str]()
        for index, (item, params) in enumerate(items):
            ids.append(self._next_id())
            try:
                with errors_name_field(field, index, len(items) if raise_errors else 1):
                    prompt, params = request_of(item, params)
                    prepared.append(
                        self._inputs.prepare(
                            ids[-1],
                            prompt,
                            params,
                            encoding=encoding,
                            stream=on_output is not None,
                            cut_to_context=True,
                        )
                    )
            except InvalidRequestError as error:
                is_item = (error.param or "").partition("[")[0] == field  # else the params are
                if raise_errors or not is_item:
                    raise
                refused[ids[-1]] = _failed(ids[-1], error)
            if params.structured_outputs is not None:
                self._inputs.grammar_checker.check(params.structured_outputs)
            interrupt.deliver()
            self._check_open()
        waiting = _InOrder(ids, on_answer) if on_answer is not None else None
        answers = self._run(
            interrupt, prepared, "answers", use_tqdm, raise_errors, on_output, waiting, refused
        )
        return [answers[request_id] for request_id in ids]

    @_one_call
    def _embed(
        self,
        interrupt: DeferredInterrupt,
        prompts: Sequence[Prompt],
        params: PoolingParams,
        encoding: Encoding = USUAL_ENCODING,
        *,
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        """The embeddings of prompts, in their order. encoding: how texts become token ids."""
        self._awake()
        prepared = []
        for index, prompt in enumerate(prompts):
            with errors_name_field("prompt", index, len(prompts)):
                prepared.append(
                    self._inputs.prepare_embedding(
                        self._next_id(), prompt, params, encoding=encoding
                    )
                )
            interrupt.deliver()
            self._check_open()
        answers = self._run(interrupt, prepared, "embeddings", use_tqdm)
        return [answers[request.request_id] for request in prepared]

    def _run(
        self,
        interrupt: DeferredInterrupt,
        prepared: list[PreparedRequest],
        what: str,
        use_tqdm: bool,
        raise_errors: bool = True,
        on_output: OnOutput | None = None,
        waiting: _InOrder | None = None,
        refused: Mapping[str, RequestOutput] | None = None,
    ) -> dict[str, RequestOutput]:
        """Results by request id, with those that were refused. what: their name, for the bar."""
        engine = self._awake()
        outputs = OutputProcessor(self.tokenizer, RequestMetrics())
        answers = dict(refused or {})
        shown = use_tqdm and on_output is None  # a bar would take what on_output prints
        with ProgressBar(what, len(prepared), shown=shown) as progress:
            progress.show(0, engine.stats)

            def take(step: Processed) -> None:
                self._check_open()
                if on_output is not None:
                    self._call_back(on_output, step.outputs.values())
                _collect(step, answers, raise_errors)
                if waiting is not None:
                    self._call_back(waiting.on_answer, waiting.ended(answers))
                progress.show(len(prepared) - outputs.num_unfinished, engine.stats)

            engine.run(prepared, outputs, take, interrupt)
        if waiting is not None:  # those that were refused are the last ones, or all
            self._call_back(waiting.on_answer, waiting.ended(answers))
        return answers

    def _call_back(self, on_output: OnOutput, outputs: Iterable[RequestOutput]) -> None:
        self._thread = threading.get_ident()
        try:
            for output in outputs:
                on_output(output)
        finally:
            self._thread = None


class _InOrder:
    """Results in the order of their prompts: one that has ended waits for those before it."""

    def __init__(self, ids: Sequence[str], on_answer: OnOutput) -> None:
        self._ids, self._num_ended = ids, 0
        self.on_answer = on_answer

    def ended(self, answers: Mapping[str, RequestOutput]) -> Iterator[RequestOutput]:
        """Those that nothing waits for any more, each once."""
        while self._num_ended < len(self._ids):
            answer = answers.get(self._ids[self._num_ended])
            if answer is None or not answer.finished:
                return
            self._num_ended += 1
            yield answer


def _failed(request_id: str, error: QuireError) -> RequestOutput:
    times = RequestTimes(time.monotonic())
    return RequestOutput(request_id, None, [], [], times, finished=True, error=error)


def _collect(step: Processed, answers: dict[str, RequestOutput], raise_errors: bool) -> None:
    """Append a step's outputs to the answers so far."""
    for request_id, failure in step.failures.items():
        if raise_errors:
            raise failure
        answers[request_id] = _failed(request_id, failure)
    for request_id, output in step.outputs.items():
        if request_id in answers:
            answers[request_id].append(output)
        else:
            answers[request_id] = output.copied()
