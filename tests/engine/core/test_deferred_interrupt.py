"""What handlers of signals raise waits for the end of a step, but not for ever."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from quire.engine.core import deferred_interrupt
from quire.engine.core.deferred_interrupt import DeferredInterrupt


@pytest.fixture(autouse=True)
def handlers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, an alarm TimeoutError; both wait for 10 ms at most."""

    def on_alarm(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(deferred_interrupt, "PATIENCE", 0.01)
    pairs = (signal.SIGINT, signal.default_int_handler), (signal.SIGALRM, on_alarm)
    before = [signal.signal(number, handler) for number, handler in pairs]
    yield
    for (number, _), handler in zip(pairs, before, strict=True):
        signal.signal(number, handler)


def run_step(signals: tuple[int, int], seconds: float, done: list[int]) -> None:
    """A step that gets two signals, some seconds from each other."""
    with DeferredInterrupt():
        signal.raise_signal(signals[0])
        time.sleep(seconds)
        signal.raise_signal(signals[1])
        done.append(1)


@pytest.mark.parametrize("seconds", [0.0, 0.02])
@pytest.mark.parametrize(
    "signals", [(signal.SIGINT, signal.SIGALRM), (signal.SIGALRM, signal.SIGINT)]
)
def test_ctrl_c_goes_before_an_error(signals: tuple[int, int], seconds: float) -> None:
    """Also where the second one ends a step that hangs: a caller may try again after an error."""
    done: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        run_step(signals, seconds, done)
    assert bool(done) == (seconds == 0.0)
