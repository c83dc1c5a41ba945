"""Heartbeats of the API processes, in shared memory: one aligned 8-byte word for each."""

from __future__ import annotations

import asyncio
import time

from quire.shared_memory import map_page

PAGE = 0  # of the shared memory
SECONDS_BETWEEN = 0.5


class WorkerHeartbeats:
    """The time at which each API process's event loop last had a turn."""

    def __init__(self, memory: int) -> None:
        self._words = memoryview(map_page(memory, PAGE, writable=True)).cast("Q")

    def clear(self, index: int) -> None:
        """Let a process begin without a heartbeat."""
        self._words[index] = 0

    async def report_forever(self, index: int) -> None:
        """Give signs of life, until cancelled."""
        while True:
            self._words[index] = time.monotonic_ns()
            await asyncio.sleep(SECONDS_BETWEEN)

    def age(self, index: int) -> float:
        """Seconds since the last heartbeat; 0 before the first, while the process starts."""
        last = self._words[index]
        return max(0, time.monotonic_ns() - last) / 1e9 if last else 0.0
