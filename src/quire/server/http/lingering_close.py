"""LingeringClose: closes a connection whose client is still sending, without losing the response.

A socket that is closed while data arrives is reset, and a reset discards what the client has not
read yet: it would never see why its request was refused. So the sending side is closed first, and
what still comes is dropped for a while.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle, Transport


class LingeringClose:
    """Drops what a client sends after its last response. Bounded in seconds and bytes."""

    def __init__(self, loop: AbstractEventLoop, seconds: float, num_bytes: int) -> None:
        self._loop = loop
        self._seconds = seconds
        self._bytes_left = num_bytes
        self.is_active = False  # once the last response has been written
        self._timer: TimerHandle | None = None

    def start(self, transport: Transport) -> None:
        """Close the sending side once all is written, and the connection in time."""
        if transport.is_closing():
            return
        self.is_active = True
        transport.resume_reading()
        transport.write_eof()
        self._timer = self._loop.call_later(self._seconds, transport.close)

    def drop(self, transport: Transport, data: bytes) -> None:
        """Drop received data; too much of it closes the connection."""
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            transport.close()

    def stop(self) -> None:
        """Stop: the connection is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
