"""EncodingGuard: encodings that may take very long, each in a thread that can be given up.

No thread can be interrupted inside the library. One whose text takes too long is left behind: its
caller gets an error, other texts get threads of their own, and only so many threads may run at a
time, with those left behind. These have a low priority, and end with the process.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from quire.background import is_background, lower_priority
from quire.errors import OverloadedError, invalid_value

T = TypeVar("T")

logger = logging.getLogger(__name__)

# Processor time of one text: a busy machine does not use it up. Usual are a million characters in
# half a second.
MAX_SECONDS = 1.0
MAX_SECONDS_PER_CHAR = 1e-5
WALL_SECONDS_PER_SECOND = 60  # for a thread that waits, or a machine that is very busy
MAX_LEFT_BEHIND = 4  # threads of one tokenizer, those that callers wait for included
_SHORTEST_WAIT = 0.02


class EncodingGuard:
    """Runs the encodings of one tokenizer. May be shared between threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: set[Future[Any]] = set()  # with those left behind
        self._left_behind: set[Future[Any]] = set()

    def run(self, encode: Callable[[], T], num_chars: int) -> T:
        """The result of an encoding of so many characters.

        Waits while as many run as may be left behind. Raises InvalidRequestError (param "prompt")
        if it takes too much processor time, and OverloadedError while too many have been left
        behind, if no thread can be started, or if it takes very long without processor time.
        """
        result: Future[T] = Future()
        self._admit(result)
        seconds = MAX_SECONDS + MAX_SECONDS_PER_CHAR * num_chars
        try:
            return self._wait(result, _start(encode, result), seconds)
        finally:
            if not result.done():  # too long, or its caller was interrupted
                self._leave_behind(result)

    def _admit(self, result: Future[Any]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_stuck() or len(self._running) < MAX_LEFT_BEHIND)
            if self._is_stuck():
                raise OverloadedError(
                    f"the model's tokenizer is busy with {len(self._left_behind)} texts that take "
                    "it too long; send the request again later",
                    retry_after=MAX_SECONDS,
                )
            self._running.add(result)
        result.add_done_callback(self._end)

    def _is_stuck(self) -> bool:
        return len(self._left_behind) >= MAX_LEFT_BEHIND

    def _end(self, result: Future[Any]) -> None:
        with self._changed:
            self._running.discard(result)
            self._left_behind.discard(result)
            self._changed.notify_all()

    def _leave_behind(self, result: Future[Any]) -> None:
        with self._changed:
            if result in self._running:
                self._left_behind.add(result)
            self._changed.notify_all()
            if self._is_stuck():
                logger.warning(
                    "the tokenizer still works on %d texts that take it too long: further texts "
                    "are refused (503) until one of them ends, or the process is started again",
                    len(self._left_behind),
                )

    def _wait(self, result: Future[T], used: Callable[[], float], seconds: float) -> T:
        deadline = time.monotonic() + WALL_SECONDS_PER_SECOND * seconds
        while (left := seconds - used()) > 0 and not result.done():
            if time.monotonic() > deadline:
                raise OverloadedError(
                    f"the model's tokenizer has not finished this text after "
                    f"{WALL_SECONDS_PER_SECOND * seconds:.1f} s, in which it had little processor "
                    "time; send the request again when the machine is less busy"
                )
            wait([result], max(left, _SHORTEST_WAIT))
        if result.done():
            return result.result()
        raise invalid_value(
            "prompt",
            f"the model's tokenizer has not finished this text after {seconds:.1f} s of processor "
            "time; send another text, or serve the model with another tokenizer.json",
        )


def _start(encode: Callable[[], T], result: Future[T]) -> Callable[[], float]:
    """Encode in a new thread; returns a function of the processor seconds that it has used."""
    clocks: list[Callable[[], float]] = []
    run = partial(_encode, encode, result, clocks, low_priority=is_background())
    try:
        threading.Thread(target=run, name="quire-encode", daemon=True).start()
    except RuntimeError:
        result.cancel()
        raise OverloadedError(
            "no thread could be started to read the text; send it again later, or raise the "
            "server's limit of threads"
        ) from None
    return lambda: clocks[0]() if clocks else 0.0


def _encode(
    encode: Callable[[], T],
    result: Future[T],
    clocks: list[Callable[[], float]],
    *,
    low_priority: bool,
) -> None:
    clocks.append(_thread_clock())
    if low_priority:
        lower_priority()
    try:
        result.set_result(encode())
    except BaseException as error:  # a panic of the library, too
        result.set_exception(error)


def _thread_clock() -> Callable[[], float]:
    """The processor seconds of the calling thread, for other threads to read; 0 once it ended."""
    if sys.platform != "linux":
        begin = time.monotonic()
        return lambda: time.monotonic() - begin
    clock = time.pthread_getcpuclockid(threading.get_ident())

    def seconds() -> float:
        with suppress(OSError):  # it has ended
            return time.clock_gettime(clock)
        return 0.0

    return seconds
