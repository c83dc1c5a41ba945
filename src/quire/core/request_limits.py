"""The limits of an engine on single requests, and the one check of them. No torch.

The frontend checks a request where it enters, before any work is spent on it, so that its caller
gets HTTP 400 at once. It checks again only what is to run on another engine, which may have other
limits (request_tracker.py). Two checks of HTTP look ahead: at all texts of a request before any is
embedded, and at numbers of log-probabilities, by the API's own field and before their bound in all.
The engine core trusts its frontends: they are processes of the same user.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

import msgspec

from quire.core.messages import AddRequest
from quire.core.pooling_params import PoolingParams
from quire.core.sampling_checks import MAX_LOGPROBS
from quire.core.sampling_params import SamplingParams
from quire.errors import ContextLengthError, invalid_value

MAX_CHARS_PER_TOKEN = 64  # tokens are rarely longer


class RequestLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The largest request that an engine can run; known once it is loaded.

    max_kv_tokens: tokens that the KV cache holds. honours_priority: whether requests may have a
    priority. hidden_size: dimensions of an embedding. generates: whether the model can generate
    text, and not only embeddings. max_logprobs: for each token; -1: all of the vocabulary.
    only_counts: the limits are for texts whose tokens are only counted, not for the model.
    """

    max_model_len: int
    max_kv_tokens: int
    vocab_size: int
    max_num_seqs: int
    honours_priority: bool = False
    hidden_size: int = 0
    generates: bool = True
    max_logprobs: int = MAX_LOGPROBS
    only_counts: bool = False

    @property
    def length_name(self) -> str:
        """A description of max_model_len, for messages."""
        if self.only_counts:
            return "the maximum length of a text that is counted"
        return "this model's maximum context length"

    def beyond_length(
        self, what: str, num_prompt_tokens: int, other_fix: str = "", *, param: str = "prompt"
    ) -> ContextLengthError:
        """The error for a prompt above max_model_len, in the words that clients look for.

        what: the field and its size. num_prompt_tokens: as far as they were counted. other_fix:
        what helps besides a shorter prompt.
        """
        return ContextLengthError(
            f"{what}, but {self.length_name} is {self.max_model_len} tokens. Please reduce the "
            f"length of the input prompt{other_fix}",
            param=param,
            num_prompt_tokens=num_prompt_tokens,
            limit=self.max_model_len,
        )

    def check(self, message: AddRequest) -> None:
        """Refuse a request that can never run.

        Raises InvalidRequestError or ContextLengthError with the numbers and the fix.
        """
        if message.pooling is None:
            self._check_generation(message.prompt_token_ids, message.sampling)
        else:
            self.check_embedding(message.prompt_token_ids, message.pooling)
        if message.output_token_ids:
            self._check_continuation(message)

    def _check_generation(self, prompt_token_ids: list[int], sampling: SamplingParams) -> None:
        if not self.generates:
            raise invalid_value(
                "model",
                "it has no head to generate tokens with; request embeddings, or serve a model "
                "for text generation",
            )
        self._check_prompt(prompt_token_ids)
        for field in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids", "logit_bias"):
            if token_ids := getattr(sampling, field):
                self._check_token_ids(field, list(token_ids))
        if marks := sampling.reasoning_marks:
            self._check_token_ids("reasoning_marks", [*marks.begin, *marks.end])
        if sampling.thinking_token_budget and sampling.reasoning_marks is None:  # 0: none at all
            raise invalid_value(
                "thinking_token_budget",
                "how this model marks its reasoning is not known; remove it",
            )
        if sampling.logprobs is not None:
            self.check_logprobs("logprobs", sampling.logprobs)
        if sampling.prompt_logprobs is not None:
            self.check_logprobs("prompt_logprobs", sampling.prompt_logprobs)
        self._check_fit(len(prompt_token_ids), sampling)

    def check_logprobs(self, field: str, wanted: int) -> None:
        """Refuse more log-probabilities for each token than `max_logprobs`; -1: all.

        Raises InvalidRequestError.
        """
        most = self.vocab_size if self.max_logprobs == -1 else self.max_logprobs
        if (self.vocab_size if wanted == -1 else wanted) > most:
            shown = f"-1 (all {self.vocab_size})" if wanted == -1 else wanted
            raise invalid_value(
                field, f"{shown} is above max_logprobs ({most}); lower it, or raise that setting"
            )

    def _check_fit(self, prompt: int, sampling: SamplingParams) -> None:
        """Refuse more tokens than the context or the KV cache holds. prompt: number of tokens."""
        wanted = sampling.max_tokens
        # the last token of the answer is never fed back, so it needs no slot in the KV cache
        answer = max(1, sampling.min_tokens) if wanted is None else wanted
        if prompt + answer > self.max_model_len:
            lower = "" if answer == 1 else f" or lower {'min' if wanted is None else 'max'}_tokens"
            unit = "token" if prompt == 1 else "tokens"
            size = f"{prompt} {unit} and {answer} for the answer are {prompt + answer}"
            raise self.beyond_length(f"prompt: {size}", prompt, lower)
        longest = self.max_model_len if wanted is None else prompt + wanted
        if longest - 1 > self.max_kv_tokens:
            raise ContextLengthError(
                f"prompt: {prompt} tokens and up to {longest - prompt} for the answer need "
                f"{longest - 1} slots, but the whole KV cache has {self.max_kv_tokens}; shorten "
                "the prompt, lower max_tokens, or start the server with a larger KV cache",
                num_prompt_tokens=prompt,
                limit=self.max_kv_tokens,
            )

    def check_embedding(self, prompt_token_ids: list[int], pooling: PoolingParams) -> None:
        """Refuse a prompt that can never be embedded. Raises as `check` does."""
        self._check_prompt(prompt_token_ids)
        num_tokens = len(prompt_token_ids)
        if num_tokens > self.max_model_len:
            raise self.beyond_length(f"prompt: too large: {num_tokens} tokens", num_tokens)
        if num_tokens > self.max_kv_tokens:
            raise ContextLengthError(
                f"prompt: too large: {num_tokens} tokens, but the whole KV cache has "
                f"{self.max_kv_tokens} slots; shorten it",
                num_prompt_tokens=num_tokens,
                limit=self.max_kv_tokens,
            )
        if pooling.dimensions is not None and pooling.dimensions > self.hidden_size:
            raise invalid_value(
                "dimensions",
                f"{pooling.dimensions} is more than the {self.hidden_size} that this model's "
                "embeddings have; lower it, or leave it out",
            )

    def check_chars(self, num_chars: int, param: str = "prompt") -> None:
        """Refuse text that is far too long before it is encoded. Raises ContextLengthError."""
        if num_chars > MAX_CHARS_PER_TOKEN * self.max_model_len:
            what = f"{param}: too large: {num_chars} characters"
            raise self.beyond_length(what, num_chars // MAX_CHARS_PER_TOKEN, param=param)

    def _check_continuation(self, message: AddRequest) -> None:
        """Refuse output tokens so far that no engine can have drawn for this request."""
        num_output, wanted = len(message.output_token_ids), message.sampling.max_tokens
        self._check_token_ids("output_token_ids", message.output_token_ids)
        most = self.max_model_len - len(message.prompt_token_ids)
        if num_output >= (most if wanted is None else min(most, wanted)):
            raise invalid_value(
                "output_token_ids", f"{num_output} tokens leave nothing to generate; send fewer"
            )

    def _check_prompt(self, token_ids: list[int]) -> None:
        if not token_ids:
            raise invalid_value("prompt", "must have at least one token")
        self._check_token_ids("prompt", token_ids)

    def _check_token_ids(self, field: str, token_ids: list[int]) -> None:
        try:  # one fast pass; what is wrong is found out only if something is
            msgspec.convert((token_ids,), _ids_below(self.vocab_size))
            return
        except msgspec.ValidationError:
            pass
        if set(map(type, token_ids)) != {int}:
            raise invalid_value(field, "must be text or a list of integers (token ids)")
        low, high = min(token_ids), max(token_ids)
        if low < 0 or high >= self.vocab_size:
            wrong = low if low < 0 else high
            known = f"between 0 and {self.vocab_size - 1}"
            problem = (
                f"token ids of this model must be {known}, not {wrong}, which is out of vocabulary "
                f"(vocab_size {self.vocab_size})"
            )
            raise invalid_value(field, problem)


@cache
def _ids_below(vocab_size: int) -> Any:
    """A struct of one list of token ids below `vocab_size`; msgspec reads its types only once."""
    ids = list[Annotated[int, msgspec.Meta(ge=0, lt=vocab_size)]]
    return msgspec.defstruct("TokenIds", [("ids", ids)], array_like=True)
