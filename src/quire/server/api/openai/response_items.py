"""The items of stored responses: those of a conversation so far, and how they are kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from quire.errors import InvalidRequestError, invalid_value
from quire.server.api.common.chat_request import MAX_MESSAGES
from quire.server.api.common.model_route import is_large
from quire.server.api.openai.response_store import ResponseStore, StoredResponse
from quire.server.api.openai.responses_input import ItemReference, read_item
from quire.server.api.openai.responses_reply import Response
from quire.server.api.openai.responses_request import ResponsesRequest
from quire.server.http.request_record import new_id

_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}
_RESPONSE = "resp_"  # prefix of a response's id
RUNNING = ("queued", "in_progress")  # states of a response in the background
UNANSWERED = (*RUNNING, "cancelled", "failed")
_WITHOUT_EFFECT = ("annotations", "logprobs")  # of a part


class _Output(msgspec.Struct):
    """The part of a stored reply that the next turn reads."""

    output: list[msgspec.Raw]
    status: str


class PreviousItems(NamedTuple):
    """The items of a conversation's earlier turns. num_bytes: what they hold in memory."""

    items: list[msgspec.Raw]
    num_bytes: int


_items_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_output_decoder = msgspec.json.Decoder(_Output)
_encoder = msgspec.json.Encoder()


def is_long(body: bytes) -> bool:
    """Whether a body is large or may go on with stored responses, which may be large."""
    # a name may be escaped, as in "\u0070revious_response_id"
    names = (b"previous_response_id", b"item_reference", b"\\u00")
    return is_large(body) or any(name in body for name in names)


def output_item_id(prefix: str, response_id: str, index: int) -> str:
    """The id of an item of a response's output, by which that response is found."""
    return f"{prefix}_{response_id.removeprefix(_RESPONSE)}_{index}"


def stored_items(store: ResponseStore, request: ResponsesRequest, tenant: str) -> PreviousItems:
    """The items of the conversation that a request goes on with.

    Items that its input refers to are put into it. Raises InvalidRequestError.
    """
    num_bytes = _resolve_references(store, request, tenant)
    previous = _previous_items(store, request, tenant)
    return previous._replace(num_bytes=previous.num_bytes + num_bytes)


def _resolve_references(store: ResponseStore, request: ResponsesRequest, tenant: str) -> int:
    """Put the items of stored responses in the places of references; returns their bytes."""
    if isinstance(items := request.input, str):
        return 0
    found, num_bytes = dict[str, dict[str, msgspec.Raw]](), 0
    for index, raw in enumerate(items):
        data = bytes(raw)
        if b"item_reference" not in data and b"\\u00" not in data:  # which may be letters of it
            continue
        where = f"input[{index}]"
        if isinstance(item := read_item(raw, where), ItemReference):
            items[index] = resolved = _referred(store, item.id, tenant, found, f"{where}.id")
            num_bytes += len(bytes(resolved))
            if num_bytes > store.max_each:  # one item may be referred to many times
                problem = f"items that it refers to have more than {store.max_each} bytes in all"
                raise invalid_value("input", f"{problem}; send fewer", where=where)
    return num_bytes


def _referred(
    store: ResponseStore,
    item_id: str,
    tenant: str,
    found: dict[str, dict[str, msgspec.Raw]],
    where: str,
) -> msgspec.Raw:
    """The item with this id. found: is filled with the items of responses, by their ids."""
    response_id = _RESPONSE + item_id.partition("_")[2].rpartition("_")[0]
    if response_id not in found:
        stored = store.get(response_id, tenant)
        output = _output_decoder.decode(stored.reply).output if stored is not None else []
        items = map(_decoded, output)
        found[response_id] = {item["id"]: _encoded(item) for item in items}
    if (item := found[response_id].get(item_id)) is not None:
        return item
    raise InvalidRequestError(
        f"{where}: Item with id '{item_id[:128]}' not found. Items are kept with responses whose"
        " `store` is not false; send the item itself.",
        param=where,
        code="item_not_found",
    )


def _previous_items(store: ResponseStore, request: ResponsesRequest, tenant: str) -> PreviousItems:
    response_id = request.previous_response_id
    if response_id is None:
        return PreviousItems([], 0)
    stored = store.get(response_id, tenant)
    if stored is None:
        raise InvalidRequestError(
            f"Previous response with id '{response_id[:128]}' not found.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    reply = _output_decoder.decode(stored.reply)
    if reply.status in UNANSWERED:
        problem = f"that response is {reply.status}; go on with one that is completed"
        raise invalid_value("previous_response_id", problem)
    answered = reply.output
    items = _items_decoder.decode(stored.items) + [_encoded(_decoded(item)) for item in answered]
    num_own = 1 if isinstance(request.input, str) else len(request.input)
    if len(items) + num_own > MAX_MESSAGES:
        problem = f"{len(items)} items before these are more than {MAX_MESSAGES} in all"
        raise invalid_value("input", f"{problem}; start a new conversation")
    return PreviousItems(items, len(stored.items) + len(stored.reply))


def stored_response(
    response: Response, request: ResponsesRequest, previous: Sequence[msgspec.Raw]
) -> StoredResponse:
    """The part of a response that is stored. previous: the items of its earlier turns."""
    items = [*previous, *map(_encoded, _own_items(request))]
    return StoredResponse(_encoder.encode(response), _encoder.encode(items))


def _own_items(request: ResponsesRequest) -> Iterator[dict[str, Any]]:
    """The request's items, with all that clients' types require; texts of messages as parts."""
    if isinstance(request.input, str):
        yield _completed({"type": "message", "role": "user", "content": request.input})
        return
    for raw in request.input:
        yield _completed(_decoded(raw))


def _encoded(item: dict[str, Any]) -> msgspec.Raw:
    return msgspec.Raw(_encoder.encode(item))


def _decoded(raw: msgspec.Raw) -> dict[str, Any]:
    """An item, less what never reaches a prompt and has no bound."""
    item: dict[str, Any] = msgspec.json.decode(raw)
    for parts in (item.get("content"), item.get("output")):
        for part in parts if isinstance(parts, list) else ():
            for name in _WITHOUT_EFFECT:
                if part.get(name):
                    part[name] = []
    return item


def _completed(item: dict[str, Any]) -> dict[str, Any]:
    kind = item.setdefault("type", "message")
    if item.get("status") is None:
        item["status"] = "completed"
    if item.get("id") is None:
        item["id"] = f"{_PREFIXES.get(kind, 'rs')}_{new_id()}"
    if kind == "message" and isinstance(item["content"], str):
        part = "output_text" if item["role"] == "assistant" else "input_text"
        item["content"] = [{"type": part, "text": item["content"]}]
    for part in item["content"] if kind == "message" else ():
        if part["type"] == "output_text" and part.get("annotations") is None:
            part["annotations"] = []
    return item
