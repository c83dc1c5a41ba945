"""LLM: the offline API. Prompts in, answers out in the same order, the engine in this process."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

import numpy as np

from quire.compat.missing_names import ModelOwner
from quire.compat.own_options import OPTION_SCOPES, names_as_given
from quire.config import EngineConfig
from quire.core.pooling_params import Pooling, PoolingParams
from quire.core.request_output import EmbeddingOutput, RequestOutput, Score, ScoreOutput
from quire.core.sampling_params import SamplingParams
from quire.engine.frontend.beam_search import BeamSearchOutput, BeamSearchParams, search
from quire.engine.frontend.offline_engine import OfflineEngine, OnOutput
from quire.engine.frontend.progress_bar import ProgressBar
from quire.engine.frontend.prompt_encoding import token_ids_of
from quire.engine.frontend.prompt_inputs import (
    Conversation,
    Message,
    Prompts,
    expand_sampling_params,
    read_conversations,
    read_prompts,
)
from quire.engine.frontend.prompt_options import (
    EncodingOptions,
    read_call,
    read_chat,
    read_encoding,
    refuse_unknown,
    take_renamed,
)
from quire.engine.startup.resolved_config import check_files
from quire.errors import invalid_value
from quire.llm_options import LLMArguments
from quire.tokenizer.load_tokenizer import load_tokenizer, read_template
from quire.tokenizer.tokenizer import Tokenizer
from quire.tokenizer.transformers_api import TransformersTokenizer

_MARKS_FIX = "set reasoning_marks in SamplingParams"

Sampling = SamplingParams | Sequence[SamplingParams] | None


class LLM(ModelOwner, OfflineEngine):
    """A loaded model, ready to generate text and embeddings.

    model: a folder, a hub name, or nothing for the bundled model. options: any setting of
    `quire.config` by its name, such as max_model_len=4096; names of other engines are translated
    (docs/migration.md). As a context manager it closes itself.

    Raises ConfigError or CheckpointError.
    """

    def __init__(
        self, model: str | os.PathLike[str] | None = None, **options: Unpack[LLMArguments]
    ) -> None:
        named = {} if model is None else {"model": model}
        with names_as_given(options, OPTION_SCOPES):
            config = EngineConfig.from_options(**named, **options)
            check_files(config)  # before the model is loaded
            super().__init__(config, load_tokenizer(config))
        self._with_template = lru_cache(8)(self.tokenizer.with_chat_template)

    @classmethod
    def from_engine_args(cls, engine_args: Any) -> Self:
        """An `LLM` with the settings of EngineArgs."""
        return cls(**engine_args.settings())

    def generate(
        self,
        prompts: Prompts | None = None,
        sampling_params: Sampling = None,
        *,
        use_tqdm: bool = True,
        raise_errors: bool = True,
        on_output: OnOutput | None = None,
        on_answer: OnOutput | None = None,
        **encoding: Unpack[EncodingOptions],
    ) -> list[RequestOutput]:
        """Answer every prompt; results come in the order of the prompts.

        prompts: text, token ids (a list, tuple, array or tensor) or a map with `prompt` or
        `prompt_token_ids`; one, or any iterable of them; vLLM's older names are known.
        sampling_params: one for all, or one for each; None: get_default_sampling_params().
        raise_errors: if False, a prompt that is refused or fails gets a result with `error` and no
        outputs, and the others run. on_output: is called with each part of an answer as it comes,
        whose request_id is that of the result; what it raises ends the call, and it may not make
        another one. There is no progress bar then. on_answer: is called so with each result, in the
        order of the prompts, as soon as it and those before it have ended. encoding: how text
        becomes token ids.
        Raises InvalidRequestError before anything runs, EngineError if a request fails. Ctrl-C ends
        all requests between two steps, and further calls are answered as if nothing had happened.
        """
        found, how = read_call(prompts, encoding)
        return self._answer(
            "prompt",
            list(zip(found, self._sampling(sampling_params, len(found)), strict=True)),
            lambda prompt, params: (prompt, self._with_budget(params)),
            how,
            use_tqdm=use_tqdm,
            raise_errors=raise_errors,
            on_output=on_output,
            on_answer=on_answer,
        )

    def chat(
        self,
        messages: Conversation | Iterable[Conversation],
        sampling_params: Sampling = None,
        use_tqdm: bool = True,
        *,
        raise_errors: bool = True,
        on_output: OnOutput | None = None,
        on_answer: OnOutput | None = None,
        chat_template: str | os.PathLike[str] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **template_kwargs: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of a list, through a chat template.

        chat_template: a template, or its file, to use instead of the model's. template_kwargs (or
        the map chat_template_kwargs): add_generation_prompt, continue_final_message, tools,
        variables that the template reads, and EncodingOptions. on_output, on_answer: as in
        `generate`. Raises as `generate` does, and ConfigError for a file that cannot be read.
        """
        tokenizer = self.tokenizer
        if chat_template is not None:
            tokenizer = self._with_template(read_template(chat_template)[1])
        own, how = read_chat(template_kwargs, tokenizer.chat_variables)
        if not isinstance(given := chat_template_kwargs or {}, Mapping):
            raise invalid_value("chat_template_kwargs", f"must be a map, not {given!r:.64}")
        variables = {**given, **own}

        def request(
            conversation: list[Message], params: SamplingParams
        ) -> tuple[list[int], SamplingParams]:
            rendered = tokenizer.chat_prompt(conversation, **variables)
            limits = self.info.limits
            token_ids = token_ids_of(rendered, tokenizer, limits, how, is_rendered=True)
            return token_ids, _reasoned(params, tokenizer, token_ids)

        found = read_conversations(messages)
        return self._answer(
            "messages",
            list(zip(found, self._sampling(sampling_params, len(found)), strict=True)),
            request,
            how,  # where as many tokens are kept as fit, those beside the answer
            use_tqdm=use_tqdm,
            raise_errors=raise_errors,
            on_output=on_output,
            on_answer=on_answer,
        )

    def beam_search(
        self, prompts: Prompts, params: BeamSearchParams, *, use_tqdm: bool = False, **options: Any
    ) -> list[BeamSearchOutput]:
        """The most probable answers to every prompt, in the order of the prompts.

        options: of vLLM's method. Each token of the answers is one pass over all beams. Raises as
        `generate` does.
        """
        refuse_unknown(options)
        limits = self.info.limits
        found = [token_ids_of(p, self.tokenizer, limits) for p in read_prompts(prompts)]
        ends = self.eos_token_ids
        steps = count(1)
        with ProgressBar("tokens", getattr(params, "max_tokens", 0), shown=use_tqdm) as progress:
            progress.show(0, self.stats)

            def generate(beams: Sequence[list[int]], step: SamplingParams) -> list[RequestOutput]:
                answers = self.generate(beams, step, use_tqdm=False)
                progress.show(next(steps), self.stats)
                return answers

            outputs = search(found, params, ends, limits, generate)
        return [output.decoded(self.tokenizer.decode) for output in outputs]

    def embed(
        self,
        prompts: Prompts | None = None,
        *,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
        pooling_params: PoolingParams | None = None,
        use_tqdm: bool = True,
        **encoding: Unpack[EncodingOptions],
    ) -> list[EmbeddingOutput]:
        """Turn every prompt into a vector; results come in the order of the prompts.

        pooling, normalize: None: as the checkpoint says. dimensions: the number of first values to
        keep. pooling_params: all three. encoding: how text becomes token ids. Raises as `generate`
        does.
        """
        changes = {"pooling": pooling, "normalize": normalize, "dimensions": dimensions}
        params = self._pooling(pooling_params).changed(**changes)
        found, how = read_call(prompts, encoding)
        outputs = self._embed(found, params, how, use_tqdm=use_tqdm)
        return [_vector(output) for output in outputs]

    def encode(
        self,
        prompts: Prompts | None = None,
        pooling_params: PoolingParams | None = None,
        *,
        pooling_task: Literal["embed"] | None = "embed",
        use_tqdm: bool = True,
        **encoding: Unpack[EncodingOptions],
    ) -> list[EmbeddingOutput]:
        """Vectors of prompts, as `embed` makes them; each is `outputs.data`, too."""
        if pooling_task not in ("embed", None):
            problem = f"must be 'embed', not {pooling_task!r}"
            raise invalid_value("pooling_task", problem)
        return self.embed(prompts, pooling_params=pooling_params, use_tqdm=use_tqdm, **encoding)

    def score(
        self,
        data_1: Prompts | None = None,
        data_2: Prompts | None = None,
        *,
        pooling_params: PoolingParams | None = None,
        use_tqdm: bool = True,
        **encoding: Unpack[EncodingOptions],
    ) -> list[ScoreOutput]:
        """The similarity of each pair of texts, by their vectors; one text is paired with each.

        pooling_params, encoding: as `embed` takes them; vectors are normalized in any case. Raises
        InvalidRequestError for lists of different lengths, and as `embed` does.
        """
        rest: dict[str, Any] = dict(encoding)
        first, second = take_renamed("data_1", data_1, rest), take_renamed("data_2", data_2, rest)
        how = read_encoding(rest)  # first: a wrong name may be that of the texts
        first, second = read_prompts(first), read_prompts(second)
        if len(first) == 1:
            first *= len(second)
        if len(first) != len(second):
            problem = f"must have as many texts as data_1 ({len(first)}), not {len(second)}"
            raise invalid_value("data_2", problem)
        params = self._pooling(pooling_params).changed(normalize=True)
        outputs = self._embed([*first, *second], params, how, use_tqdm=use_tqdm)
        vectors = [_vector(output) for output in outputs]
        return [_score(*pair) for pair in zip(vectors, vectors[len(first) :], strict=False)]

    def _pooling(self, given: PoolingParams | None) -> PoolingParams:
        if given is None:
            return self.info.pooling
        if not isinstance(given, PoolingParams):
            problem = f"must be PoolingParams(...), not {type(given).__name__}"
            raise invalid_value("pooling_params", problem)
        return given

    def classify(self, *_: Any, **__: Any) -> list[EmbeddingOutput]:
        """Raises InvalidRequestError: no family of models here has a classification head."""
        raise invalid_value(
            "model", f"{self.info.model_name} has no classification head; use generate with choices"
        )

    def get_tokenizer(self, **options: Any) -> TransformersTokenizer:
        """The tokenizer with the methods that `transformers` gives its own.

        options: of vLLM's method, as in all methods.
        """
        refuse_unknown(options)
        return TransformersTokenizer(self.tokenizer)

    def get_default_sampling_params(self) -> SamplingParams:
        """The sampling params that the setting `generation_config` asks for."""
        return SamplingParams(**self.info.sampling_defaults)  # type: ignore[arg-type]  # as checked

    if not TYPE_CHECKING:  # which finds calls

        def __call__(self, *_: Any, **__: Any) -> Any:
            """Raises TypeError, which says what to use for a call of llama-cpp-python's model."""
            raise TypeError("an LLM is not called; use generate for texts, or chat for messages")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sampling(self, given: Sampling, count: int) -> list[SamplingParams]:
        if given is None:
            given = self.get_default_sampling_params()
        return expand_sampling_params(given, count)

    def _with_budget(self, params: SamplingParams) -> SamplingParams:
        """The params of a prompt outside a chat; the template of chats may show the marks."""
        if params.thinking_token_budget is None:
            return params
        from quire.server.parsing.reasoning_parser import reasoning_of, with_reasoning_marks

        reasoning = reasoning_of(self.tokenizer.chat_template_text)
        return with_reasoning_marks(params, reasoning, self.tokenizer, fix=_MARKS_FIX)


def _reasoned(params: SamplingParams, tokenizer: Tokenizer, token_ids: list[int]) -> SamplingParams:
    """The params of a chat: a budget and a constraint know of reasoning, and the text shows it."""
    from quire.server.parsing.reasoning_parser import reasoning_of  # a start needs none

    if params.thinking_token_budget is None and reasoning_of(tokenizer.chat_template_text) is None:
        return params
    from quire.server.parsing.answer_sampling import chat_sampling

    return chat_sampling(params, token_ids, tokenizer, fix=_MARKS_FIX)


def _vector(output: RequestOutput) -> EmbeddingOutput:
    assert output.embedding is not None, "a request for an embedding got none"
    return EmbeddingOutput(
        request_id=output.request_id,
        prompt=output.prompt,
        prompt_token_ids=output.prompt_token_ids,
        embedding=np.frombuffer(output.embedding, "<f4").astype(np.float32),  # may be written to
        num_cached_tokens=output.num_cached_tokens,
    )


def _score(first: EmbeddingOutput, second: EmbeddingOutput) -> ScoreOutput:
    return ScoreOutput(
        request_id=f"{first.request_id}-{second.request_id}",
        outputs=Score.of(float(first.embedding @ second.embedding)),
        prompt_token_ids=first.prompt_token_ids + second.prompt_token_ids,
        num_cached_tokens=first.num_cached_tokens + second.num_cached_tokens,
    )
