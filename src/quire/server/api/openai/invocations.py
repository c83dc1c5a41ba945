"""/invocations: SageMaker's one path, for bodies of several others."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from quire.server.api.common.request_gate import RequestGate
from quire.server.http.openapi_entry import ApiRoute, PostEntry
from quire.server.http.request_reader import STATE_KEY, read_body

# the first of these fields that a body has → the path that it is for; null is none, but for the
# first field, which no other path has
PATHS = {
    "encoding_format": "/v1/embeddings",  # of texts or of messages
    "messages": "/v1/chat/completions",
    "prompt": "/v1/completions",
    "input": "/v1/embeddings",
    "query": "/v1/rerank",
    "queries": "/v1/score",
    "text_1": "/v1/score",
}
_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NULL = msgspec.Raw(b"null")


class Invocations:
    """The endpoint. routes: those of the other paths, by path."""

    def __init__(self, routes: Mapping[str, ASGIApp], gate: RequestGate) -> None:
        self._routes, self._gate = routes, gate

    @property
    def route(self) -> ApiRoute:
        """The route of /invocations."""
        entry = PostEntry(
            "/invocations",
            "A body of another path, which its fields decide.",
            rules=tuple(f"With `{name}` it is one of `{path}`." for name, path in PATHS.items()),
        )
        return ApiRoute(self, entry)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request: read its body, and give it to the route that it is for."""
        max_bytes = self._gate.settings.max_body_bytes
        with self._gate.admit_light(scope) as (_, _, space):
            try:
                body = await read_body(scope, receive, max_bytes, space.hold)
            except ClientDisconnect:
                return
        scope["state"][STATE_KEY] = body
        await self._routes[path_of(body)](scope, receive, send)


def path_of(body: bytes) -> str:
    """The path that a body is for; that of chats, which tell what is wrong, for any other."""
    try:
        fields = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return PATHS["messages"]
    if "encoding_format" in fields:
        return PATHS["encoding_format"]
    found = (path for name, path in PATHS.items() if bytes(fields.get(name, _NULL)) != b"null")
    return next(found, PATHS["messages"])
