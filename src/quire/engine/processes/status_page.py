"""The status page of a process, in shared memory: its heartbeat, and an engine's started requests.

It can be read whatever the process is doing. Each process has one, which it alone writes and
without locks: each field is an aligned 8-byte word. The supervisor reads whether the process hangs;
the frontend reads, after an engine's death, which requests had started to run.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Iterable

from quire.engine.processes.child_process import SpawnError
from quire.shared_memory import PAGE_BYTES, clear_page, map_page

_HEARTBEAT, _HAS_WORK, _NUM_STEPS, _NUM_STARTED, _LAST_WORK = range(5)
_HEADER_WORDS = 8
SECONDS_BETWEEN = 0.5  # of two heartbeats of an API process
RING_WORDS = PAGE_BYTES // 8 - _HEADER_WORDS  # of started requests: more than any batch holds


def new_page(memory: int, number: int) -> StatusPage:
    """The page of a process that is to be started. Raises SpawnError."""
    try:
        clear_page(memory, number)
        return StatusPage(memory, number)
    except OSError as error:
        text = f"there is no shared memory for a process ({error}); free some memory"
        raise SpawnError(text) from error


class StatusPage:
    """One process's page of shared memory; the process alone maps it `writable`."""

    def __init__(self, memory: int, number: int, *, writable: bool = False) -> None:
        self._map = map_page(memory, number, writable=writable)
        self._words = memoryview(self._map).cast("Q")

    def close(self) -> None:
        """Unmap the shared memory."""
        self._words.release()
        self._map.close()

    # ------------------------------------------------------------------ the process writes

    async def report_forever(self) -> None:
        """Record that the event loop of an API process runs, until cancelled."""
        while True:
            self.heartbeat(0, has_work=False)
            await asyncio.sleep(SECONDS_BETWEEN)

    def heartbeat(self, num_steps: int, *, has_work: bool) -> None:
        """Record that the loop runs: before each step, and several times a second while idle."""
        self._words[_HEARTBEAT] = time.monotonic_ns()
        self._words[_HAS_WORK] = has_work
        if has_work:
            self._words[_LAST_WORK] = self._words[_HEARTBEAT]
        self._words[_NUM_STEPS] = num_steps

    def heartbeat_within_step(self) -> None:
        """Record that a long step goes on, with many prompt tokens or a kernel to compile."""
        self._words[_HEARTBEAT] = self._words[_LAST_WORK] = time.monotonic_ns()

    def record_started(self, request_ids: Iterable[str]) -> None:
        """Record requests that enter the batch, before their first step runs: it may crash."""
        words = self._words
        words[_LAST_WORK] = time.monotonic_ns()
        for request_id in request_ids:
            words[_HEADER_WORDS + words[_NUM_STARTED] % RING_WORDS] = zlib.crc32(
                request_id.encode()
            )
            words[_NUM_STARTED] += 1

    # ------------------------------------------------------------------ others read

    @property
    def num_steps(self) -> int:
        """Steps that this engine process has finished."""
        return self._words[_NUM_STEPS]

    @property
    def has_work(self) -> bool:
        """Whether requests were running or waiting at the last heartbeat."""
        return bool(self._words[_HAS_WORK])

    @property
    def last_work(self) -> float:
        """When the engine last had work, in monotonic seconds; 0: never."""
        return self._words[_LAST_WORK] / 1e9

    def age(self) -> float:
        """Seconds since the last heartbeat; 0 before the first, while the process starts."""
        last = self._words[_HEARTBEAT]
        return max(0, time.monotonic_ns() - last) / 1e9 if last else 0.0

    def find_started(self, request_ids: Iterable[str]) -> set[str]:
        """The ids of those that have entered the batch, as far back as the ring reaches."""
        started = set(self._words[_HEADER_WORDS:].tolist())
        return {i for i in request_ids if zlib.crc32(i.encode()) in started}
