"""HTTP on one connection: uvicorn's protocol, with bounds on how a client may send and read.

Uvicorn waits for ever for the rest of a request, keeps headers of any size, and writes to a client
that never reads. Here each of these has a limit, after which the connection is closed. The usual
request, which arrives whole in one piece, costs no timer.
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

from quire.server.http.disconnect import STATE_KEY as DEPARTURE
from quire.server.http.disconnect import DisconnectWatch
from quire.server.http.http_errors import WHOLE, HttpError, describe
from quire.server.http.http_response import refusal_bytes, send_on
from quire.server.http.request_reader import STATE_KEY as BODY
from quire.server.http.request_record import RequestRecord
from quire.server.http.slow_reader import ReaderWatch

PROBE_SECONDS = (0.01, 1.0)  # between two looks whether a client that sends no more is there
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class WireLimits:
    """What a client may cost. Seconds and bytes.

    A body has body_seconds, and one second more for each body_bytes_per_second that have come.
    stall_seconds: how long a client may leave what was written for it unread.
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
    """One connection, with its limits. on_refusal: told of requests that no application sees."""

    def __init__(
        self,
        limits: WireLimits,
        on_refusal: Callable[[RequestRecord], None] = lambda _: None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._limits = limits
        self._on_refusal = on_refusal
        self._phase = Phase.NONE
        self._num_headers = 0
        self._num_bytes = 0  # of this phase; of a body, those that are not the body's own
        self._num_body_bytes = 0
        self._departures: deque[DisconnectWatch] = deque()  # of the requests that are not answered
        self._refusal: HttpError | None = None
        self._receive_timer: TimerHandle | None = None
        self._timed_phase = Phase.NONE
        self._phase_begin = 0.0
        self._probe_timer: TimerHandle | None = None
        self._reader = ReaderWatch(self.loop, limits.stall_seconds)
        self._idle_since = math.inf  # infinity while a request is under way

    # ------------------------------------------------------------------ the connection

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """A client is there; it may be silent as long as between two requests."""
        super().connection_made(transport)
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left, or was cut off."""
        self._tell_departures()
        self._watch_receiving(Phase.NONE)
        self._reader.end()
        self._unset_keepalive_if_required()
        if self._probe_timer is not None:
            self._probe_timer.cancel()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio takes it, uvicorn has none
        """The client sends no more: it waits for its answer, as after `nc -N`, or has left.

        TCP tells one from the other only once something is written. Returns whether to go on.
        """
        is_asked = self._phase is Phase.NONE and len(self._departures) == 1
        if not is_asked or self.pipeline or self.cycle.scope["http_version"] != "1.1":
            return False
        self.cycle.keep_alive = False
        self._probe(PROBE_SECONDS[0])
        return True

    def _probe(self, pause: float) -> None:
        """Write what any client skips; one that has left resets, and the next write fails.

        An answer that has begun is written itself, and needs no probes.
        """
        if not (self.cycle.response_started or self.transport.is_closing()):
            self.transport.write(CONTINUE)
            longer = min(2 * pause, PROBE_SECONDS[1])
            self._probe_timer = self.loop.call_later(pause, self._probe, longer)

    def timeout_keep_alive_handler(self) -> None:
        """Nothing came for long; a client that has not read its answer yet will not any more."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        super().timeout_keep_alive_handler()

    def on_response_complete(self) -> None:
        """The answer is written; if the connection ends with it, its reader is still watched."""
        self._departures.popleft()  # answers come in the order of their requests
        if self.transport.is_closing():
            self.pause_writing()
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self._await_request()

    def _await_request(self) -> None:
        """From now on the client may be silent for so long. One timer serves many requests."""
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
        """Parse what came. What breaks a rule is told and the connection closed."""
        self._idle_since = math.inf
        before = self._phase
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # nothing else is spoken here; the request is served as it is
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
        """The first byte of a request."""
        super().on_message_begin()
        self._phase = Phase.HEADERS
        self._num_headers = self._num_bytes = self._num_body_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or one trailer."""
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
        """The request can begin to be served."""
        self._phase, self._num_bytes = Phase.BODY, 0
        super().on_headers_complete()
        disconnect_watch = self.scope["state"][DEPARTURE] = DisconnectWatch()
        self._departures.append(disconnect_watch)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        def serve(scope: Scope, receive: Receive, _send: Send) -> Awaitable[None]:
            scope["extensions"] = {WHOLE: {}}
            return app(scope, receive, partial(send_on, cycle))  # type: ignore[no-any-return]

        super()._start_asgi_task(cycle, serve)  # type: ignore[arg-type]

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._num_body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The last byte of a request."""
        super().on_message_complete()
        self._phase = Phase.NONE
        if not self.flow.read_paused:  # else the application has to say that it takes more
            self.scope["state"][BODY] = bytes(self.cycle.body)

    def _watch_receiving(self, phase: Phase) -> None:
        """Time the phase that is under way, if that has changed."""
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
        if self.pipeline:  # it is we who do not read, before an earlier request is answered
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
        """Answer in place of the application, unless it has begun to, and close."""
        cycle = self.cycle
        is_served = cycle is not None and not cycle.response_complete
        if self._phase is Phase.BODY and cycle is not None:
            may_tell = not cycle.response_started
        else:
            may_tell = not is_served
        if may_tell and not self.transport.is_closing():
            self._tell(refusal)
        if is_served:  # the application learns that its client is gone
            cycle.disconnected = True
            cycle.message_event.set()
            self._tell_departures()
        self.transport.close()
        self.pause_writing()

    def _tell_departures(self) -> None:
        for disconnect_watch in self._departures:
            disconnect_watch.tell()

    def _tell(self, refusal: HttpError) -> None:
        """Write the answer, and have it counted: by the application, if that has seen a request."""
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
        """What the application notes of the request that it is serving."""
        if self.cycle is None or self.cycle.response_complete:
            return None
        record = self.cycle.scope["state"].get("record")
        return record if isinstance(record, RequestRecord) else None

    def _line(self) -> tuple[str, str]:
        """Method and path of the request that is being received, as far as they have come."""
        if self._phase is Phase.BODY and "path" in self.scope:  # else its target could not be read
            return self.scope["method"], self.scope["path"]
        if self._phase is not Phase.NONE and self.url:
            path = self.url.partition(b"?")[0].decode("latin-1")
            return self.parser.get_method().decode("latin-1"), path
        return "-", "-"

    # ------------------------------------------------------------------ writing

    def pause_writing(self) -> None:
        """Much is unread: whoever writes waits, but not for ever."""
        super().pause_writing()
        self._reader.begin(self.transport)

    def resume_writing(self) -> None:
        """The client has read enough."""
        self._reader.end()
        super().resume_writing()


def _malformed() -> HttpError:
    text = "this is not HTTP/1.1 as it should be; send a well-formed request"
    return HttpError(400, text, code="bad_request")


def _headers_too_large() -> HttpError:
    text = "the headers are too long or too many; send fewer and shorter ones"
    return HttpError(431, text, code="headers_too_large")


def _too_slow() -> HttpError:
    text = "the request did not arrive in time; send it whole, and faster"
    return HttpError(408, text, code="request_timeout")
