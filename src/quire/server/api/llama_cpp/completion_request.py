"""NativeCompletionRequest: the body of llama.cpp's /completion, and its prompts.

Sampling params are those of all routes, also under llama.cpp's names (quire.compat). An answer
ends with the context where n_predict would not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec

from quire.core.sampling_params import SamplingParams
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


class NativeCompletionRequest(GenerationRequest, kw_only=True, dict=True):
    """Body of /completion. prompt: text, token ids, both mixed, or a list of such prompts.

    n_probs: candidates to report for each token. return_tokens: also return the token ids.
    """

    prompt: msgspec.Raw
    n_probs: field_bounds.NumLogprobs | None = None
    return_tokens: bool | None = None


REFUSED: strict_json.NeutralValues = {
    **ASKS_FOR_NOTHING,
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
    check_request_names(found, request)
    return request


def sampling(request: NativeCompletionRequest) -> SamplingParams:
    """The sampling parameters of a request. Raises InvalidRequestError."""
    logprobs = request.n_probs or None
    return sampling_of(request, request.max_tokens, logprobs, request.prompt_logprobs)


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
