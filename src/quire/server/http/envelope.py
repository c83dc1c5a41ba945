"""Envelope: middleware around every request: request id, API key, record, and error responses."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.errors import CallerLimitError, is_failure
from quire.server.http.allowed_hosts import AllowedHosts
from quire.server.http.api_keys import ApiKeys
from quire.server.http.http_errors import (
    SINGLE_MESSAGE,
    api_path_of,
    describe,
    id_headers,
    send_complete,
    send_in_two_messages,
)
from quire.server.http.request_reader import first_headers
from quire.server.http.request_record import RequestRecord, new_id

OPEN_PATHS = frozenset({"/health", "/ping", "/ready"})

NO_EFFECT_HEADER = b"x-quire-no-effect"
# by which errors of callers beyond their limit come later: refusals alone, of clients that ask
# again at once and all the time, would take others' time
REFUSAL_SECONDS = 1.0
_MAX_HEADER_BYTES = 2048
_PLAIN_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class Envelope:
    """ASGI middleware, the outermost one except for CORS.

    The response has the header `x-request-id` (on Anthropic's paths `request-id` too): the
    client's own if it consists of plain characters, else a new one; but probes of OPEN_PATHS have
    one only where the client sent one, or with probes_have_id. `x-quire-no-effect` says which
    fields of the body had none. Access is decided on the path that the router uses, never on one
    rebuilt from headers.

    open_paths: need no API key; all others do, whether they exist or not. hosts: the names that the
    server is known by, on any path; None: any. on_end: called with the record of each request that
    has ended.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: ApiKeys,
        open_paths: frozenset[str] = frozenset(),
        on_end: Callable[[RequestRecord], None] = lambda _: None,
        hosts: AllowedHosts | None = None,
        *,
        probes_have_id: bool = False,
    ) -> None:
        self._without_id = frozenset[str]() if probes_have_id else OPEN_PATHS
        self._app = app
        self._open_paths = open_paths
        self._on_end = on_end
        self._keys = keys
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = first_headers(scope)
        record = _new_record(scope, headers)
        request_id = record.request_id
        has_id = record.path not in self._without_id or b"x-request-id" in headers
        state = scope.setdefault("state", {})
        state["request_id"], state["tenant"], state["record"] = request_id, "", record

        def send_with_id(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                own = id_headers(record.path, request_id) if has_id else []
                if record.no_effect:
                    own = [*own, (NO_EFFECT_HEADER, _header_value(record.no_effect))]
                message["headers"] = [*message.get("headers", ()), *own]
                if "body" in message and SINGLE_MESSAGE not in scope.get("extensions", ()):
                    return send_in_two_messages(send, message)
            return send(message)

        try:
            state["tenant"] = self._admit(scope, headers)
            await self._app(scope, receive, send_with_id)
        except BaseException as error:  # whatever fails, the client gets an error response
            if not is_failure(error):
                raise
            reply = describe(error, request_id)
            record.error_code = reply.error.code
            if (record.method, reply.status) == ("OPTIONS", 405) and b"origin" in headers:
                reply.error.message = _NO_CORS  # a browser asks before a page's request
            if not record.status:
                if isinstance(error, CallerLimitError):
                    await asyncio.sleep(REFUSAL_SECONDS)
                body = reply.body(api_path_of(scope))
                await send_complete(send_with_id, reply.status, body, reply.headers)
        finally:
            self._on_end(record)

    def _admit(self, scope: Scope, headers: Mapping[bytes, bytes]) -> str:
        """The tenant of a request. Raises HttpError for a host or an API key that is unknown."""
        if self._hosts is not None and scope["path"] not in OPEN_PATHS:  # no secrets in these
            self._hosts.check(headers)
        return "" if scope["path"] in self._open_paths else self._keys.admit(scope)


_NO_CORS = (
    "pages of other origins may not call this server; start it with --allowed-origins and theirs, "
    "such as --allowed-origins localhost"
)


def _new_record(scope: Scope, headers: Mapping[bytes, bytes]) -> RequestRecord:
    traceparent = headers.get(b"traceparent")
    text = None if traceparent is None else traceparent.decode("latin-1")
    return RequestRecord(scope["method"], scope["path"], _request_id(headers), text)


def _header_value(sentences: Sequence[str]) -> bytes:
    """Sentences as one header, without what a header cannot hold."""
    plain = re.sub(r"[^ -~]", "?", "; ".join(sentences))
    return plain.encode()[:_MAX_HEADER_BYTES]


def _request_id(headers: Mapping[bytes, bytes]) -> str:
    """The client's x-request-id if it is plain, else a new id."""
    given = headers.get(b"x-request-id")
    if given is None:
        return new_id()
    text = given.decode("latin-1")
    return text if _PLAIN_ID.fullmatch(text) else new_id()
