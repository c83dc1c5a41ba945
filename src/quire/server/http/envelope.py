"""What surrounds every request: its id, the key it must bring, and an answer whatever fails."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.server.http.api_keys import ApiKeys
from quire.server.http.http_errors import (
    SINGLE_MESSAGE,
    describe,
    id_headers,
    send_error,
    send_in_two_messages,
    words_of,
)
from quire.server.http.ids import new_id
from quire.server.http.request_reader import first_headers
from quire.server.http.request_record import RequestRecord

OPEN_PATHS = frozenset({"/health", "/ping", "/ready"})

_LABEL = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class Envelope:
    """ASGI middleware, the outermost one.

    The response carries `x-request-id` (on Anthropic's paths `request-id`, too): the client's own
    if it is a plain label, else a new one.
    Access is decided on the path that the router will use, never on one rebuilt from headers.
    open_paths: need no key; all others do, whether they exist or not. on_end: told of each request
    that has ended.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: ApiKeys,
        open_paths: frozenset[str] = frozenset(),
        on_end: Callable[[RequestRecord], None] = lambda _: None,
    ) -> None:
        self._app = app
        self._open_paths = open_paths
        self._on_end = on_end
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = first_headers(scope)
        request_id, traceparent = _label(headers), headers.get(b"traceparent")
        state = scope.setdefault("state", {})
        record = RequestRecord(
            scope["method"],
            scope["path"],
            request_id,
            None if traceparent is None else traceparent.decode("latin-1"),
        )
        state["request_id"], state["tenant"], state["record"] = request_id, "", record

        def send_with_id(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                own = id_headers(record.path, request_id)
                message["headers"] = [*message.get("headers", ()), *own]
                if "body" in message and SINGLE_MESSAGE not in scope.get("extensions", ()):
                    return send_in_two_messages(send, message)
            return send(message)

        try:
            if scope["path"] not in self._open_paths:
                state["tenant"] = self._keys.admit(scope)
            await self._app(scope, receive, send_with_id)
        except Exception as error:  # the last resort: whatever fails, the client is told
            reply = describe(error, request_id)
            record.error_code = reply.error.code
            if not record.status:
                await send_error(send_with_id, reply, words_of(scope))
        finally:
            self._on_end(record)


def _label(headers: Mapping[bytes, bytes]) -> str:
    """The client's own label, or a new one."""
    given = headers.get(b"x-request-id")
    if given is None:
        return new_id()
    label = given.decode("latin-1")
    return label if _LABEL.fullmatch(label) else new_id()
