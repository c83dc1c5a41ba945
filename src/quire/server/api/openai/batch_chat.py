"""/v1/chat/completions/batch: several conversations in one request, each with one choice.

Owns what makes one job of several conversations; each is prepared, and all are read, as in chat.py.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from quire.errors import invalid_value
from quire.server.api.common import chat_request, conversation, route_rules
from quire.server.api.common.chat_request import ChatRequest, Messages
from quire.server.api.common.conversation import Conversation
from quire.server.api.common.generation_job import check_lists
from quire.server.api.common.generation_request import MAX_CHOICES
from quire.server.api.common.logprob_bounds import check_num_logprobs
from quire.server.api.common.micro_batch import Stages
from quire.server.api.common.model_route import GenerationRoute
from quire.server.api.common.streaming import answer
from quire.server.api.openai.chat import ChatFormatter
from quire.server.api.openai.chat_reply import ChatReply
from quire.server.http.field_names import FieldNames
from quire.server.http.openapi_entry import PostEntry
from quire.server.model_registry import ModelRegistry


class BatchChatRequest(ChatRequest, kw_only=True):
    """Body of /v1/chat/completions/batch: messages is a list of conversations."""

    messages: Annotated[  # type: ignore[assignment]  # the other fields are the same
        list[Messages], msgspec.Meta(min_length=1, max_length=MAX_CHOICES)
    ]


_SHARED = tuple(name for name in ChatRequest.__struct_fields__ if name != "messages")


def parse(data: bytes) -> list[ChatRequest]:
    """Decode a body; one request for each conversation. Raises InvalidRequestError."""
    request = chat_request.parse(data, BatchChatRequest)
    if request.stream:
        raise invalid_value("stream", "several conversations are not streamed; leave it out")
    if request.n not in (None, 1):
        raise invalid_value(
            "n", f"each conversation gets one answer, not {request.n}; leave it out"
        )
    shared = {name: getattr(request, name) for name in _SHARED}
    singles = [ChatRequest(messages=messages, **shared) for messages in request.messages]
    for single in singles:
        single.take_over(request)
    return singles


def prepare(body: bytes, models: ModelRegistry) -> Stages[ChatFormatter]:
    """Decode a body, render and encode its conversations, in stages. Raises InvalidRequestError."""
    requests = parse(body)
    first, model, chats = requests[0], models.find(requests[0].model), list[Conversation]()
    for index, request in enumerate(requests):
        yield
        names = FieldNames({"messages": f"messages[{index}]"})
        chats.append((yield from conversation.prepare(request, model, names=names)))
        check_lists(chats[-1].job.sampling, len(requests))
    jobs = [chat.job for chat in chats]
    job = msgspec.structs.replace(
        jobs[0],
        prompts=[prompt for job in jobs for prompt in job.prompts],
        samplings=[job.sampling for job in jobs],
        prompt_field="messages",
        names=first.sent_as,
    )
    with job.names:  # of all together
        limits = model.engine.info.limits
        check_num_logprobs(job.sampling, job.prompts, limits, first.logprobs_field)
    return ChatFormatter(chats, job, first, model.engine.tokenizer)


ROUTE = GenerationRoute(
    PostEntry(
        "/v1/chat/completions/batch",
        "Answer several conversations.",
        rules=(
            *route_rules.GENERATION,
            *route_rules.CHAT,
            route_rules.TOOL_CHOICE,
            "Fields are those of `/v1/chat/completions`, without `stream` and with `n` of 1.",
        ),
        example={"messages": [[route_rules.USER_MESSAGE]] * 2, "max_tokens": 8, "temperature": 0},
        body=BatchChatRequest,
        reply=ChatReply,
    ),
    prepare,
    answer,
)
