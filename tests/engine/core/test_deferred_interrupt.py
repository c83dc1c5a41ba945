"""What handlers of signals raise waits for the end of a step, but not for ever."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from quire.engine.core import deferred_interrupt
from quire.engine.core.deferred_interrupt import DeferredInterrupt


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, an alarm TimeoutError."""

    def on_alarm(*_: object) -> None:
        raise TimeoutError

    pairs = (signal.SIGINT, signal.default_int_handler), (signal.SIGALRM, on_alarm)
    before = [signal.signal(number, handler) for number, handler in pairs]
    yield
    for (number, _), handler in zip(pairs, before, strict=True):
        signal.signal(number, handler)


def run_step(signals: tuple[int, int], done: list[int]) -> None:
    """A step that gets two signals, 20 ms from each other."""
    with DeferredInterrupt():
        signal.raise_signal(signals[0])
        time.sleep(0.02)
        signal.raise_signal(signals[1])
        done.append(1)


@pytest.mark.parametrize("patience", [60.0, 0.01])
@pytest.mark.parametrize(
    "signals", [(signal.SIGINT, signal.SIGALRM), (signal.SIGALRM, signal.SIGINT)]
)
def test_ctrl_c_goes_before_an_error(
    signals: tuple[int, int], patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the second one ends a step that hangs: a caller may try again after an error."""
    monkeypatch.setattr(deferred_interrupt, "PATIENCE", patience)
    done: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        run_step(signals, done)
    assert bool(done) == (patience == 60.0)
