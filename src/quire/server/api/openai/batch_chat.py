"""/v1/chat/completions/batch: several conversations in one request, each with one choice.

Owns what makes one job of several conversations; each is prepared and read as in chat.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec

from quire.core.request_output import RequestOutput
from quire.errors import invalid_value
from quire.server.api.common import conversation, route_rules
from quire.server.api.common.chat_request import ChatRequest, Messages
from quire.server.api.common.generation_job import check_lists
from quire.server.api.common.generation_request import MAX_CHOICES, check_fields
from quire.server.api.common.logprob_bounds import check_num_logprobs
from quire.server.api.common.micro_batch import Stages
from quire.server.api.common.model_route import GenerationRoute
from quire.server.api.common.streaming import OpenAIReplyFormatter, answer
from quire.server.api.common.usage import CompletionTokensDetails, Usage
from quire.server.api.openai.chat import ChatFormatter
from quire.server.api.openai.chat_reply import ChatReply
from quire.server.http.field_names import FieldNames
from quire.server.http.openapi_entry import PostEntry
from quire.server.http.request_body import read_body
from quire.server.model_registry import ModelRegistry
from quire.tokenizer.tokenizer import Tokenizer


class BatchChatRequest(ChatRequest, kw_only=True):
    """Body of /v1/chat/completions/batch: messages is a list of conversations."""

    messages: Annotated[  # type: ignore[assignment]  # the other fields are the same
        list[Messages], msgspec.Meta(min_length=1, max_length=MAX_CHOICES)
    ]


_SHARED = tuple(name for name in ChatRequest.__struct_fields__ if name != "messages")


def parse(data: bytes) -> list[ChatRequest]:
    """Decode a body; one request for each conversation. Raises InvalidRequestError."""
    request = read_body(data, BatchChatRequest)
    check_fields(request)
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


def prepare(body: bytes, models: ModelRegistry) -> Stages[BatchChatFormatter]:
    """Decode a body, render and encode its conversations, in stages. Raises InvalidRequestError."""
    requests = parse(body)
    model = models.find(requests[0].model)
    formatters = []
    for index, request in enumerate(requests):
        yield
        names = FieldNames({"messages": f"messages[{index}]"})
        chat = yield from conversation.prepare(request, model, names=names)
        formatters.append(ChatFormatter(chat, request, model.engine.tokenizer))
        check_lists(chat.job.sampling, len(requests))
    formatter = BatchChatFormatter(formatters, requests[0].sent_as, model.engine.tokenizer)
    job, limits = formatter.job, model.engine.info.limits
    prompts = [prompt for prompt in job.prompts if not isinstance(prompt, str)]
    with job.names:
        check_num_logprobs(job.sampling, prompts, limits, "top_logprobs")  # of all together
    return formatter


class BatchChatFormatter(OpenAIReplyFormatter):
    """The ReplyFormatter of /v1/chat/completions/batch.

    formatters: of its conversations. names: of the body's fields, for errors.
    """

    def __init__(
        self, formatters: Sequence[ChatFormatter], names: FieldNames, tokenizer: Tokenizer
    ) -> None:
        jobs = [formatter.job for formatter in formatters]
        job = msgspec.structs.replace(
            jobs[0],
            prompts=[prompt for job in jobs for prompt in job.prompts],
            samplings=[job.sampling for job in jobs],
            prompt_field="messages",
            names=names,
        )
        super().__init__(job, tokenizer)
        self._formatters = formatters

    def reply(self, results: Sequence[RequestOutput], usage: Usage) -> ChatReply:
        """All answers as one chat completion, numbered by conversation."""
        choices = []
        for index, (formatter, item) in enumerate(zip(self._formatters, results, strict=True)):
            (output,) = item.outputs
            choice = formatter.choice(output)
            choice.index = index
            formatter.describe_prompt(choice, item)
            choices.append(choice)
        reasoning = sum(formatter.num_reasoning_tokens for formatter in self._formatters)
        usage.completion_tokens_details = CompletionTokensDetails(reasoning)
        return self._formatters[0].reply_of(choices, usage)

    def chunks(self, _index: int, _item: RequestOutput) -> Iterable[msgspec.Struct]:
        """Never called: requests for a stream are refused."""
        raise AssertionError("several conversations are not streamed")

    def ending(self, _usage: Usage) -> Iterable[msgspec.Struct]:
        """Never called, as `chunks`."""
        raise AssertionError("several conversations are not streamed")


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
