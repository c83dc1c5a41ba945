"""EmbeddingRequest: the body of /v1/embeddings and of /pooling, and its inputs."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec

from quire.core.pooling_params import Pooling
from quire.engine.frontend.prompt_encoding import Prompt
from quire.errors import invalid_value, one_of_two
from quire.server.api.common.chat_request import CHAT_FIELDS, ChatRequest, Messages
from quire.server.api.common.embedding_job import MAX_INPUTS, Dimensions, PoolingFields, Text
from quire.server.api.common.micro_batch import Stages
from quire.server.api.common.prompt_types import EncodeParts, PromptTypes
from quire.server.api.openai.embeddings_reply import ByteOrder, EncodingFormat, VectorDtype
from quire.server.http.field_bounds import ShortText, one_of
from quire.server.http.http_errors import HttpError
from quire.server.http.request_body import read_body

INPUTS = PromptTypes("input", Text, MAX_INPUTS, mixes=False)
_VARIANTS: tuple[dict[str, Any], ...] = (  # an input or messages, as JSON Schema
    {
        "required": ["input"],
        "properties": {"input": {"type": ["string", "array", "object"]}}
        | {name: {"type": "null"} for name in CHAT_FIELDS},
    },
    {
        "required": ["messages"],
        "properties": {"input": {"type": "null"}, "messages": {"type": "array"}},
    },
)


class EmbeddingRequest(PoolingFields, kw_only=True, dict=True):
    """Body of /v1/embeddings. input: one or several texts or lists of token ids, in PromptTypes.

    messages: a conversation in its place, rendered by the chat template. encoding_format: numbers
    in JSON, their bytes as base64, or a reply of bytes; embed_dtype, endianness: of such bytes.
    dimensions: return only the first numbers. pooling, normalize: instead of the model's own
    settings.
    """

    variants = _VARIANTS
    raw_types: ClassVar = {"input": (*INPUTS.types, None)}
    long_field = "input"
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    messages: Messages | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    encoding_format: EncodingFormat | None = None
    embed_dtype: VectorDtype | None = None
    endianness: ByteOrder | None = None
    dimensions: Dimensions | None = None
    pooling: Pooling | None = None
    normalize: bool | None = None


class PoolingRequest(EmbeddingRequest, kw_only=True, dict=True):
    """Body of /pooling, the same but for the task: one vector for each input."""

    task: Annotated[ShortText, one_of("embed")] | None = None


def parse(data: bytes) -> EmbeddingRequest:
    """Decode a body of /v1/embeddings. Raises InvalidRequestError."""
    request = read_body(data, EmbeddingRequest)
    _check(request)
    return request


def parse_pooling(data: bytes) -> PoolingRequest:
    """Decode a body of /pooling. Raises InvalidRequestError."""
    request = read_body(data, PoolingRequest)
    if request.task not in (None, "embed"):
        problem = f"Unsupported task: {request.task!r}"
        if request.task == "plugin":
            problem = "No IOProcessor plugin installed."
        text = f"{problem}; task must be 'embed'"
        # in vLLM's words, as the path is vLLM's
        error = HttpError(400, text, code="invalid_value", kind="BadRequestError")
        error.param = "task"
        raise error
    _check(request)
    return request


def _check(request: EmbeddingRequest) -> None:
    if request.messages is not None and _raw_input(request) not in (b"", b"null"):
        raise one_of_two("input", "messages", is_missing=False)
    if request.messages is None and not _raw_input(request):
        raise one_of_two("input", "messages", is_missing=True)
    for name in CHAT_FIELDS:
        if request.messages is None and getattr(request, name) is not None:
            raise invalid_value(name, "it belongs to messages, not to an input; remove it")


def chat(request: EmbeddingRequest) -> ChatRequest:
    """The conversation of a request, which nothing is to answer unless it says so."""
    fields = {name: getattr(request, name) for name in CHAT_FIELDS}
    fields["add_generation_prompt"] = bool(request.add_generation_prompt)
    return ChatRequest(**fields, add_special_tokens=request.add_special_tokens)


def _raw_input(request: EmbeddingRequest) -> bytes:
    return b"" if request.input is msgspec.UNSET else bytes(request.input)


def inputs(request: EmbeddingRequest, encode: EncodeParts) -> Stages[list[Prompt]]:
    """The inputs of a request, whatever form they have, in stages. Raises InvalidRequestError."""
    return INPUTS.read(_raw_input(request), encode)
