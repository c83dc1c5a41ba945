"""The progress of one prompt: each report once, never back, complete with the first token."""

from __future__ import annotations

from quire.core.messages import RequestDelta
from quire.core.request_output import PromptProgress
from quire.engine.frontend.progress_reports import ProgressReports


def test_progress_never_goes_back_and_ends_with_the_first_token() -> None:
    reports = ProgressReports(100, 4.0)
    reports.add(RequestDelta(request_id="r", prompt_progress=[16]), 5.0)
    joined = RequestDelta(request_id="r", prompt_progress=[48])
    joined.join(RequestDelta(request_id="r", prompt_progress=[80]))  # its client lagged
    reports.add(joined, 6.0)
    assert reports.take() == (
        *(PromptProgress(16, 16, 0.0), PromptProgress(16, 48, 2.0), PromptProgress(16, 80, 2.0)),
    )
    # another engine process, or a preempted request, starts anew
    reports.add(RequestDelta(request_id="r", prompt_progress=[0, 64]), 7.0)
    assert reports.take() == ()
    reports.add(RequestDelta(request_id="r", token_ids=[7]), 8.0)
    reports.add(RequestDelta(request_id="r", token_ids=[8]), 9.0)
    assert reports.take() == (PromptProgress(16, 100, 4.0),)


def test_reports_that_come_together_have_times() -> None:
    reports = ProgressReports(100, 4.0)
    reports.add(RequestDelta(request_id="r", prompt_progress=[0, 32], token_ids=[7]), 5.0)
    assert [report.seconds for report in reports.take()] == [0.0, 1.0, 1.0]
