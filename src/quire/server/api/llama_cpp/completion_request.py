"""NativeCompletionRequest: the body of llama.cpp's /completion.

Sampling params are those of all routes, also under llama.cpp's names (quire.compat). An answer
ends with the context where n_predict would not; of 0 tokens, it only caches its prompt.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec

from quire.core.sampling_checks import MAX_BIAS, MAX_LOGIT_BIAS
from quire.core.sampling_params import SamplingParams
from quire.errors import invalid_value
from quire.server.api.common.generation_request import (
    MAX_CHOICES,
    GenerationRequest,
    one_dropped_token,
    sampling_of,
)
from quire.server.api.common.prompt_types import EncodeParts, PromptTypes
from quire.server.http import field_bounds
from quire.server.http.field_bounds import TokenId

PROMPTS = PromptTypes("prompt", str, MAX_CHOICES)

_False = Annotated[bool, msgspec.Meta(extra_json_schema={"const": False})]
BiasOrNever = field_bounds.TokenBias | _False  # false: the token is never drawn, as with -100
_MOST_BIASES = msgspec.Meta(max_length=MAX_LOGIT_BIAS)
# a token id, also as the text of a key, or a text whose tokens all get the bias
BiasMap = Annotated[dict[field_bounds.Word, BiasOrNever], _MOST_BIASES]
BiasPairs = Annotated[list[tuple[TokenId | field_bounds.Word, BiasOrNever]], _MOST_BIASES]


class NativeCompletionRequest(GenerationRequest, kw_only=True, dict=True):
    """Body of /completion. prompt: text, token ids, both mixed, or a list of such prompts.

    n_probs: candidates to report for each token. return_tokens: also return the token ids.
    logit_bias: numbers for token ids or texts, as a map or as pairs; see token_biases. false: none.
    """

    logprobs_field: ClassVar = "n_probs"
    neutral: ClassVar = {
        **GenerationRequest.neutral,
        "prompt_logprobs": (None,),
        "return_token_ids": (None, False),
        "return_tokens_as_token_ids": (None, False),
        "stream_options": (None, {}, {"include_usage": False}),
    }
    raw_types: ClassVar = {"prompt": PROMPTS.types}
    long_field = "prompt"
    prompt: msgspec.Raw
    max_tokens: field_bounds.TokenLimitOrNone | None = None
    logit_bias: BiasMap | BiasPairs | _False | None = None  # type: ignore[assignment]
    n_probs: field_bounds.NumLogprobs | None = None
    return_tokens: bool | None = None


def token_biases(request: NativeCompletionRequest, encode: EncodeParts) -> dict[int, float] | None:
    """The biases of a request by token id. encode: makes the token ids of a text.

    All tokens of a text get its bias. What one token gets several times adds up, to 100 at most:
    more says nothing more, as -100 keeps a token out already.
    """
    given: Any = request.logit_bias
    if given is None or given is False:
        return None
    if given is True:
        raise invalid_value("logit_bias", "must be a map, a list of pairs, or false for none")
    found: dict[int, float] = {}
    for key, value in given.items() if isinstance(given, dict) else given:
        if value is True:
            raise invalid_value("logit_bias", "must be numbers, or false for never, not true")
        bias = -MAX_BIAS if value is False else value
        is_id = isinstance(key, int) or (key.isascii() and key.isdecimal())
        for token_id in [int(key)] if is_id else encode([key]):
            total = found.get(token_id, 0.0) + bias
            found[token_id] = max(-MAX_BIAS, min(total, MAX_BIAS))
    return found


def sampling(request: NativeCompletionRequest) -> SamplingParams:
    """The sampling params of a request. Raises InvalidRequestError."""
    max_tokens = request.max_tokens
    if max_tokens == 0:
        max_tokens = one_dropped_token(request)
    return sampling_of(request, max_tokens, request.n_probs or None, None)
