"""The route /v1/responses: from a body to a conversation; what is stored of its answer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

import msgspec
from starlette.types import Send

from quire.errors import invalid_value
from quire.server.api.common import conversation, route_rules
from quire.server.api.common.micro_batch import Stages
from quire.server.api.common.model_route import GenerationRoute
from quire.server.api.common.request_gate import RequestContext
from quire.server.api.common.streaming import answer
from quire.server.api.openai import responses_reply as replies
from quire.server.api.openai import responses_request
from quire.server.api.openai.background_responses import BackgroundWatch, answer_in_background
from quire.server.api.openai.response_items import RUNNING, is_long, stored_items, stored_response
from quire.server.api.openai.response_store import ResponseStore
from quire.server.api.openai.responses_formatter import ResponsesFormatter
from quire.server.api.openai.responses_request import ResponsesRequest
from quire.server.api.openai.responses_to_chat import NAMES, to_chat
from quire.server.api.openai.responses_tools import read_tools
from quire.server.http.openapi_entry import PostEntry
from quire.server.http.request_body import read_body
from quire.server.model_registry import ModelRegistry


def prepare(
    store: ResponseStore, data: bytes, models: ModelRegistry, tenant: str
) -> Stages[ResponsesFormatter]:
    """Decode a body, render and encode the conversation, in stages. Raises InvalidRequestError."""
    request = read_body(data, ResponsesRequest)
    model = models.find(request.model)
    if not store.is_on:
        request.store = False
    responses_request.check_background(request)
    tools, previous = read_tools(request.tools or ()), stored_items(store, request, tenant)
    chat = to_chat(request, tools, previous.items)
    yield
    names = NAMES.joined(tools.names)
    chat_job = yield from conversation.prepare(chat, model, id_prefix="resp_", names=names)
    keep = partial(_keep, store, tenant, request, previous.items)
    num_bytes = len(data) + previous.num_bytes
    return ResponsesFormatter(chat_job, request, tools, model.engine.tokenizer, keep, num_bytes)


def _keep(
    store: ResponseStore,
    tenant: str,
    request: ResponsesRequest,
    previous: Sequence[msgspec.Raw],
    response: replies.Response,
) -> None:
    """Store a response, unless its request does not want that; replace it once it is queued.

    Raises OverloadedError if it could not be replaced, and InvalidRequestError if it has to be
    stored and is too large.
    """
    if not response.store:
        return
    is_running = response.status in RUNNING
    if response.background and response.status != "queued":
        encoded = msgspec.json.encode(response)
        store.replace_running(response.id, tenant, encoded, is_running=is_running)
        return
    stored = stored_response(response, request, previous)
    stored = stored._replace(process=os.getpid() if is_running else 0)
    if response.background and stored.num_bytes > store.max_each:
        problem = f"a response of {stored.num_bytes} bytes is not stored (at most {store.max_each})"
        raise invalid_value("background", f"{problem}; shorten the input, or leave it out")
    response.store = store.put(response.id, tenant, stored)


def route(store: ResponseStore) -> GenerationRoute[ResponsesFormatter]:
    """The route, which keeps responses in the store."""
    run = partial(_answer, BackgroundWatch(store))
    return GenerationRoute(_ENTRY, partial(prepare, store), run, is_long, needs_tenant=True)


async def _answer(
    watch: BackgroundWatch, formatter: ResponsesFormatter, context: RequestContext, send: Send
) -> None:
    """Answer; until then the stored turns count as bytes of the body."""
    context.hold_bytes(formatter.num_bytes)
    if formatter.is_in_background:
        await answer_in_background(formatter, watch, context, send)
    else:
        await answer(formatter, context, send)


_ENTRY = PostEntry(
    "/v1/responses",
    "Answer a conversation, as a response, which is stored unless `store` is false.",
    rules=(
        route_rules.MODEL,
        route_rules.CONTEXT,
        route_rules.STRUCTURED_OUTPUT,
        route_rules.LOGPROBS,
        "`previous_response_id` names a stored response of the same API key, and an item of type"
        " `item_reference` an item of its output.",
        *route_rules.CHAT,
        route_rules.TOOL_CHOICE,
        "`reasoning.effort` needs a chat template that reads it.",
    ),
    example={"input": "hello", "max_output_tokens": 8},
    body=ResponsesRequest,
    reply=replies.Response,
    events=replies.EVENTS,
)
