"""Limits of processor time, for work that must not grow by the square, or without a bound."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def cpu_limit(seconds: float, clock: Callable[[], float] = time.thread_time) -> Iterator[None]:
    """Fail if the body takes longer on the clock, which other processes do not count on.

    Choose ten times what an idle machine takes: on a busy one, the same work takes longer even in
    processor time. The garbage collector's looks at all that other tests left are spared.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    begin = clock()
    try:
        yield
        spent = clock() - begin
    finally:
        if was_enabled:
            gc.enable()
    assert spent < seconds, f"{spent:.2f} s of processor time"
