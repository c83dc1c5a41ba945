"""BoundedProtocol: uvicorn's HTTP protocol, with limits on how a client may send and read.

Uvicorn waits for ever for the rest of a request, stores headers of any size, and writes to a client
that never reads. Here each of these has a limit, after which the connection is closed. The usual
request, which arrives in one piece, costs no timer.

It builds on private classes of uvicorn, so pyproject.toml caps uvicorn's version, and
tests/server/http/test_uvicorn_internals.py fails when they change.
"""

from __future__ import annotations

import enum
import math
import uuid
from asyncio import TimerHandle, Transport
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import httptools
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from quire.server.http.disconnect import STATE_KEY as DISCONNECT
from quire.server.http.disconnect import DisconnectWatch
from quire.server.http.http_errors import SINGLE_MESSAGE, HttpError, describe
from quire.server.http.http_response import refusal_bytes, send_on
from quire.server.http.request_reader import STATE_KEY as BODY
from quire.server.http.request_record import RequestRecord
from quire.server.http.slow_reader import ReaderWatch

PROBE_SECONDS = (0.01, 1.0)  # between probes of a client that closed its sending side
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectionLimits:
    """Limits of one connection, in seconds and bytes.

    A body may take body_seconds, and one second more for each body_bytes_per_second received.
    stall_seconds: how long a client may leave its response unread.
    """

    header_seconds: float = 10.0
    header_bytes: int = 64 << 10
    num_headers: int = 128
    body_seconds: float = 30.0
    body_bytes_per_second: int = 16 << 10
    stall_seconds: float = 30.0


class Phase(enum.Enum):
    """Which part of a request is being received."""

    NONE = enum.auto()
    HEADERS = enum.auto()
    BODY = enum.auto()


class BoundedProtocol(HttpToolsProtocol):
    """One connection with its limits. on_refusal: called for requests that reach no application."""

    def __init__(
        self,
        limits: ConnectionLimits,
        on_refusal: Callable[[RequestRecord], None] = lambda _: None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._limits = limits
        self._on_refusal = on_refusal
        self._phase = Phase.NONE
        self._num_headers = 0
        self._num_bytes = 0  # of this phase; of a body, only those of its framing
        self._num_body_bytes = 0
        self._watches: deque[DisconnectWatch] = deque()  # of the unanswered requests
        self._refusal: HttpError | None = None
        self._receive_timer: TimerHandle | None = None
        self._timed_phase = Phase.NONE
        self._phase_begin = 0.0
        self._probe_timer: TimerHandle | None = None
        self._reader = ReaderWatch(self.loop, limits.stall_seconds)
        self._idle_since = math.inf  # infinity while a request is under way

    # ------------------------------------------------------------------ the connection

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """A client has connected; it may idle as long as between two requests."""
        super().connection_made(transport)
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has disconnected, or was cut off."""
        self._notify_disconnect()
        self._watch_receiving(Phase.NONE)
        self._reader.stop()
        self._unset_keepalive_if_required()
        if self._probe_timer is not None:
            self._probe_timer.cancel()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio takes it, uvicorn has none
        """The client closed its sending side: it waits for the response (`nc -N`) or has gone.

        TCP shows which only once something is written. Returns whether to keep the connection.
        """
        has_request = self._phase is Phase.NONE and len(self._watches) == 1
        if not has_request or self.pipeline or self.cycle.scope["http_version"] != "1.1":
            return False
        self.cycle.keep_alive = False
        self._probe(PROBE_SECONDS[0])
        return True

    def _probe(self, pause: float) -> None:
        """Write what any client skips; one that has gone resets, and the next write fails.

        A response that has started is written anyway and needs no probes.
        """
        if not (self.cycle.response_started or self.transport.is_closing()):
            self.transport.write(CONTINUE)
            longer = min(2 * pause, PROBE_SECONDS[1])
            self._probe_timer = self.loop.call_later(pause, self._probe, longer)

    def timeout_keep_alive_handler(self) -> None:
        """The connection was idle for long; a client that has not read its response never will."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        super().timeout_keep_alive_handler()

    def on_response_complete(self) -> None:
        """The response is written. If the connection closes now, its reader is still watched."""
        self._watches.popleft()  # responses come in the order of the requests
        if self.transport.is_closing():
            self.pause_writing()
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self._await_request()

    def _await_request(self) -> None:
        """Start the idle time. One timer serves many requests."""
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._watch_idle(self.timeout_keep_alive)

    def _watch_idle(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self._check_idle)

    def _check_idle(self) -> None:
        self.timeout_keep_alive_task = None
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left <= 0.0:
            self.timeout_keep_alive_handler()
        elif left < math.inf:
            self._watch_idle(left)

    # ------------------------------------------------------------------ receiving

    def data_received(self, data: bytes) -> None:
        """Parse received bytes. A violation is answered and the connection closed."""
        self._idle_since = math.inf
        before = self._phase
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # no other protocol is offered; the request is served as HTTP
        except httptools.HttpParserError:
            self._refuse(self._refusal or _malformed())
            return
        if self._phase is before is not Phase.NONE:
            self._num_bytes += len(data)
            if self._num_bytes > self._limits.header_bytes + 8 * self._num_body_bytes:
                self._refuse(_headers_too_large())
                return
        self._watch_receiving(self._phase)
        if self._phase is Phase.NONE and (self.cycle is None or self.cycle.response_complete):
            self._await_request()

    def on_message_begin(self) -> None:
        """The first byte of a request has come."""
        super().on_message_begin()
        self._phase = Phase.HEADERS
        self._num_headers = self._num_bytes = self._num_body_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header or trailer has come."""
        self._num_headers += 1
        self._num_bytes += len(name) + len(value)
        is_long = self._num_bytes > self._limits.header_bytes + 8 * self._num_body_bytes
        if is_long or self._num_headers > self._limits.num_headers:
            self._refusal = _headers_too_large()
            raise self._refusal
        name = name.lower()
        if name == b"expect":
            self.expect_100_continue = value.lower() == b"100-continue"
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """All headers have come: the request can be served."""
        self._phase, self._num_bytes = Phase.BODY, 0
        super().on_headers_complete()
        watch = self.scope["state"][DISCONNECT] = DisconnectWatch()
        self._watches.append(watch)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        def serve(scope: Scope, receive: Receive, _send: Send) -> Awaitable[None]:
            scope["extensions"] = {SINGLE_MESSAGE: {}}
            return app(scope, receive, partial(send_on, cycle))  # type: ignore[no-any-return]

        super()._start_asgi_task(cycle, serve)  # type: ignore[arg-type]

    def on_body(self, body: bytes) -> None:
        """A part of the body has come."""
        self._num_body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The last byte of a request has come."""
        super().on_message_complete()
        self._phase = Phase.NONE
        if not self.flow.read_paused:  # else the application has to ask for more
            self.scope["state"][BODY] = bytes(self.cycle.body)

    def _watch_receiving(self, phase: Phase) -> None:
        """Start the timer of a phase, if the phase has changed."""
        if phase is self._timed_phase:
            return
        self._timed_phase = phase
        if self._receive_timer is not None:
            self._receive_timer.cancel()
            self._receive_timer = None
        if phase is not Phase.NONE:
            self._phase_begin = self.loop.time()
            self._check_receiving()

    def _check_receiving(self) -> None:
        limits = self._limits
        if self.pipeline:  # we do not read until an earlier request is answered
            self._phase_begin = self.loop.time()
        allowed = limits.header_seconds
        if self._timed_phase is Phase.BODY:
            allowed = limits.body_seconds + self._num_body_bytes / limits.body_bytes_per_second
        left = self._phase_begin + allowed - self.loop.time()
        if left > 0.0:
            self._receive_timer = self.loop.call_later(left, self._check_receiving)
        else:
            self._refuse(_too_slow())

    def _refuse(self, refusal: HttpError) -> None:
        """Answer in place of the application, unless it has started to, and close."""
        cycle = self.cycle
        is_served = cycle is not None and not cycle.response_complete
        if self._phase is Phase.BODY and cycle is not None:
            may_answer = not cycle.response_started
        else:
            may_answer = not is_served
        if may_answer and not self.transport.is_closing():
            self._write_refusal(refusal)
        if is_served:  # notifies the application that its client is gone
            cycle.disconnected = True
            cycle.message_event.set()
            self._notify_disconnect()
        self.transport.close()
        self.pause_writing()

    def _notify_disconnect(self) -> None:
        for watch in self._watches:
            watch.disconnect()

    def _write_refusal(self, refusal: HttpError) -> None:
        """Write the response and count it: by the application if the request has reached it."""
        record = self._record()
        is_new = record is None
        if record is None:
            record = RequestRecord(*self._line(), uuid.uuid4().hex)
        reply = describe(refusal, record.request_id)
        self.transport.write(refusal_bytes(refusal.status, record, reply.body(record.path)))
        record.status, record.error_code = refusal.status, reply.error.code
        if is_new:
            self._on_refusal(record)

    def _record(self) -> RequestRecord | None:
        """The record of the request that the application is serving; None if there is none."""
        if self.cycle is None or self.cycle.response_complete:
            return None
        record = self.cycle.scope["state"].get("record")
        return record if isinstance(record, RequestRecord) else None

    def _line(self) -> tuple[str, str]:
        """Method and path of the request that is being received, as far as they are known."""
        if self._phase is Phase.BODY and "path" in self.scope:  # else its target could not be read
            return self.scope["method"], self.scope["path"]
        if self._phase is not Phase.NONE and self.url:
            path = self.url.partition(b"?")[0].decode("latin-1")
            return self.parser.get_method().decode("latin-1"), path
        return "-", "-"

    # ------------------------------------------------------------------ writing

    def pause_writing(self) -> None:
        """Much is unread: writers wait, but not for ever."""
        super().pause_writing()
        self._reader.start(self.transport)

    def resume_writing(self) -> None:
        """The client has read enough."""
        self._reader.stop()
        super().resume_writing()


def _malformed() -> HttpError:
    text = "the request is not valid HTTP/1.1; send a well-formed request"
    return HttpError(400, text, code="bad_request")


def _headers_too_large() -> HttpError:
    text = "the headers are too long or too many; send fewer and shorter ones"
    return HttpError(431, text, code="headers_too_large")


def _too_slow() -> HttpError:
    text = "the request did not arrive in time; send it faster"
    return HttpError(408, text, code="request_timeout")
