"""LingeringClose: closes a connection whose client is still sending, without losing the response.

A socket that is closed while data arrives is reset, and a reset discards what the client has not
read yet: it would never see why its request was refused. So the sending side is closed first, and
what still comes is dropped for a while. Slowly, since others' tokens wait for what is read here:
all connections of a process together drop no more than BYTES_PER_SECOND, but none waits longer
than LONGEST_PAUSE, and of more than MOST_AT_ONCE the one that began first is closed.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle, Transport
from typing import ClassVar

# A piece of 256 KiB takes some 50 us to read; eight bodies of 16 MiB take half a second in all.
BYTES_PER_SECOND = 256 << 20
MOST_AT_ONCE = 64
LONGEST_PAUSE = 0.25  # seconds of a connection, which only then sees that its client has gone


class LingeringClose:
    """Drops what a client sends after its last response. Bounded in seconds and bytes."""

    _turn = 0.0  # of the process: when the next piece may be read, by the event loop's clock
    _active: ClassVar[dict[LingeringClose, Transport]] = {}  # of the process, in order of begin

    def __init__(self, loop: AbstractEventLoop, seconds: float, num_bytes: int) -> None:
        self._loop = loop
        self._seconds = seconds
        self._bytes_left = num_bytes
        self.is_active = False  # once the last response has been written
        self._timer: TimerHandle | None = None
        self._pause: TimerHandle | None = None

    def start(self, transport: Transport) -> None:
        """Close the sending side once all is written, and the connection in time."""
        if transport.is_closing():
            return
        self.is_active = True
        if len(self._active) >= MOST_AT_ONCE:
            self._active.pop(next(iter(self._active))).close()
        self._active[self] = transport
        transport.resume_reading()
        transport.write_eof()
        self._timer = self._loop.call_later(self._seconds, transport.close)

    def drop(self, transport: Transport, data: bytes) -> None:
        """Drop received data; too much of it closes the connection."""
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            transport.close()
        if not transport.is_closing():
            now = self._loop.time()
            turn = max(LingeringClose._turn, now) + len(data) / BYTES_PER_SECOND
            LingeringClose._turn = min(turn, now + LONGEST_PAUSE)
            transport.pause_reading()
            self._pause = self._loop.call_at(LingeringClose._turn, transport.resume_reading)

    def stop(self) -> None:
        """Stop: the connection is closed."""
        self._active.pop(self, None)
        for timer in (self._timer, self._pause):
            if timer is not None:
                timer.cancel()
