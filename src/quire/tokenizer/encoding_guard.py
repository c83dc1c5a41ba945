"""EncodingGuard: encodings that may take very long, where they can be given up.

The first run in threads, which cost little. No thread can be interrupted inside the library: one
whose text takes too long is left behind, with a low priority, until it or the process ends. From
then on the tokenizer's texts are encoded in child processes, which are killed.

A thread whose caller has gone is abandoned: it goes on too, but says nothing about the tokenizer.
Child processes are used beside abandoned threads only if these are many or one takes too long.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from functools import partial

from quire.background import (
    CallerGoneError,
    is_background,
    lower_priority,
    poll_intervals,
    thread_clock,
)
from quire.errors import OverloadedError, invalid_value
from quire.processes import start_thread
from quire.tokenizer.encoding_subprocess import EncodingSubprocess, Question

logger = logging.getLogger(__name__)

# Processor time of one text: a busy machine does not use it up. Usual are a million characters in
# half a second.
MAX_SECONDS = 1.0
MAX_SECONDS_PER_CHAR = 1e-5
WALL_SECONDS_PER_SECOND = 60  # for a thread that waits, or a machine that is very busy
MAX_THREADS = 4  # of one tokenizer; fewer than twice as many are ever left behind or abandoned
MAX_CHILDREN = 2
_SHORTEST_WAIT = 0.02
ALL_BUSY = "other texts keep the processes for the tokenizer busy; send the request again later"

Encode = Callable[[], list[int]]


class EncodingGuard:
    """Runs the encodings of one tokenizer. May be shared between threads.

    spec: its tokenizer.json, for the child processes.
    """

    def __init__(self, spec: Callable[[], str]) -> None:
        self._threads = threading.Semaphore(MAX_THREADS)
        self._left_behind: set[Future[list[int]]] = set()
        # Of threads whose callers have gone; the values tell whether they have taken too long.
        self._abandoned: dict[Future[list[int]], Callable[[], bool]] = {}
        self._is_slow = False  # a text has taken too long
        self._children: queue.LifoQueue[EncodingSubprocess] = queue.LifoQueue()
        for _ in range(MAX_CHILDREN):
            self._children.put(EncodingSubprocess(spec))

    def ids(self, encode: Encode, question: Question) -> list[int]:
        """The token ids of a text. encode: how this process gets them; question: the child.

        Raises InvalidRequestError (param "prompt") if it takes too much processor time, and
        OverloadedError if no thread or process can be started or is free in time, or if it takes
        very long without processor time. Raises CallerGoneError as soon as nobody waits for it.
        """
        seconds = MAX_SECONDS + MAX_SECONDS_PER_CHAR * len(question.text)
        with self._one_of_threads():
            if not self._needs_child():
                return self._in_thread(encode, seconds)
        return self._in_child(question, seconds)

    def _needs_child(self) -> bool:
        if self._is_slow or self._left_behind:
            return True
        abandoned = list(self._abandoned.values())  # a copy: other threads change the original
        return len(abandoned) >= MAX_THREADS or any(is_too_long() for is_too_long in abandoned)

    @contextmanager
    def _one_of_threads(self) -> Iterator[None]:
        if not any(self._threads.acquire(timeout=wait) for wait in poll_intervals(_longest_wait())):
            raise OverloadedError(ALL_BUSY)
        try:
            yield
        finally:
            self._threads.release()

    def _free_child(self) -> EncodingSubprocess:
        for seconds in poll_intervals(_longest_wait()):
            with suppress(queue.Empty):
                return self._children.get(timeout=seconds)
        raise OverloadedError(ALL_BUSY)

    def _in_child(self, question: Question, seconds: float) -> list[int]:
        child = self._free_child()
        try:
            return child.ids(question, seconds, WALL_SECONDS_PER_SECOND * seconds)
        except TimeoutError:
            raise _too_long(seconds) from None
        finally:
            self._children.put(child)

    def _in_thread(self, encode: Encode, seconds: float) -> list[int]:
        result: Future[list[int]] = Future()
        used = _start(encode, result)
        try:
            return self._wait(result, used, seconds)
        except CallerGoneError:
            self._abandoned[result] = lambda: used() > seconds
            result.add_done_callback(self._abandoned.pop)
            raise
        except BaseException:  # too long, or its caller was interrupted, or it has failed
            self._left_behind.add(result)
            result.add_done_callback(self._left_behind.discard)
            raise

    def _wait(
        self, result: Future[list[int]], used: Callable[[], float], seconds: float
    ) -> list[int]:
        for most in poll_intervals(WALL_SECONDS_PER_SECOND * seconds):
            left = seconds - used()
            if left <= 0 or result.done():
                break
            wait([result], max(min(left, most), _SHORTEST_WAIT))
        if result.done():
            return result.result()
        if left > 0:
            raise OverloadedError(
                f"the model's tokenizer has not finished this text after "
                f"{WALL_SECONDS_PER_SECOND * seconds:.1f} s, in which it had little processor "
                "time; send the request again when the machine is less busy"
            )
        if not self._is_slow:
            self._is_slow = True
            logger.warning(
                "the tokenizer takes too long for some text: from now on those that may take long "
                "are encoded in child processes"
            )
        raise _too_long(seconds)


def _longest_wait() -> float:
    """Seconds to wait for a thread or a child process that others use."""
    return WALL_SECONDS_PER_SECOND * MAX_SECONDS


def _too_long(seconds: float) -> Exception:
    return invalid_value(
        "prompt",
        f"the model's tokenizer has not finished this text after {seconds:.1f} s of processor "
        "time; send another text, or serve the model with another tokenizer.json",
    )


def _start(encode: Encode, result: Future[list[int]]) -> Callable[[], float]:
    """Encode in a new thread; returns a function of the processor seconds that it has used."""
    clocks: list[Callable[[], float]] = []
    run = partial(_encode, encode, result, clocks, low_priority=is_background())
    try:
        start_thread(run, "quire-encode")
    except OverloadedError:
        result.cancel()
        raise
    return lambda: clocks[0]() if clocks else 0.0


def _encode(
    encode: Encode,
    result: Future[list[int]],
    clocks: list[Callable[[], float]],
    *,
    low_priority: bool,
) -> None:
    clocks.append(thread_clock())
    if low_priority:
        lower_priority()
    try:
        result.set_result(encode())
    except BaseException as error:  # a panic of the library, too
        result.set_exception(error)
