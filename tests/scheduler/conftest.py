"""What tests of the scheduler share."""

from __future__ import annotations

import pytest


@pytest.fixture
def no_burst_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that have just started do not wait for the prompts that arrived with them."""
    monkeypatch.setattr("quire.scheduler.chunk_policy.FEW_REQUESTS", 0)
