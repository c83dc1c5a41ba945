"""Writes a complete response as HTTP/1.1 bytes in a single write."""

from __future__ import annotations

from collections.abc import Awaitable

from starlette.types import Message
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from quire.server.http.http_errors import id_headers, send_in_two_messages
from quire.server.http.request_record import RequestRecord

_CLOSE = (b"connection", b"close")


def send_on(cycle: RequestResponseCycle, message: Message) -> Awaitable[None]:
    """The ASGI `send` of our protocol: a complete response in one message is one write.

    A client that was not told to send its body (100 Continue) may send its next request instead, so
    the connection ends with the response.
    """
    if cycle.waiting_for_100_continue and cycle.more_body:
        cycle.keep_alive = False
    if message["type"] == "http.response.start" and "body" in message:
        return _send_complete(cycle, message)
    if cycle.scope["http_version"] != "1.1":
        _send_unframed(cycle, message)
    return cycle.send(message)  # type: ignore[arg-type]


def _send_unframed(cycle: RequestResponseCycle, message: Message) -> None:
    """Keep uvicorn from chunks, which clients of HTTP/1.0 cannot read: the close ends the body."""
    cycle.chunked_encoding = False
    if message["type"] == "http.response.body":
        cycle.expected_content_length = len(message.get("body", b""))


async def _send_complete(cycle: RequestResponseCycle, message: Message) -> None:
    headers = message["headers"]
    closes = not cycle.keep_alive or _CLOSE in headers
    has_body = not (cycle.disconnected or cycle.scope["method"] == "HEAD")
    # with the request's body still coming, uvicorn would close the connection too early
    is_ours = cycle.more_body if closes else not cycle.flow.write_paused
    if not (has_body and is_ours):
        await send_in_two_messages(cycle.send, message)  # type: ignore[arg-type]
        return
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    cycle.keep_alive = not closes
    headers = [*cycle.default_headers, *headers]
    if closes and _CLOSE not in headers:
        headers.append(_CLOSE)
    cycle.transport.write(_response(message["status"], headers, message["body"]))
    cycle.message_event.set()
    cycle.on_response()


def _response(status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bytes:
    """The bytes of a complete response."""
    lines = b"".join([b"%b: %b\r\n" % header for header in headers])
    return b"%b%b\r\n%b" % (STATUS_LINE[status], lines, body)


def refusal_bytes(status: int, record: RequestRecord, body: bytes) -> bytes:
    """The bytes of the response to a request that reaches no application."""
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        *id_headers(record.path, record.request_id),
        _CLOSE,
    ]
    return _response(status, headers, body)
