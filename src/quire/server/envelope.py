"""What surrounds every request: its id, the key it must bring, and an answer whatever fails."""

from __future__ import annotations

import hashlib
import hmac
import re
import uuid

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.server.http_errors import HttpError, describe, send_error

OPEN_PATHS = frozenset({"/health", "/ping"})

_LABEL = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class Envelope:
    """ASGI middleware, the outermost one.

    The response carries `x-request-id`: the client's own if it is a plain label, else a new one.
    Access is decided on the path that the router will use, never on one rebuilt from headers.
    open_paths: need no key, besides OPEN_PATHS.
    """

    def __init__(
        self, app: ASGIApp, api_key: str | None, open_paths: frozenset[str] = frozenset()
    ) -> None:
        self._app = app
        self._open_paths = OPEN_PATHS | open_paths
        self._key_hash = None if api_key is None else _hash(api_key.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        label = headers.get("x-request-id", "")
        request_id = label if _LABEL.fullmatch(label) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                own = (b"x-request-id", request_id.encode())
                message = {**message, "headers": [*message.get("headers", ()), own]}
            await send(message)

        try:
            self._check_key(scope["path"], headers)
            await self._app(scope, receive, send_with_id)
        except Exception as error:  # the last resort: whatever fails, the client is told
            reply = describe(error, request_id)
            if not started:
                await send_error(send_with_id, reply)

    def _check_key(self, path: str, headers: Headers) -> None:
        if self._key_hash is None or path in self._open_paths:
            return
        scheme, _, key = headers.get("authorization", "").partition(" ")
        same = hmac.compare_digest(_hash(key.strip().encode()), self._key_hash)
        if not (same and scheme.lower() == "bearer"):
            raise HttpError(
                401,
                "the API key is missing or wrong; send the header Authorization: Bearer <key>",
                code="invalid_api_key",
                kind="authentication_error",
                headers={"www-authenticate": "Bearer"},
            )


def _hash(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
