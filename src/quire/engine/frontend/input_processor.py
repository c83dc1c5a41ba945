"""From a caller's prompt to messages for the engine: encode, check, fan out n answers.

Runs in the front's process. Owns the seeds of requests that bring none.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypedDict

import msgspec

from quire.core.messages import AddRequest
from quire.core.pooling_params import PoolingParams
from quire.core.request import DEFAULT_SAMPLING
from quire.core.request_limits import RequestLimits
from quire.core.sampling_params import SamplingParams
from quire.engine.frontend.bounded_encoding import encode_within
from quire.errors import InvalidRequestError, invalid_value
from quire.grammar.grammar_checker import CHECK_SECONDS, GrammarChecker, Here
from quire.grammar.grammar_compiler import GrammarCompiler
from quire.grammar.grammar_subprocess import GrammarSubprocess
from quire.grammar.vocabulary import Vocabulary
from quire.tokenizer.tokenizer import Tokenizer

Prompt = str | list[int]  # text, or token ids as they are
StopWhen = Callable[[], Callable[[str], bool]]
"""Makes, for one answer, what takes its text as it comes, and tells when it ends with that."""


class Options(TypedDict, total=False):
    """How a prompt is run. queue_timeout: seconds that it may wait to begin."""

    priority: int
    cache_salt: str
    queue_timeout: float | None


_SEED_STRIDE = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: answer i's seed is seed + i of it


class PreparedRequest(msgspec.Struct, frozen=True):
    """A request ready to be sent: one message for each of its n answers."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    sampling: SamplingParams
    messages: list[AddRequest]
    stop_when: StopWhen | None = None


class InputProcessor:
    """Encodes prompts and refuses what can never run.

    grammar_subprocess: whether forms are compiled in a process that can be killed, since whoever
    asks for them is not trusted to be patient, or kind.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        limits: RequestLimits,
        eos_token_ids: list[int],
        seed: int,
        *,
        grammar_subprocess: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._limits = limits
        self._eos_token_ids = eos_token_ids
        self._seeds = random.Random(seed)

        def vocabulary() -> Vocabulary:
            return Vocabulary(tokenizer, limits.vocab_size, eos_token_ids)

        self.forms = GrammarChecker(
            GrammarSubprocess(vocabulary, CHECK_SECONDS)
            if grammar_subprocess
            else Here(GrammarCompiler(vocabulary))
        )

    def close(self) -> None:
        """Let go of what compiles forms."""
        self.forms.close()

    def follow(self, limits: RequestLimits) -> None:
        """Check by these limits from now on: another engine runs the requests."""
        self._limits = limits

    def prepare(
        self,
        request_id: str,
        prompt: Prompt,
        sampling: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str = "",
        queue_timeout: float | None = None,
        stream: bool = True,
        stop_when: StopWhen | None = None,
    ) -> PreparedRequest:
        """Make the engine's messages for a prompt (text, or token ids as they are).

        Raises InvalidRequestError or ContextLengthError. Whether its form can be compiled, `forms`
        has to be asked, too: that may take long.
        """
        self._check_priority(priority)
        _check_salt(cache_salt)
        token_ids = self._token_ids(prompt)
        self._limits.check(token_ids, sampling)
        bad_words_ids = self._bad_words_ids(sampling.bad_words) if sampling.bad_words else []
        messages = [
            AddRequest(
                request_id=f"{request_id}/{index}",
                prompt_token_ids=token_ids,
                sampling=answer,
                eos_token_ids=self._eos_token_ids,
                bad_words_ids=bad_words_ids,
                priority=priority,
                cache_salt=cache_salt,
                queue_timeout=queue_timeout,
                # what ends an answer besides its tokens is found out here
                stream=stream or bool(sampling.stop) or stop_when is not None,
            )
            for index, answer in enumerate(self._answers(sampling))
        ]
        text = prompt if isinstance(prompt, str) else None
        return PreparedRequest(request_id, text, token_ids, sampling, messages, stop_when)

    def prepare_embedding(
        self,
        request_id: str,
        prompt: Prompt,
        pooling: PoolingParams,
        *,
        priority: int = 0,
        cache_salt: str = "",
        queue_timeout: float | None = None,
    ) -> PreparedRequest:
        """Make the engine's message for a prompt (text, or token ids as they are) to be embedded.

        Raises InvalidRequestError or ContextLengthError.
        """
        self._check_priority(priority)
        _check_salt(cache_salt)
        token_ids = self._token_ids(prompt)
        self._limits.check_embedding(token_ids, pooling)
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
        text = prompt if isinstance(prompt, str) else None
        return PreparedRequest(request_id, text, token_ids, DEFAULT_SAMPLING, [message])

    def _token_ids(self, prompt: Prompt) -> list[int]:
        if not isinstance(prompt, str):
            return prompt
        # the whole prompt is the caller's, who may write out a chat template by hand
        encode = partial(self._tokenizer.encode, parse_special=True)
        return encode_within(self._limits, encode, prompt)

    def _bad_words_ids(self, words: list[str]) -> list[list[int]]:
        """A token that the model does not have cannot be drawn anyway, nor a word with it."""
        found = self._tokenizer.bad_words_ids(words)
        return [word for word in found if max(word) < self._limits.vocab_size]

    def _answers(self, sampling: SamplingParams) -> list[SamplingParams]:
        """One set of parameters per answer: seeds differ, and one scores the prompt for all."""
        seed = self._seeds.getrandbits(63) if sampling.seed is None else sampling.seed
        return [
            _answer(
                sampling,
                _signed64(seed + index * _SEED_STRIDE),
                sampling.prompt_logprobs if index == 0 else None,
            )
            for index in range(sampling.n)
        ]

    def _check_priority(self, priority: int) -> None:
        if type(priority) is not int:
            raise invalid_value("priority", f"{priority!r} is not an integer; give one")
        if priority != 0 and not self._limits.honours_priority:
            raise invalid_value(
                "priority",
                "requests are run in order of arrival here; leave it out, or start the server with "
                "--scheduling-policy priority (LLM with scheduling_policy='priority')",
            )


@contextmanager
def told_of(field: str, place: int, count: int) -> Iterator[None]:
    """Let errors about a prompt speak of the argument that it came in, and of its place there."""
    try:
        yield
    except InvalidRequestError as error:
        if error.param in ("prompt", "messages"):
            item = f"{field}[{place}]" if count > 1 else field
            text = re.sub(r"^(prompt|messages)\b", lambda _: item, str(error))
            error.args = (text.replace("the prompt", "them") if field == "messages" else text,)
            error.param = field
        raise


def _answer(sampling: SamplingParams, seed: int, prompt_logprobs: int | None) -> SamplingParams:
    """One answer's own parameters: a copy, so that what was checked is not checked again."""
    answer: SamplingParams = sampling.__copy__()  # type: ignore[attr-defined]  # as all structs
    for name, value in (("n", 1), ("seed", seed), ("prompt_logprobs", prompt_logprobs)):
        msgspec.structs.force_setattr(answer, name, value)
    return answer


def _check_salt(salt: str) -> None:
    if not isinstance(salt, str):
        raise invalid_value("cache_salt", "it is not text; give a string")


def _signed64(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63
