"""Clients that do not read what was written for them: nobody waits for one for ever."""

from __future__ import annotations

import logging
from asyncio import AbstractEventLoop, TimerHandle, Transport

logger = logging.getLogger(__name__)

NUM_LOOKS = 4  # at a client that does not read, until it is cut off


class ReaderWatch:
    """Cuts one client off that has left everything unread for so many seconds."""

    def __init__(self, loop: AbstractEventLoop, seconds: float) -> None:
        self._loop = loop
        self._seconds = seconds
        self._timer: TimerHandle | None = None

    def begin(self, transport: Transport) -> None:
        """Much is unread: look whether it becomes less."""
        if self._timer is None:
            self._transport = transport
            self._num_stalls = 0
            self._num_unread = transport.get_write_buffer_size()
            self._wait()

    def end(self) -> None:
        """The client has read enough, or is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        self._timer = self._loop.call_later(self._seconds / NUM_LOOKS, self._look)

    def _look(self) -> None:
        num_unread = self._transport.get_write_buffer_size()
        self._num_stalls = 0 if num_unread < self._num_unread else self._num_stalls + 1
        self._num_unread = num_unread
        if self._num_stalls < NUM_LOOKS:
            self._wait()
        else:
            logger.info("a client that did not read for %g s is cut off", self._seconds)
            self._transport.abort()
