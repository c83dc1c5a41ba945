"""CompletionRequest: the body of /v1/completions, its prompts and its sampling params.

max_tokens is 16 where it is absent or null.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, cast

import msgspec

from quire.core.sampling_params import SamplingParams
from quire.errors import invalid_value
from quire.server.api.common.generation_request import (
    MAX_CHOICES,
    GenerationRequest,
    one_dropped_token,
    sampling_of,
)
from quire.server.api.common.logprob_formats import ALL
from quire.server.http import field_bounds, strict_json
from quire.server.http.field_bounds import TokenId

Prompts = str | list[TokenId | str | list[TokenId]]
_PromptList = msgspec.Meta(min_length=1, max_length=MAX_CHOICES)
_OneOrMore = msgspec.Meta(min_length=1)
PROMPT_TYPES = (  # the same in detail: a decoder cannot distinguish these lists
    str,
    Annotated[list[str], _PromptList],
    Annotated[list[TokenId], _OneOrMore],
    Annotated[list[Annotated[list[TokenId], _OneOrMore]], _PromptList],
)


class CompletionRequest(GenerationRequest, kw_only=True):
    """Body of /v1/completions. prompt: one or several texts or lists of token ids.

    max_tokens: 0 is allowed with echo: only the prompt is returned, such as with its logprobs;
    -1 is the rest of the context.
    """

    raw_types: ClassVar = {"prompt": PROMPT_TYPES}
    long_field = "prompt"
    prompt: msgspec.Raw
    max_tokens: field_bounds.TokenLimitOrNone | None = None
    echo: bool | None = None
    logprobs: field_bounds.NumLogprobs | None = None


_prompt_decoder: msgspec.json.Decoder[Prompts] = msgspec.json.Decoder(Prompts)
_ids_decoder = msgspec.json.Decoder(Annotated[list[TokenId], _OneOrMore])


def prompts(request: CompletionRequest) -> list[str | list[int]]:
    """The prompts of a request, whatever form they have: a list of texts or of token id lists."""
    data = bytes(request.prompt)
    try:  # there may be very many ids, so they are decoded only once
        return [_ids_decoder.decode(data)]
    except msgspec.DecodeError:
        given = strict_json.decode(data, _prompt_decoder, path="prompt")
    if isinstance(given, str):
        return [given]
    kinds = set(map(type, given))
    if kinds not in ({str}, {list}):
        problem = "must be a text, a list of texts, a list of token ids, or a list of such lists"
        raise invalid_value("prompt", problem)
    return cast(list[str | list[int]], given)


def sampling(request: CompletionRequest) -> SamplingParams:
    """The sampling params of a request. Raises InvalidRequestError."""
    logprobs = request.logprobs
    prompt_logprobs = request.prompt_logprobs
    if request.echo and logprobs is not None:
        wanted = (logprobs, prompt_logprobs or 0)
        prompt_logprobs = ALL if ALL in wanted else max(wanted)
    max_tokens = 16 if request.max_tokens is None else request.max_tokens
    if max_tokens == 0:
        if not request.echo:
            problem = "must be at least 1 without echo, not 0; set echo, or 1"
            raise invalid_value("max_tokens", problem)
        max_tokens = one_dropped_token(request)
    return sampling_of(request, max_tokens, logprobs, prompt_logprobs)
