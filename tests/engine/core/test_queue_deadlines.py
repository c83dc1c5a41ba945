"""Requests that wait too long are expired; running ones are not."""

from __future__ import annotations

from quire.engine.core.queue_deadlines import SPARE, QueueDeadlines


def test_each_request_expires_once_at_its_deadline() -> None:
    now = [100.0]
    deadlines = QueueDeadlines(lambda: now[0])
    deadlines.add("late", 5.0, set())
    deadlines.add("soon", 1.0, set())
    deadlines.add("never", None, set())
    assert deadlines.take_expired() == []
    now[0] = 101.0
    assert deadlines.take_expired() == ["soon"]
    now[0] = 1000.0
    assert deadlines.take_expired() == ["late"]
    assert deadlines.take_expired() == []


def test_requests_that_have_ended_are_dropped_long_before_their_deadline() -> None:
    """A server answers thousands a second, and the timeout may be an hour."""
    deadlines, unfinished = QueueDeadlines(lambda: 0.0), {"waits"}
    deadlines.add("waits", 1e4, unfinished)
    for number in range(20 * SPARE):
        deadlines.add(str(number), 3600.0, unfinished)
        assert len(deadlines) <= SPARE + 2 * len(unfinished) + 1
    deadlines._clock = lambda: 1e5
    assert deadlines.take_expired()[-1] == "waits"
