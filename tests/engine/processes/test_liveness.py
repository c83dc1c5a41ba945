"""When a process has hung, and when all processes were stopped."""

from __future__ import annotations

import pytest

from quire.engine.processes import liveness
from quire.engine.processes.liveness import Silence

TICK = 0.5


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(liveness, "time", made)
    return made


def test_a_process_that_hangs_is_silent_as_long_as_its_heartbeat_is_old(clock: Clock) -> None:
    silence, age = Silence(10 * TICK), 0.0
    assert silence.tick == TICK
    for _ in range(100):
        clock.now += TICK * 1.1
        age += TICK * 1.1
        assert silence.seconds(age) == pytest.approx(age)


def test_time_in_which_the_supervisor_was_stopped_too_does_not_count(clock: Clock) -> None:
    silence = Silence(10 * TICK)
    clock.now += 500.0
    assert silence.seconds(500.0) == 2 * TICK
    clock.now += TICK
    assert silence.seconds(500.5) == 3 * TICK  # it has had no turn yet
    clock.now += TICK
    assert silence.seconds(0.1) == 0.1  # now it has
    clock.now += TICK
    assert silence.seconds(0.6) == 0.6
