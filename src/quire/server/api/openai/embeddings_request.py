"""EmbeddingRequest: the body of /v1/embeddings, and its inputs."""

from __future__ import annotations

from typing import Annotated, Literal, cast

import msgspec

from quire.core.pooling_params import Pooling
from quire.errors import invalid_value
from quire.server.http import field_bounds, strict_json
from quire.server.http.field_bounds import Int32, ShortText, TokenId
from quire.server.http.openapi_entry import StructRules
from quire.server.http.request_body import RequestBody, neutral_values, read_body

MAX_INPUTS = 2048  # in one request, as OpenAI has it
MAX_DIMENSIONS = 1 << 20

Text = Annotated[str, msgspec.Meta(min_length=1)]
TokenIds = Annotated[list[TokenId], msgspec.Meta(min_length=1)]
Inputs = Text | Annotated[list[TokenId | Text | TokenIds], msgspec.Meta(min_length=1)]
_InputList = msgspec.Meta(min_length=1, max_length=MAX_INPUTS)
INPUT_TYPES = (  # the same in detail: a decoder cannot distinguish these lists
    Text,
    Annotated[list[Text], _InputList],
    TokenIds,
    Annotated[list[TokenIds], _InputList],
)


class PoolingFields(RequestBody, kw_only=True, dict=True):
    """The fields of all requests that embed texts; as for completions. user: without any effect."""

    model: str | None = None
    user: ShortText | None = None
    priority: Int32 | None = None
    cache_salt: ShortText | None = None
    timeout: field_bounds.Seconds | None = None
    truncate_prompt_tokens: field_bounds.PromptLength | None = None
    add_special_tokens: bool | None = None


class EmbeddingRequest(PoolingFields, kw_only=True, dict=True):
    """Body of /v1/embeddings. input: one or several texts or lists of token ids.

    encoding_format: "base64" is of float32 numbers, little-endian. dimensions: return only the
    first numbers. pooling, normalize: instead of the model's own settings.
    """

    input: msgspec.Raw
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, msgspec.Meta(ge=1, le=MAX_DIMENSIONS)] | None = None
    pooling: Pooling | None = None
    normalize: bool | None = None


EMBEDDING_REFUSED: strict_json.NeutralValues = {}

_decoder = msgspec.json.Decoder(EmbeddingRequest)
_input_decoder: msgspec.json.Decoder[Inputs] = msgspec.json.Decoder(Inputs)


def parse(data: bytes) -> EmbeddingRequest:
    """Decode a body. Raises InvalidRequestError."""
    request, _ = read_body(data, _decoder, EMBEDDING_REFUSED, long="input")
    check_pooling_fields(request)
    return request


def check_pooling_fields(request: PoolingFields) -> None:
    """Check what no type says. Raises InvalidRequestError."""
    if request.truncate_prompt_tokens == 0:
        raise invalid_value("truncate_prompt_tokens", "must be an integer >= 1, or -1, not 0")


def inputs(request: EmbeddingRequest) -> list[str] | list[list[int]]:
    """The inputs of a request, whatever form they have. Raises InvalidRequestError."""
    given = strict_json.decode(bytes(request.input), _input_decoder, path="input")
    if isinstance(given, str):
        return [given]
    kinds = set(map(type, given))  # in C, as there may be very many ids
    if kinds == {int}:
        return [cast(list[int], given)]
    if kinds not in ({str}, {list}):
        text = "must be a text, a list of texts, a list of token ids, or a list of such lists"
        raise invalid_value("input", text)
    if len(given) > MAX_INPUTS:
        problem = f"{len(given)} of them; send at most {MAX_INPUTS} in one request"
        raise invalid_value("input", problem)
    return cast(list[str] | list[list[int]], given)


EMBEDDING_RULES = StructRules(
    struct=EmbeddingRequest,
    neutral=neutral_values(EmbeddingRequest, EMBEDDING_REFUSED),
    raw={"input": INPUT_TYPES},
)
