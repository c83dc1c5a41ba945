"""Prompts that come all at once, with the step times of a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from scheduling_model import MIXED, Level, make_scheduler

PROMPT, ANSWER = 1950, 100


def run(num_requests: int) -> Level:
    scheduler, sizes = make_scheduler()
    for level in (4, num_requests):  # the first one tells what steps cost
        found = Level(level, PROMPT, ANSWER, scheduler, sizes)
        found.run()
    return found


def test_the_last_of_a_burst_does_not_wait_for_the_pace_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    num_requests = 8
    alone = num_requests * PROMPT * MIXED[2048] / 2048 / 1000  # seconds of all prompts
    crowded = run(num_requests)
    assert max(crowded.ttfts) < 1.12 * alone
    assert np.quantile(crowded.gaps, 0.99) < 0.04
    monkeypatch.setattr("quire.scheduler.policy.SLOWDOWN_PER_CROWD", 0.0)
    assert max(run(num_requests).ttfts) > 1.2 * alone
