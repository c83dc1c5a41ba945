"""Requests that wait too long are expired; running ones are not."""

from __future__ import annotations

from quire.engine.core.queue_deadlines import QueueDeadlines


def test_each_request_expires_once_at_its_deadline() -> None:
    now = [100.0]
    deadlines = QueueDeadlines(lambda: now[0])
    deadlines.add("late", 5.0)
    deadlines.add("soon", 1.0)
    deadlines.add("never", None)
    assert deadlines.take_expired() == []
    now[0] = 101.0
    assert deadlines.take_expired() == ["soon"]
    now[0] = 1000.0
    assert deadlines.take_expired() == ["late"]
    assert deadlines.take_expired() == []
