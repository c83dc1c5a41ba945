"""BoundedProtocol: uvicorn's HTTP protocol, with limits on how a client may send and read.

Uvicorn waits for ever for the rest of a request, stores headers of any size, and writes to a client
that never reads. Here each of these has a limit, after which the connection is closed: sizes in
http_framing.py, times and closing here. The usual request, which arrives in one piece, costs no
timer.

It builds on private classes of uvicorn, so pyproject.toml caps uvicorn's version, and
tests/server/http/test_uvicorn_internals.py fails when they change.
"""

from __future__ import annotations

import asyncio
import math
from asyncio import TimerHandle, Transport
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from quire.server.http.disconnect import STATE_KEY as DISCONNECT
from quire.server.http.disconnect import DisconnectWatch
from quire.server.http.http_errors import SINGLE_MESSAGE, HttpError, describe
from quire.server.http.http_framing import ConnectionLimits, FramedProtocol, Phase
from quire.server.http.http_response import refusal_bytes, send_on
from quire.server.http.lingering_close import LingeringClose
from quire.server.http.request_record import RequestRecord, new_id
from quire.server.http.slow_reader import ReaderWatch

STOPPED_SECONDS = 1.0  # a timer that is later was late because the process was stopped
PROBE_SECONDS = (0.01, 1.0)  # between probes of a client that closed its sending side
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class BoundedProtocol(FramedProtocol):
    """One connection with its limits. on_refusal: called for requests that reach no application."""

    def __init__(
        self,
        limits: ConnectionLimits,
        on_refusal: Callable[[RequestRecord], None] = lambda _: None,
        **options: Any,
    ) -> None:
        super().__init__(limits, **options)
        self._on_refusal = on_refusal
        self._unanswered: deque[RequestResponseCycle] = deque()
        self._late_refusal: HttpError | None = None  # to be sent after earlier requests' responses
        self._receive_timer: TimerHandle | None = None
        self._timed_phase = (Phase.NONE, 0)  # and its number
        self._phase_begin = 0.0
        self._probe_timer: TimerHandle | None = None
        self._reader = ReaderWatch(self.loop, limits.stall_seconds)
        self._linger = LingeringClose(self.loop, limits.linger_seconds, limits.linger_bytes)
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
        self._linger.stop()
        self._unset_keepalive_if_required()
        if self._probe_timer is not None:
            self._probe_timer.cancel()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio takes it, uvicorn has none
        """The client closed its sending side: it waits for the response (`nc -N`) or has gone.

        TCP shows which only once something is written. Returns whether to keep the connection.
        """
        is_complete = self._phase is Phase.NONE or self._late_refusal is not None
        has_request = is_complete and len(self._unanswered) == 1
        if not has_request or self.pipeline or self.cycle.scope["http_version"] != "1.1":
            return False
        self.cycle.keep_alive = False
        self._probe(PROBE_SECONDS[0])
        return True

    def _probe(self, pause: float) -> None:
        """Write what any client skips; one that has gone resets, and the next write fails.

        A response that has started is written anyway and needs no probes.
        """
        is_ending = self.transport.is_closing() or self._linger.is_active
        if not (self.cycle.response_started or is_ending):
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
        self._unanswered.popleft()  # responses come in the order of the requests
        if self.transport.is_closing():
            self.pause_writing()
        elif self._late_refusal is not None and not self._has_earlier():
            self._refuse(self._late_refusal)
        elif self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self.cycle.keep_alive:
            self._await_request()
        else:
            self._close()
        if not self.pipeline:  # more requests are read once all that were read are under way
            self.flow.resume_reading()

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
        if left < -STOPPED_SECONDS:  # what the client sent meanwhile is not read yet
            self._await_request()
        elif left <= 0.0:
            self.timeout_keep_alive_handler()
        elif left < math.inf:
            self._watch_idle(left)

    # ------------------------------------------------------------------ receiving

    def data_received(self, data: bytes) -> None:
        """Parse received bytes. A violation is answered and the connection closed."""
        if self._linger.is_active or self._late_refusal is not None:
            self._linger.drop(self.transport, data)
            return
        try:
            self._parse(data)
        except HttpError as violation:
            self._refuse(violation)
            return
        self._watch_receiving(self._phase)
        if self._phase is not Phase.NONE or self._unanswered:
            self._idle_since = math.inf
        elif self._idle_since == math.inf:  # else only blank lines have come
            self._await_request()

    def on_headers_complete(self) -> None:
        """All headers have come: the request can be served."""
        super().on_headers_complete()
        if not self._ignores_upgrade:
            self.scope["state"][DISCONNECT] = DisconnectWatch()
            self._unanswered.append(self.cycle)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        def serve(scope: Scope, receive: Receive, _send: Send) -> Awaitable[None]:
            if "record" in scope["state"]:  # it was refused before this task began
                return asyncio.sleep(0)
            scope["extensions"] = {SINGLE_MESSAGE: {}}
            return app(scope, receive, partial(send_on, cycle))  # type: ignore[no-any-return]

        super()._start_asgi_task(cycle, serve)  # type: ignore[arg-type]

    def _watch_receiving(self, phase: Phase) -> None:
        """Start the timer of a phase, if another one has begun."""
        numbered = (phase, self._num_phases)
        if numbered == self._timed_phase:
            return
        self._timed_phase = numbered
        if self._receive_timer is not None:
            self._receive_timer.cancel()
            self._receive_timer = None
        if phase is not Phase.NONE:
            self._phase_begin = self.loop.time()
            self._check_receiving()

    def _check_receiving(self) -> None:
        limits = self._limits
        if self.flow.read_paused or self.pipeline:  # we do not read until requests are served
            self._phase_begin = self.loop.time()
        allowed = limits.header_seconds
        if self._timed_phase[0] is Phase.BODY:
            allowed = limits.body_seconds + self._num_body_bytes / limits.body_bytes_per_second
        left = self._phase_begin + allowed - self.loop.time()
        if left < -STOPPED_SECONDS:  # what the client sent meanwhile is not read yet
            self._phase_begin, left = self.loop.time(), allowed
        if left > 0.0:
            self._receive_timer = self.loop.call_later(left, self._check_receiving)
        else:
            text = "the request did not arrive in time; send it faster"
            self._refuse(HttpError(408, text, code="request_timeout"))

    def _refuse(self, refusal: HttpError) -> None:
        """Answer in place of the application, unless it has started to, and close.

        Responses come in the order of the requests, so earlier requests are answered first.
        """
        self._watch_receiving(Phase.NONE)
        if self._has_earlier():
            self._late_refusal, self._idle_since = refusal, math.inf
            return
        may_answer = self._phase is not Phase.BODY or not self.cycle.response_started
        if may_answer and not self.transport.is_closing():
            self._write_refusal(refusal)
        self._notify_disconnect()
        self._close()

    def _has_earlier(self) -> bool:
        """Whether requests before the one that is being received are not answered yet."""
        return len(self._unanswered) > (self._phase is Phase.BODY)

    def _close(self) -> None:
        """Close the connection after its last response, which the client may read for a while."""
        self._idle_since = math.inf
        self._linger.start(self.transport)
        self.pause_writing()

    def _notify_disconnect(self) -> None:
        """Tell the applications of all unanswered requests that their client has gone."""
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()
            cycle.scope["state"][DISCONNECT].disconnect()

    def _write_refusal(self, refusal: HttpError) -> None:
        """Write the response and count it: by the application if the request has reached it."""
        record = self._record()
        is_new = record is None
        if record is None:
            record = RequestRecord(*self._line(), new_id())
            if self._phase is Phase.BODY:
                self.scope["state"]["record"] = record
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

    # ------------------------------------------------------------------ writing

    def pause_writing(self) -> None:
        """Much is unread: writers wait, but not for ever."""
        super().pause_writing()
        self._reader.start(self.transport)

    def resume_writing(self) -> None:
        """The client has read enough."""
        self._reader.stop()
        super().resume_writing()
