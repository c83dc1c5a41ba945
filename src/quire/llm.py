"""LLM: the offline API. Prompts in, answers out in the same order, the engine in this process."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from quire.config import BUNDLED_MODEL, EngineConfig
from quire.core.messages import EngineStats
from quire.core.pooling_params import Pooling
from quire.core.request_output import EmbeddingOutput, RequestOutput, RequestTimes
from quire.core.sampling_params import SamplingParams
from quire.engine.frontend.deferred_interrupt import DeferredInterrupt
from quire.engine.frontend.inline_engine import InlineEngine
from quire.engine.frontend.input_processor import (
    InputProcessor,
    PreparedRequest,
    Prompt,
    errors_name_field,
)
from quire.engine.frontend.output_processor import OutputProcessor, Processed
from quire.engine.frontend.prompt_encoding import encode_conversation
from quire.engine.frontend.prompt_inputs import (
    Conversation,
    Message,
    Prompts,
    expand_sampling_params,
    read_conversations,
    read_prompts,
)
from quire.engine.frontend.request_metrics import RequestMetrics
from quire.engine.startup.start_engine import start_engine
from quire.errors import InvalidRequestError, QuireError
from quire.hub import tokenizer_folder
from quire.processes import interrupted
from quire.tokenizer.tokenizer import Tokenizer
from quire.tokenizer.tokenizer_folder import check_folder

Item = TypeVar("Item")


class LLM:
    """A loaded model, ready to generate text and embeddings.

    model: a folder, a hub name, or nothing for the bundled model. options: any setting of
    `quire.config` by its name, such as max_model_len=4096.

    Raises ConfigError or CheckpointError.
    """

    def __init__(self, model: str | os.PathLike[str] = BUNDLED_MODEL, **options: Any) -> None:
        config = EngineConfig.from_options(model=model, **options)
        folder = check_folder(tokenizer_folder(config))  # checked before the model is loaded
        core, self.info = start_engine(config)
        self._engine = InlineEngine(core)
        self.tokenizer = Tokenizer.from_folder(folder)
        self._inputs = InputProcessor(
            self.tokenizer, self.info.limits, self.info.eos_token_ids, config.model.seed
        )
        self._num_requests = 0
        self._lock = threading.Lock()  # calls from several threads run one after another

    @property
    def stats(self) -> EngineStats:
        """The engine's current gauges and counters."""
        return self._engine.stats

    def generate(
        self,
        prompts: Prompts,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        raise_errors: bool = True,
    ) -> list[RequestOutput]:
        """Answer every prompt; results come in the order of the prompts.

        prompts: text or token ids (a list, tuple or array), one or a list of them.
        sampling_params: one for all, or one for each.
        raise_errors: if False, a prompt that is refused or fails gets a result with `error` and no
        outputs, and the others run.
        Raises InvalidRequestError before anything runs, EngineError if a request fails. Ctrl-C ends
        all requests between two steps, and further calls are answered as if nothing had happened.
        """
        with self._lock:
            return self._answer(
                "prompt", read_prompts(prompts), _unchanged, sampling_params, use_tqdm, raise_errors
            )

    def embed(
        self,
        prompts: Prompts,
        *,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
        use_tqdm: bool = True,
    ) -> list[EmbeddingOutput]:
        """Turn every prompt into a vector; results come in the order of the prompts.

        pooling, normalize: None: as the checkpoint says. dimensions: the number of first values to
        keep. Raises as `generate` does.
        """
        changes = {"pooling": pooling, "normalize": normalize, "dimensions": dimensions}
        params = self.info.pooling.changed(**changes)
        prompt_list = read_prompts(prompts)
        prepared = []
        with self._lock:
            for index, prompt in enumerate(prompt_list):
                with errors_name_field("prompt", index, len(prompt_list)):
                    prepared.append(self._inputs.prepare_embedding(self._next_id(), prompt, params))
            answers = self._run(prepared, "embeddings", use_tqdm)
        return [_vector(answers[request.request_id]) for request in prepared]

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        raise_errors: bool = True,
        **template_kwargs: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of a list, through the model's chat template.

        template_kwargs: add_generation_prompt, tools, and variables that the template reads.
        Raises as `generate` does.
        """

        def encode(conversation: list[Message]) -> list[int]:
            rendered = self.tokenizer.chat_prompt(conversation, **template_kwargs)
            return encode_conversation(self.tokenizer, rendered, self.info.limits)

        with self._lock:
            return self._answer(
                "messages",
                read_conversations(messages),
                encode,
                sampling_params,
                use_tqdm,
                raise_errors,
            )

    def _answer(
        self,
        field: str,
        items: Sequence[Item],
        encode: Callable[[Item], Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool,
        raise_errors: bool,
    ) -> list[RequestOutput]:
        """field: the argument of the items, for error messages. encode: item to prompt."""
        prepared, refused, ids = list[PreparedRequest](), dict[str, RequestOutput](), list[str]()
        params_list, count = (
            expand_sampling_params(sampling, len(items)),
            len(items) if raise_errors else 1,
        )
        for index, (item, params) in enumerate(zip(items, params_list, strict=True)):
            ids.append(self._next_id())
            try:
                with errors_name_field(field, index, count):
                    prepared.append(
                        self._inputs.prepare(ids[-1], encode(item), params, stream=False)
                    )
            except InvalidRequestError as error:
                is_items = (error.param or "").partition("[")[
                    0
                ] == field  # else the sampling params are wrong
                if raise_errors or not is_items:
                    raise
                refused[ids[-1]] = _failed(ids[-1], error)
            if params.structured_outputs is not None:
                self._inputs.grammar_checker.check(params.structured_outputs)
        answers = refused | self._run(prepared, "answers", use_tqdm, raise_errors)
        return [answers[request_id] for request_id in ids]

    def _next_id(self) -> str:
        self._num_requests += 1
        return str(self._num_requests)

    def _run(
        self, prepared: list[PreparedRequest], what: str, use_tqdm: bool, raise_errors: bool = True
    ) -> dict[str, RequestOutput]:
        """Results by request id. what: their name, for the progress bar."""
        outputs = OutputProcessor(self.tokenizer, RequestMetrics())
        answers: dict[str, RequestOutput] = {}
        interrupted.clear()  # a program may go on after Ctrl-C
        try:
            with (
                DeferredInterrupt() as interrupt,
                _Progress(what, len(prepared), shown=use_tqdm) as progress,
            ):
                progress.show(0, self.stats)

                def take(step: Processed) -> None:
                    _collect(step, answers, raise_errors)
                    progress.show(len(prepared) - outputs.num_unfinished, self.stats)

                self._engine.run(prepared, outputs, take, interrupt)
        except KeyboardInterrupt:
            interrupted.set()
            raise
        return answers


def _unchanged(prompt: Prompt) -> Prompt:
    return prompt


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
            answers[request_id] = output


def _vector(output: RequestOutput) -> EmbeddingOutput:
    assert output.embedding is not None, "a request for an embedding got none"
    return EmbeddingOutput(
        request_id=output.request_id,
        prompt=output.prompt,
        prompt_token_ids=output.prompt_token_ids,
        embedding=np.frombuffer(output.embedding, "<f4").astype(np.float32),  # may be written to
        num_cached_tokens=output.num_cached_tokens,
    )


class _Progress:
    """A progress bar: finished requests, and tokens generated or embedded per second."""

    def __init__(self, what: str, total: int, *, shown: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._bar = Progress(
            TextColumn(what),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:.0f} tokens/s"),
            console=Console(stderr=True),
            disable=not shown,
        )
        self._task = self._bar.add_task(what, total=total, rate=0.0)
        self._begin = time.monotonic()
        self._embeds = what == "embeddings"
        self._tokens_before: int | None = None

    def __enter__(self) -> _Progress:
        self._bar.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self._bar.__exit__(*details)

    def show(self, finished: int, stats: EngineStats) -> None:
        tokens = stats.num_prompt_tokens if self._embeds else stats.num_generation_tokens
        if self._tokens_before is None:
            self._tokens_before = tokens
        tokens -= self._tokens_before
        rate = tokens / max(time.monotonic() - self._begin, 1e-9)
        self._bar.update(self._task, completed=finished, rate=rate)
