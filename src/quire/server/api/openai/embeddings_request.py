"""EmbeddingRequest: the body of /v1/embeddings and of /pooling, and its inputs."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec

from quire.core.pooling_params import Pooling
from quire.server.api.common.chat_request import (
    CHAT_FIELDS,
    ChatRequest,
    Messages,
    check_input,
)
from quire.server.api.common.embedding_job import MAX_INPUTS, Dimensions, PoolingFields, Text
from quire.server.api.common.prompt_types import PromptTypes
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


def parse(data: bytes, *, is_pooling: bool) -> EmbeddingRequest:
    """Decode a body of /pooling, or of /v1/embeddings. Raises InvalidRequestError."""
    request = read_body(data, PoolingRequest if is_pooling else EmbeddingRequest)
    if isinstance(request, PoolingRequest) and request.task not in (None, "embed"):
        raise _wrong_task(request.task)
    missing = (b"",) if request.messages is None else (b"", b"null")
    check_input(request, "input", is_given=raw_input(request) not in missing)
    return request


def _wrong_task(task: str) -> HttpError:
    """The error in vLLM's words, as the path is vLLM's."""
    is_plugin = task == "plugin"
    problem = "No IOProcessor plugin installed." if is_plugin else f"Unsupported task: {task!r}"
    text = f"{problem}; task must be 'embed'"
    error = HttpError(400, text, code="invalid_value", kind="BadRequestError")
    error.param = "task"
    return error


def chat(request: EmbeddingRequest) -> ChatRequest:
    """The conversation of a request, which nothing is to answer unless it says so."""
    fields = {name: getattr(request, name) for name in CHAT_FIELDS}
    fields["add_generation_prompt"] = bool(request.add_generation_prompt)
    return ChatRequest(**fields, add_special_tokens=request.add_special_tokens)


def raw_input(request: EmbeddingRequest) -> bytes:
    """The field `input` as it was sent; nothing if it was not."""
    return b"" if request.input is msgspec.UNSET else bytes(request.input)
