"""The input processor: encodes prompts, checks requests, and makes one message per answer.

Runs in the frontend's process. Owns the seeds of requests that have none.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TypedDict

import msgspec
from msgspec.structs import force_setattr

from quire.core.messages import AddRequest
from quire.core.pooling_params import PoolingParams
from quire.core.request import DEFAULT_SAMPLING
from quire.core.request_limits import RequestLimits
from quire.core.sampling_params import SamplingParams
from quire.engine.core.engine_info import EngineInfo
from quire.engine.frontend.prompt_encoding import USUAL_ENCODING, Encoding, Prompt, token_ids_of
from quire.errors import InvalidRequestError, invalid_value
from quire.grammar.grammar_checker import (
    CHECK_SECONDS,
    NUM_VALIDATORS,
    GrammarChecker,
    InProcessValidator,
)
from quire.grammar.grammar_compiler import GrammarCompiler
from quire.grammar.grammar_subprocess import GrammarSubprocess
from quire.grammar.vocabulary import Vocabulary
from quire.tokenizer.tokenizer import Tokenizer

StopWhen = Callable[[], Callable[[str], bool]]
"""Makes, for one answer, a function that takes its text in parts and says whether it ends there."""


class Options(TypedDict, total=False):
    """Options of a request besides its sampling params.

    encoding: how its prompt becomes token ids. queue_timeout: seconds that it may wait before it
    starts to run; None: no limit.
    """

    encoding: Encoding
    priority: int
    cache_salt: str
    queue_timeout: float | None


class ContinuationOptions(Options, total=False):
    """Options of a prompt's continuation. cut_to_context: lower max_tokens to what the context has.

    caller: whom the work for a grammar is counted for. stop_when: ends answers by their text.
    prompt_field: the caller's field that errors about the prompt name. report_progress: also yield
    outputs without tokens, with `progress`, while the prompt is computed.
    """

    cut_to_context: bool
    caller: str
    stop_when: StopWhen | None
    prompt_field: str
    report_progress: bool


class GenerateOptions(ContinuationOptions, total=False):
    """Options of `AsyncEngine.generate`. in_thread: a short prompt is encoded there, too."""

    in_thread: bool


_SEED_STRIDE = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: answer i's seed is seed + i of it


class PreparedRequest(msgspec.Struct, frozen=True):
    """A request ready to be sent: one message for each of its n answers (parallel sampling)."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    sampling: SamplingParams
    messages: list[AddRequest]
    limits: RequestLimits
    stop_when: StopWhen | None = None
    caller: str = ""


class InputProcessor:
    """Encodes prompts and refuses requests that can never run.

    info: of the engine. eos_token_ids: end the answers of all requests, the tokenizer's own too.
    grammar_subprocess: whether grammars are checked in a process that can be killed, for callers
    that are not trusted.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        info: EngineInfo,
        seed: int,
        *,
        grammar_subprocess: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._limits = limits = info.limits
        self.eos_token_ids = ends = tokenizer.end_ids(info.eos_token_ids, limits.vocab_size)
        self._seeds = random.Random(seed)
        # the prompts of a request have the same words
        self._known_words = lru_cache(4)(self._bad_words_ids)

        def vocabulary() -> Vocabulary:
            return Vocabulary(tokenizer, limits.vocab_size, ends)

        if grammar_subprocess:
            self.grammar_checker = GrammarChecker(
                *(GrammarSubprocess(vocabulary, CHECK_SECONDS) for _ in range(NUM_VALIDATORS))
            )
        else:
            self.grammar_checker = GrammarChecker(InProcessValidator(GrammarCompiler(vocabulary)))

    def close(self) -> None:
        """Close the grammar checker."""
        self.grammar_checker.close()

    def set_limits(self, limits: RequestLimits) -> None:
        """Check by these limits from now on: another engine process runs the requests."""
        self._limits = limits
        self._known_words.cache_clear()

    def prepare(
        self,
        request_id: str,
        prompt: Prompt,
        sampling: SamplingParams,
        *,
        encoding: Encoding = USUAL_ENCODING,
        priority: int = 0,
        cache_salt: str = "",
        queue_timeout: float | None = None,
        cut_to_context: bool = False,
        caller: str = "",
        stream: bool = True,
        stop_when: StopWhen | None = None,
        prompt_field: str = "prompt",
        report_progress: bool = False,
    ) -> PreparedRequest:
        """The engine's messages for a prompt, one for each answer.

        prompt_field: the caller's field that errors about the prompt name. Raises
        InvalidRequestError or ContextLengthError. Structured outputs are checked by
        `grammar_checker` besides, since that may take long.
        """
        self._check_options(priority, cache_salt)
        sampling.check_lists()
        limits, reserved = self._limits, sampling.max_tokens or 1
        token_ids = token_ids_of(prompt, self._tokenizer, limits, encoding, reserved=reserved)
        if cut_to_context:
            sampling = self._cut(sampling, len(token_ids))
        if sampling.stop and not self._tokenizer.has_text:
            raise invalid_value("stop", "answers have no text here; use stop_token_ids")
        bad_words_ids = self._known_words(tuple(sampling.bad_words)) if sampling.bad_words else []
        messages = [
            AddRequest(
                request_id=f"{request_id}/{index}",
                prompt_token_ids=token_ids,
                sampling=answer,
                eos_token_ids=self.eos_token_ids,
                bad_words_ids=bad_words_ids,
                priority=priority,
                cache_salt=cache_salt,
                queue_timeout=queue_timeout,
                # only the frontend finds the ends that depend on text
                stream=stream or bool(sampling.stop) or stop_when is not None,
                # the other answers find what the first has computed
                report_progress=report_progress and index == 0,
                caller=caller,
            )
            for index, answer in enumerate(self._answers(sampling))
        ]
        try:
            limits.check(messages[0])  # the same for all answers
        except InvalidRequestError as error:
            raise _renamed(error, prompt_field, prompt_field) from None
        if -1 in (sampling.logprobs, sampling.prompt_logprobs):
            for message in messages:
                _ask_for_all(message.sampling, limits.vocab_size)
        text = _text_of(prompt, encoding)
        return PreparedRequest(
            request_id, text, token_ids, sampling, messages, limits, stop_when, caller
        )

    def prepare_embedding(
        self,
        request_id: str,
        prompt: Prompt,
        pooling: PoolingParams,
        *,
        encoding: Encoding = USUAL_ENCODING,
        priority: int = 0,
        cache_salt: str = "",
        queue_timeout: float | None = None,
    ) -> PreparedRequest:
        """The engine's message for a prompt to be embedded.

        Raises InvalidRequestError or ContextLengthError.
        """
        self._check_options(priority, cache_salt)
        limits = self._limits
        token_ids = token_ids_of(prompt, self._tokenizer, limits, encoding)
        message = AddRequest(
            request_id=f"{request_id}/0",
            prompt_token_ids=token_ids,
            sampling=DEFAULT_SAMPLING,
            priority=priority,
            cache_salt=cache_salt,
            queue_timeout=queue_timeout,
            stream=False,
            pooling=pooling,
        )
        limits.check(message)
        text = _text_of(prompt, encoding)
        return PreparedRequest(request_id, text, token_ids, DEFAULT_SAMPLING, [message], limits)

    def _cut(self, sampling: SamplingParams, num_prompt_tokens: int) -> SamplingParams:
        left = self._limits.max_model_len - num_prompt_tokens
        if sampling.max_tokens is None or not max(1, sampling.min_tokens) <= left:
            return sampling  # and what does not fit at all is refused
        if sampling.max_tokens <= left:
            return sampling
        return msgspec.structs.replace(sampling, max_tokens=left)

    def _bad_words_ids(self, words: tuple[str, ...]) -> list[list[int]]:
        """Bad words as token ids, without those that hold an id that the model does not have."""
        found = self._tokenizer.bad_words_ids(words)
        return [word for word in found if max(word) < self._limits.vocab_size]

    def _answers(self, sampling: SamplingParams) -> list[SamplingParams]:
        """Params of parallel sampling: seeds differ; only the first answer scores the prompt."""
        seed = self._seeds.getrandbits(63) if sampling.seed is None else sampling.seed
        return [_answer(sampling, seed, index) for index in range(sampling.n)]

    def _check_options(self, priority: int, cache_salt: str) -> None:
        if not isinstance(cache_salt, str):
            raise invalid_value("cache_salt", f"must be a string, not {type(cache_salt).__name__}")
        if type(priority) is not int:
            raise invalid_value("priority", f"must be an integer, not {priority!r}")
        if priority != 0 and not self._limits.honours_priority:
            raise invalid_value(
                "priority",
                "requests are run in order of arrival here; leave it out, or start the server with "
                "--scheduling-policy priority (LLM with scheduling_policy='priority')",
            )


def _text_of(prompt: Prompt, encoding: Encoding) -> str | None:
    """The text of all token ids of a prompt; None if it is not known."""
    return prompt if isinstance(prompt, str) and encoding.keep is None else None


@contextmanager
def errors_name_field(field: str, index: int = 0, count: int = 1) -> Iterator[None]:
    """Make errors about a prompt name the caller's field, with its index if there are several."""
    try:
        yield
    except InvalidRequestError as error:
        raise _renamed(error, field, f"{field}[{index}]" if count > 1 else field) from None


def _renamed(error: InvalidRequestError, field: str, item: str) -> InvalidRequestError:
    """An error about a prompt with the caller's field and item in place of our own names."""
    if error.param in ("prompt", "messages"):
        text = re.sub(r"^(prompt|messages)\b", lambda _: item, str(error))
        error.args = (text.replace("the prompt", "them") if field != "prompt" else text,)
        error.param = field
    return error


def _answer(sampling: SamplingParams, seed: int, index: int) -> SamplingParams:
    """One answer's sampling params: a copy, which skips the checks of the constructor."""
    answer: SamplingParams = sampling.__copy__()  # type: ignore[attr-defined]  # as all structs
    if sampling.n > 1:
        force_setattr(answer, "n", 1)
    if index:
        seed = (seed + index * _SEED_STRIDE + 2**63) % 2**64 - 2**63  # a signed number of 64 bits
        force_setattr(answer, "prompt_logprobs", None)
    force_setattr(answer, "seed", seed)
    return answer


def _ask_for_all(sampling: SamplingParams, vocab_size: int) -> None:
    """Replace -1 in the numbers of log-probabilities of checked params."""
    for name in ("logprobs", "prompt_logprobs"):
        if getattr(sampling, name) == -1:
            force_setattr(sampling, name, vocab_size)
