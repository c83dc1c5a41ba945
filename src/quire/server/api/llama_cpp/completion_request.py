"""NativeCompletionRequest: the body of llama.cpp's /completion, and its prompts.

Sampling params are those of all routes, also under llama.cpp's names (quire.compat). An answer
ends with the context where n_predict would not; of 0 tokens, it only caches its prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec

from quire.core.sampling_params import MAX_LOGIT_BIAS, SamplingParams
from quire.engine.frontend.prompt_encoding import Prompt
from quire.errors import invalid_value
from quire.server.api.common.generation_request import (
    ASKS_FOR_NOTHING,
    MAX_CHOICES,
    GenerationRequest,
    check_request_names,
    sampling_of,
)
from quire.server.api.common.response_format import STRUCTURED_OUTPUT_RULES
from quire.server.http import field_bounds, strict_json
from quire.server.http.field_bounds import TokenId
from quire.server.http.openapi_entry import StructRules
from quire.server.http.request_body import neutral_values, read_body
from quire.server.http.strict_json import Strict


class TextPrompt(Strict):
    """A prompt as an object. multimodal_data: nothing, as models read text alone."""

    prompt_string: str
    multimodal_data: Annotated[list[Any], msgspec.Meta(max_length=0)] | None = None


_OneOrMore = msgspec.Meta(min_length=1)
Part = TokenId | str
EncodeParts = Callable[[Sequence[int | str]], list[int]]
OnePrompt = str | Annotated[list[Part], _OneOrMore] | TextPrompt
PROMPT_TYPES = (
    str,
    TextPrompt,
    Annotated[list[Part], _OneOrMore],
    Annotated[list[OnePrompt], msgspec.Meta(min_length=1, max_length=MAX_CHOICES)],
)

BiasPairs = Annotated[
    list[tuple[TokenId, field_bounds.TokenBias]], msgspec.Meta(max_length=MAX_LOGIT_BIAS)
]


class NativeCompletionRequest(GenerationRequest, kw_only=True, dict=True):
    """Body of /completion. prompt: text, token ids, both mixed, or a list of such prompts.

    n_probs: candidates to report for each token. return_tokens: also return the token ids.
    logit_bias: a map, or llama.cpp's pairs of a token id and a number, which add up.
    """

    prompt: msgspec.Raw
    max_tokens: field_bounds.TokenCountOrNone | None = None
    logit_bias: field_bounds.LogitBias | BiasPairs | None = None  # type: ignore[assignment]
    n_probs: field_bounds.NumLogprobs | None = None
    return_tokens: bool | None = None


REFUSED: strict_json.NeutralValues = {
    **ASKS_FOR_NOTHING,
    "prompt_logprobs": (None,),
    "return_token_ids": (None, False),
    "return_tokens_as_token_ids": (None, False),
    "stream_options": (None, {}, {"include_usage": False}),
    "post_sampling_probs": (None, False),
    "response_fields": (None, []),
    "n_keep": (None, 0),
    "n_cache_reuse": (None, 0),
    "n_indent": (None, 0),
    "t_max_predict_ms": (None, 0),
    "lora": (None, []),
}
_decoder = msgspec.json.Decoder(NativeCompletionRequest)
_prompt_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
    str | TextPrompt | list[TokenId | str | list[Part] | TextPrompt]
)


def parse(data: bytes) -> NativeCompletionRequest:
    """Decode a body. Raises InvalidRequestError."""
    request, found = read_body(data, _decoder, REFUSED, long="prompt")
    check_request_names(found, request, "n_probs")
    if isinstance(request.logit_bias, list):
        request.logit_bias = _summed(request.logit_bias)
    return request


def _summed(pairs: Sequence[tuple[int, float]]) -> dict[int, float]:
    bias: dict[int, float] = {}
    for token_id, value in pairs:
        bias[token_id] = bias.get(token_id, 0.0) + value
    return bias


def sampling(request: NativeCompletionRequest) -> SamplingParams:
    """The sampling params of a request. Raises InvalidRequestError."""
    max_tokens = request.max_tokens
    if max_tokens == 0:
        if request.min_tokens:
            raise invalid_value(
                "min_tokens", f"{request.min_tokens} is above max_tokens (0); lower it"
            )
        max_tokens = 1  # drawn at the end of each prompt; job_runner.py drops it
    return sampling_of(request, max_tokens, request.n_probs or None, None)


def prompts(request: NativeCompletionRequest, encode: EncodeParts) -> list[Prompt]:
    """The prompts of a request. encode: for those of texts between token ids."""
    given = strict_json.decode(bytes(request.prompt), _prompt_decoder, path="prompt")
    if not isinstance(given, list):
        return [_prompt(given, encode)]
    kinds = set(map(type, given))
    if int in kinds and not kinds <= {int, str}:
        raise invalid_value("prompt", "token ids stand beside texts alone; put them into a list")
    if int in kinds:
        return [_prompt(given, encode)]
    if not 1 <= len(given) <= MAX_CHOICES:
        raise invalid_value("prompt", f"must have 1 to {MAX_CHOICES} prompts, not {len(given)}")
    return [_prompt(one, encode) for one in given]


def _prompt(one: Any, encode: EncodeParts) -> Prompt:
    """One prompt: a text, or the token ids of its parts."""
    if isinstance(one, TextPrompt):
        return one.prompt_string
    if isinstance(one, str) or all(type(part) is int for part in one):
        return one  # type: ignore[no-any-return]  # as decoded
    return encode(one)


RULES = (
    StructRules(
        struct=NativeCompletionRequest,
        neutral=neutral_values(NativeCompletionRequest, REFUSED),
        raw={"prompt": PROMPT_TYPES},
    ),
    STRUCTURED_OUTPUT_RULES,
)
