"""/v1/responses/{id}: stored responses and their input items, read and deleted."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from quire.errors import invalid_value
from quire.server.api.openai.response_store import ResponseStore, StoredResponse
from quire.server.api.openai.responses_reply import Response
from quire.server.http.http_errors import HttpError
from quire.server.http.openapi_entry import ApiRoute, OpenApiEntry

_PATH = "/v1/responses/{response_id}"


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


class StoredResponsesRoutes:
    """The routes of stored responses."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    @property
    def routes(self) -> list[ApiRoute]:
        """The routes of all paths."""
        return [
            ApiRoute(
                self.response,
                OpenApiEntry(
                    path=_PATH, summary="A stored response.", reply=Response, errors=(400, 404)
                ),
                OpenApiEntry(
                    path=_PATH,
                    method="delete",
                    summary="Delete a stored response.",
                    reply=DeletedResponse,
                    errors=(404,),
                ),
            ),
            ApiRoute(
                self.input_items,
                OpenApiEntry(
                    path=f"{_PATH}/input_items",
                    summary="The input items of a stored response, earlier turns included.",
                    rules=("The query may have `limit` (1 to 100), `order` and `after`.",),
                    reply=ItemList,
                    errors=(400, 404),
                ),
            ),
            ApiRoute(
                self.cancel,
                OpenApiEntry(
                    path=f"{_PATH}/cancel",
                    method="post",
                    summary="Refused: responses are answered while their client waits.",
                    errors=(400, 404),
                ),
            ),
        ]

    async def response(self, request: Request) -> HttpResponse:
        """Handle GET and DELETE of a response."""
        response_id = request.path_params["response_id"]
        if request.method == "DELETE":
            if not self._store.delete(response_id, request.state.tenant):
                raise _not_found(response_id)
            return _json(msgspec.json.encode(DeletedResponse(response_id)))
        if request.query_params.get("stream") == "true":
            raise invalid_value("stream", "stored responses are not streamed; leave it out")
        return _json(self._found(request).reply)

    async def input_items(self, request: Request) -> HttpResponse:
        """Handle GET of a response's input items."""
        items = msgspec.json.decode(self._found(request).items, type=list[dict[str, Any]])
        page = _read_query(request)
        if page.order == "desc":
            items.reverse()
        if page.after is not None:
            ids = [item["id"] for item in items]
            if page.after not in ids:
                raise invalid_value("after", "must be the id of one of the items")
            items = items[ids.index(page.after) + 1 :]
        data = items[: page.limit]
        ends = (data[0]["id"], data[-1]["id"]) if data else (None, None)
        reply = ItemList(
            data=data, first_id=ends[0], last_id=ends[1], has_more=len(data) < len(items)
        )
        return _json(msgspec.json.encode(reply))

    async def cancel(self, request: Request) -> HttpResponse:
        """Handle POST of a cancellation, which only responses in the background could have."""
        self._found(request)
        raise HttpError(400, "Cannot cancel a synchronous response.", code="invalid_value")

    def _found(self, request: Request) -> StoredResponse:
        response_id = request.path_params["response_id"]
        stored = self._store.get(response_id, request.state.tenant)
        if stored is None:
            raise _not_found(response_id)
        return stored


def _read_query(request: Request) -> _PageQuery:
    try:
        return msgspec.convert(dict(request.query_params), _PageQuery, strict=False)
    except msgspec.ValidationError:
        problem = "must be an integer between 1 and 100, and order asc or desc"
        raise invalid_value("limit", problem) from None


def _not_found(response_id: str) -> HttpError:
    shown = response_id[:128]
    return HttpError(404, f"Response with id '{shown}' not found.", code="not_found")


def _json(body: bytes) -> HttpResponse:
    return HttpResponse(body, media_type="application/json")
