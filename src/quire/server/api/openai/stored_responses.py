"""/v1/responses/{id}: stored responses and their input items, read and deleted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from quire.errors import invalid_value
from quire.server.api.common.request_gate import RequestGate, caller_of
from quire.server.api.openai.response_store import ResponseStore, StoredResponse
from quire.server.api.openai.responses_reply import Response
from quire.server.http.http_errors import HttpError
from quire.server.http.openapi_entry import ApiRoute, OpenApiEntry
from quire.server.http.request_reader import read_query

_PATH = "/v1/responses/{response_id}"
_ERRORS = (400, 404, 408, 429, 503, 504)


class DeletedResponse(msgspec.Struct):
    """The reply to DELETE /v1/responses/{id}."""

    id: str
    object: str = "response"
    deleted: bool = True


class ItemList(msgspec.Struct, kw_only=True):
    """A page of a response's input items. has_more: in the requested direction."""

    object: str = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class _PageQuery(msgspec.Struct, kw_only=True):
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None


class _Item(msgspec.Struct):
    id: str


_PROBLEMS = {"limit": "must be an integer between 1 and 100", "order": "must be asc or desc"}
_items_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_id_decoder = msgspec.json.Decoder(_Item)


class StoredResponsesRoutes:
    """The routes of stored responses."""

    def __init__(self, store: ResponseStore, gate: RequestGate) -> None:
        self._store = store
        self._gate = gate

    @property
    def routes(self) -> list[ApiRoute]:
        """The routes of all paths."""
        return [
            ApiRoute(
                self._response,
                OpenApiEntry(_PATH, "A stored response.", reply=Response, errors=_ERRORS),
                OpenApiEntry(
                    _PATH,
                    "Delete a stored response.",
                    method="delete",
                    reply=DeletedResponse,
                    errors=_ERRORS,
                ),
            ),
            ApiRoute(
                partial(self._run, self._page),
                OpenApiEntry(
                    f"{_PATH}/input_items",
                    "The input items of a stored response, earlier turns included.",
                    rules=("The query may have `limit` (1 to 100), `order` and `after`.",),
                    reply=ItemList,
                    errors=_ERRORS,
                ),
            ),
            ApiRoute(
                partial(self._run, self._cancelled),
                OpenApiEntry(
                    f"{_PATH}/cancel",
                    "Cancel a response that runs in the background.",
                    method="post",
                    reply=Response,
                    errors=_ERRORS,
                ),
            ),
        ]

    async def _response(self, request: Request) -> HttpResponse:
        if request.method == "DELETE":
            return await self._run(self._deleted, request)
        if request.query_params.get("stream") == "true":
            raise invalid_value("stream", "stored responses are not streamed; leave it out")
        return await self._run(lambda request: self._found(request).reply, request)

    async def _run(self, body_of: Callable[[Request], bytes], request: Request) -> HttpResponse:
        """The answer with the body, made in a thread and admitted as requests without engine."""
        gate = self._gate
        with gate.admit_light(request.scope) as (deadline, ticket, _):
            ticket.charge(1, 0, at=gate.light_requests)
            async with deadline.enforced():
                body = await gate.light_threads.run(
                    caller_of(request.scope), partial(body_of, request)
                )
        return HttpResponse(body, media_type="application/json")

    def _cancelled(self, request: Request) -> bytes:
        found = self._found(request).reply
        reply = _with_fields(found, status="cancelled")
        key = (request.path_params["response_id"], request.state.tenant)
        if self._store.replace_running(*key, reply):
            return reply
        if not msgspec.json.decode(found).get("background"):
            raise HttpError(400, "Cannot cancel a synchronous response.", code="invalid_value")
        return self._found(request).reply  # it has ended, perhaps just now

    def _deleted(self, request: Request) -> bytes:
        response_id = request.path_params["response_id"]
        if not self._store.delete(response_id, request.state.tenant):
            raise _not_found(response_id)
        return msgspec.json.encode(DeletedResponse(response_id))

    def _page(self, request: Request) -> bytes:
        items = _items_decoder.decode(self._found(request).items)
        page = read_query(request, _PageQuery, _PROBLEMS)
        if page.order == "desc":
            items.reverse()
        if page.after is not None:
            items = _items_after(page.after, items)
        data = [msgspec.json.decode(item, type=dict[str, Any]) for item in items[: page.limit]]
        ends = (data[0]["id"], data[-1]["id"]) if data else (None, None)
        reply = ItemList(
            data=data, first_id=ends[0], last_id=ends[1], has_more=len(data) < len(items)
        )
        return msgspec.json.encode(reply)

    def _found(self, request: Request) -> StoredResponse:
        response_id = request.path_params["response_id"]
        stored = self._store.get(response_id, request.state.tenant)
        if stored is None:
            raise _not_found(response_id)
        if stored.is_abandoned:
            key = (response_id, request.state.tenant)
            error = {"code": "server_error", "message": "its server process ended; send it again"}
            reply = _with_fields(stored.reply, status="failed", error=error)
            self._store.replace_running(*key, reply)
            return self._store.get(*key) or stored
        return stored


def _with_fields(reply: bytes, **changed: Any) -> bytes:
    """The JSON of a response with other values of fields."""
    return msgspec.json.encode({**msgspec.json.decode(reply), **changed})


def _items_after(item_id: str, items: list[msgspec.Raw]) -> list[msgspec.Raw]:
    for index, item in enumerate(items):
        if _id_decoder.decode(item).id == item_id:
            return items[index + 1 :]
    raise invalid_value("after", "must be the id of one of the items")


def _not_found(response_id: str) -> HttpError:
    shown = response_id[:128]
    return HttpError(404, f"Response with id '{shown}' not found.", code="not_found")
