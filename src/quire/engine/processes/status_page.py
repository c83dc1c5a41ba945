"""What an engine process shows of itself in shared memory: it can be read whatever it is doing.

One small file per engine and epoch, written by the engine alone and without locks: each field is
one aligned 8-byte word. The supervisor sees in it whether the engine is stuck; the front sees,
after a death, which requests had begun to run.
"""

from __future__ import annotations

import mmap
import time
import zlib
from collections.abc import Iterable
from pathlib import Path

RING_WORDS = 8192  # of requests begun: more than any batch holds
_PROGRESS, _HAS_WORK, _NUM_STEPS, _NUM_BEGUN, _LAST_WORK = range(5)
_HEADER_WORDS = 8
_NUM_BYTES = 8 * (_HEADER_WORDS + RING_WORDS)


def create_page(path: Path) -> None:
    """Make an empty page that only this user can read."""
    path.touch(mode=0o600, exist_ok=False)
    with path.open("r+b") as file:
        file.truncate(_NUM_BYTES)


class StatusPage:
    """One engine's page. The engine opens it `writable`; everybody else only reads."""

    def __init__(self, path: Path, *, writable: bool = False) -> None:
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        with path.open("r+b" if writable else "rb") as file:
            self._map = mmap.mmap(file.fileno(), _NUM_BYTES, access=access)
        self._words = memoryview(self._map).cast("Q")

    def close(self) -> None:
        """Unmap it."""
        self._words.release()
        self._map.close()

    # ------------------------------------------------------------------ the engine writes

    def heartbeat(self, num_steps: int, *, has_work: bool) -> None:
        """The loop goes round: before each step, and several times a second while idle."""
        self._words[_PROGRESS] = time.monotonic_ns()
        self._words[_HAS_WORK] = has_work
        if has_work:
            self._words[_LAST_WORK] = self._words[_PROGRESS]
        self._words[_NUM_STEPS] = num_steps

    def heartbeat_within_step(self) -> None:
        """A step goes on: it may be a long one, with many prompt tokens or a kernel to compile."""
        self._words[_PROGRESS] = self._words[_LAST_WORK] = time.monotonic_ns()

    def record_started(self, request_ids: Iterable[str]) -> None:
        """These requests enter the batch; told before the step runs, since it may be the last."""
        words = self._words
        words[_LAST_WORK] = time.monotonic_ns()
        for request_id in request_ids:
            words[_HEADER_WORDS + words[_NUM_BEGUN] % RING_WORDS] = zlib.crc32(request_id.encode())
            words[_NUM_BEGUN] += 1

    # ------------------------------------------------------------------ others read

    @property
    def num_steps(self) -> int:
        """Steps ended since this engine process began."""
        return self._words[_NUM_STEPS]

    @property
    def has_work(self) -> bool:
        """Whether requests were running or waiting at the last heartbeat."""
        return bool(self._words[_HAS_WORK])

    @property
    def last_work(self) -> float:
        """When there was work for the last time, in seconds of the monotonic clock; 0 for never."""
        return self._words[_LAST_WORK] / 1e9

    def age(self) -> float:
        """Seconds since the last heartbeat; 0 before the first, since loading takes its time."""
        last = self._words[_PROGRESS]
        return max(0, time.monotonic_ns() - last) / 1e9 if last else 0.0

    def find_started(self, request_ids: Iterable[str]) -> set[str]:
        """Those of the requests that have entered the batch, as far back as the ring reaches."""
        begun = set(self._words[_HEADER_WORDS:].tolist())
        return {i for i in request_ids if zlib.crc32(i.encode()) in begun}
