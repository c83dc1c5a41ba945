"""ReaderWatch: disconnects a slow client, which does not read its response (backpressure)."""

from __future__ import annotations

import logging
from asyncio import AbstractEventLoop, TimerHandle, Transport

logger = logging.getLogger(__name__)

NUM_CHECKS = 4  # of a client that does not read, until it is disconnected


class ReaderWatch:
    """Disconnects one client that has read nothing for `seconds`."""

    def __init__(self, loop: AbstractEventLoop, seconds: float) -> None:
        self._loop = loop
        self._seconds = seconds
        self._timer: TimerHandle | None = None

    def start(self, transport: Transport) -> None:
        """Start to watch a client with much unread data."""
        if self._timer is None:
            self._transport = transport
            self._num_stalls = 0
            self._num_unread = transport.get_write_buffer_size()
            self._wait()

    def stop(self) -> None:
        """Stop: the client has read enough, or has disconnected."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        self._timer = self._loop.call_later(self._seconds / NUM_CHECKS, self._check)

    def _check(self) -> None:
        num_unread = self._transport.get_write_buffer_size()
        self._num_stalls = 0 if num_unread < self._num_unread else self._num_stalls + 1
        self._num_unread = num_unread
        if self._num_stalls < NUM_CHECKS:
            self._wait()
        else:
            logger.info("disconnected a client that read nothing for %g s", self._seconds)
            self._transport.abort()
