"""Pages of other origins that may call this server: CORS, as the Fetch standard has it.

Owns the headers by which a browser lets such a page read an answer. Off unless origins are named.
Cookies are never allowed: a page brings its key in a header, as any other client does.
"""

from __future__ import annotations

from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.server.http.origins import ANY
from quire.server.http.request_reader import first_headers

METHODS = b"GET, POST"
EXPOSED = b"x-request-id, request-id, retry-after"
MAX_AGE = b"600"  # seconds for which a browser need not ask again

Headers = list[tuple[bytes, bytes]]


class CrossOrigin:
    """ASGI middleware, around everything else: browsers ask it first, and without a key."""

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        self._app = app
        self._origins = frozenset(origin.encode() for origin in origins)
        self._allows_all = ANY in origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = first_headers(scope)
        own = self._answered(headers.get(b"origin"))
        if own and scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            await _permit(send, own, headers.get(b"access-control-request-headers"))
            return

        async def send_allowing(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *own, _VARY]}
            await send(message)

        await self._app(scope, receive, send_allowing)

    def _answered(self, origin: bytes | None) -> Headers:
        """What an answer to this origin says; nothing if it may not read it."""
        if origin is None or not (self._allows_all or origin.lower() in self._origins):
            return []
        return [
            (b"access-control-allow-origin", ANY.encode() if self._allows_all else origin),
            (b"access-control-expose-headers", EXPOSED),
        ]


_VARY = (b"vary", b"origin")


async def _permit(send: Send, own: Headers, wanted: bytes | None) -> None:
    """Answer a browser that asks whether a page may send a request with these headers."""
    headers = [
        *own,
        (b"access-control-allow-methods", METHODS),
        (b"access-control-max-age", MAX_AGE),
        (b"vary", b"origin, access-control-request-headers"),
    ]
    if wanted is not None:
        headers.append((b"access-control-allow-headers", wanted))
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
