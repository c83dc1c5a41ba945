"""ChatRequest: the body of /v1/chat/completions, its checks, and its sampling params.

Without max_tokens an answer may fill the rest of the context.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec

from quire.core.sampling_params import SamplingParams
from quire.errors import invalid_value, one_of_two
from quire.server.api.common import generation_request
from quire.server.api.common.chat_messages import Message, check_message
from quire.server.api.common.generation_request import GenerationRequest, sampling_of
from quire.server.api.common.tool_definitions import ToolChoice, Tools, is_deeper
from quire.server.http import field_bounds
from quire.server.http.field_bounds import ShortText, TokenLimit
from quire.server.http.field_names import FieldNames, Origins
from quire.server.parsing.template_variables import RESERVED_NAMES

MAX_MESSAGES = 4096
MAX_TEMPLATE_KWARGS_BYTES = 16 << 10  # as compact JSON
MAX_TEMPLATE_KWARGS_DEPTH = 16  # of nested lists and objects

Metadata = Annotated[
    dict[Annotated[str, msgspec.Meta(max_length=64)], Annotated[str, msgspec.Meta(max_length=512)]],
    msgspec.Meta(max_length=16),
]
Messages = Annotated[list[Message], msgspec.Meta(min_length=1, max_length=MAX_MESSAGES)]


class ChatRequest(GenerationRequest, kw_only=True):
    """Body of /v1/chat/completions. chat_template_kwargs: variables for the chat template.

    continue_final_message: the answer goes on from the last message. echo: return that message
    (or, if it is not the assistant's, nothing) in front of the answer.
    reasoning_effort: how much the model reasons, if its template has such a variable.
    include_reasoning: whether the answer contains the reasoning. metadata: returned unchanged.
    """

    origins: ClassVar[Origins] = Origins()  # of one that was converted from another API's
    logprobs_field: ClassVar = "top_logprobs"
    neutral: ClassVar = {**GenerationRequest.neutral, "chat_template": (None,)}

    messages: Messages
    max_completion_tokens: TokenLimit | None = None
    logprobs: bool | None = None
    top_logprobs: field_bounds.NumLogprobs | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    echo: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: ShortText | None = None
    include_reasoning: bool | None = None
    metadata: Metadata | None = None

    def has_left_out(self, name: str) -> bool:
        """Whether the request gives no value for a field, under any name."""
        if name == "max_tokens" and self.max_completion_tokens is not None:
            return False
        return getattr(self, name) is None


# of those that other routes take in place of a text
CHAT_FIELDS = "messages", "add_generation_prompt", "continue_final_message", "chat_template_kwargs"


def check_input(
    request: Any, field: str, *, is_given: bool, chat_fields: Iterable[str] = CHAT_FIELDS
) -> None:
    """Refuse both of a text and `messages`, neither, and fields of a chat beside a text.

    field: of the text; is_given: whether it was sent. Raises InvalidRequestError.
    """
    if is_given == (request.messages is not None):
        raise one_of_two(field, "messages", is_missing=not is_given)
    for name in chat_fields if is_given else ():
        if getattr(request, name) is not None:
            raise invalid_value(name, f"it belongs to messages, not to {field}; remove it")


_NEWER_LIMIT = FieldNames({"max_tokens": "max_completion_tokens"})


T = TypeVar("T", bound=ChatRequest)


def parse(data: bytes, kind: type[T]) -> T:
    """Decode a body. Raises InvalidRequestError."""
    request = generation_request.parse(data, kind)
    if request.max_tokens is None and request.max_completion_tokens is not None:
        request.__dict__["sent_as"] = _NEWER_LIMIT.joined(request.sent_as)
    return request


def check(request: ChatRequest) -> None:
    """Check messages and template variables beyond their types. Raises InvalidRequestError.

    Also for other APIs' requests once they have been converted to a ChatRequest.
    """
    for index, message in enumerate(request.messages):
        check_message(message, f"messages[{index}].")
    if request.chat_template_kwargs:
        _check_template_kwargs(request.chat_template_kwargs)


def sampling(request: ChatRequest) -> SamplingParams:
    """The sampling params of a request. Raises InvalidRequestError."""
    if request.top_logprobs and not request.logprobs:  # 0 asks for nothing, and is a default
        raise invalid_value("top_logprobs", "it needs logprobs; set logprobs to true")
    limits = {request.max_tokens, request.max_completion_tokens} - {None}
    if len(limits) > 1:
        problem = "it differs from max_tokens; set one of them"
        raise invalid_value("max_completion_tokens", problem)
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    max_tokens = limits.pop() if limits else None
    if max_tokens == 0:
        field = "max_tokens" if request.max_tokens == 0 else "max_completion_tokens"
        raise invalid_value(field, "must be an integer >= 1, or -1, not 0")
    return sampling_of(request, max_tokens, logprobs, request.prompt_logprobs)


def _check_template_kwargs(variables: dict[str, Any]) -> None:
    problem, where = None, "chat_template_kwargs"
    if reserved := sorted(RESERVED_NAMES & set(variables)):
        problem, where = "it cannot be set here; remove it", f"{where}.{reserved[0]}"
    elif is_deeper(variables, MAX_TEMPLATE_KWARGS_DEPTH):
        problem = f"nested more than {MAX_TEMPLATE_KWARGS_DEPTH} deep; flatten it"
    elif (size := len(msgspec.json.encode(variables))) > MAX_TEMPLATE_KWARGS_BYTES:
        problem = f"{size} bytes; send at most {MAX_TEMPLATE_KWARGS_BYTES}"
    if problem is not None:
        raise invalid_value("chat_template_kwargs", problem, where=where)
