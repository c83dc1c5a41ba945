"""Masks in a thread: those that take too long are left behind, alone."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import pytest

from quire.sampling.mask_thread import MaskThread


def run(masks: MaskThread, work: list[Callable[[], object]], most: float) -> list[float | None]:
    """What is reported of each function, in order."""
    reported: list[tuple[int, float | None]] = []
    masks.run(work, most, lambda *of_one: reported.append(of_one))
    assert [index for index, _ in reported] == [*range(len(work))]
    return [seconds for _, seconds in reported]


def work(seconds: float) -> None:
    """Take this much processor time."""
    begin = time.thread_time()
    while time.thread_time() - begin < seconds:
        pass


def test_functions_are_called_in_order_in_one_thread_and_timed() -> None:
    masks, called = MaskThread(), list[tuple[int, str]]()

    def call(number: int) -> None:
        called.append((number, threading.current_thread().name))
        work(0.02 * number)

    first = run(masks, [partial(call, number) for number in range(3)], 10.0)
    assert [number for number, _ in called] == [0, 1, 2]
    assert {name for _, name in called} == {"quire-masks"}
    assert all(s is not None and s >= 0.02 * n for n, s in enumerate(first))
    assert run(masks, [], 10.0) == []
    before = masks._thread
    run(masks, [partial(call, 3)], 10.0)
    assert masks._thread is before


def test_what_takes_too_long_is_left_behind_and_the_others_are_called() -> None:
    masks, go, called = MaskThread(), threading.Event(), list[str]()

    def endless() -> None:
        while not go.is_set():
            work(0.001)
        called.append("late")

    begin = time.monotonic()
    seconds = run(masks, [lambda: called.append("a"), endless, lambda: called.append("b")], 0.05)
    assert time.monotonic() - begin < 5.0
    assert called == ["a", "b"]  # each once
    assert [number is None for number in seconds] == [False, True, False]
    go.set()
    del masks
    for thread in threading.enumerate():
        if thread.name == "quire-masks":
            thread.join(10.0)
            assert not thread.is_alive()
    assert called == ["a", "b", "late"]


def test_waiting_is_not_counted() -> None:
    """A thread that gets no processor, since others work, is not too slow."""
    assert run(MaskThread(), [partial(time.sleep, 0.2)], 0.1) != [None]


def test_signals_are_left_to_the_main_thread() -> None:
    masked = set[signal.Signals | int]()
    run(MaskThread(), [lambda: masked.update(signal.pthread_sigmask(signal.SIG_BLOCK, ()))], 10.0)
    assert {signal.SIGINT, signal.SIGALRM} <= masked


def test_errors_are_raised_where_the_masks_are_needed() -> None:
    masks = MaskThread()
    with pytest.raises(ZeroDivisionError):
        run(masks, [lambda: 1 // 0], 10.0)
    assert run(masks, [lambda: None], 10.0) != [None]


def test_after_an_interrupt_nobody_waits_for_what_it_has_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    masks, go = MaskThread(), threading.Lock()

    def interrupt(*_: object) -> bool:
        raise KeyboardInterrupt

    go.acquire()
    called: list[int] = []
    run(masks, [lambda: None], 10.0)  # starts its thread
    before = masks._thread
    assert before is not None
    with monkeypatch.context() as interrupted:
        interrupted.setattr(threading.Event, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(masks, [go.acquire, lambda: called.append(1)], 10.0)
    begin = time.monotonic()
    run(masks, [lambda: None], 10.0)
    go.release()
    assert time.monotonic() - begin < 5.0
    before.join(10.0)
    assert not before.is_alive()
    assert not called  # its state may have gone


def test_without_a_thread_the_caller_does_the_work(
    no_thread_left: Callable[[], AbstractContextManager[None]],
) -> None:
    """An engine with a limit of threads answers structured outputs, too."""
    masks, called = MaskThread(), list[int]()
    with no_thread_left():
        assert None not in run(masks, [partial(called.append, 1), partial(called.append, 2)], 1.0)
    run(masks, [partial(called.append, 3)], 1.0)
    assert called == [1, 2, 3]
