"""What a runner remembers of its requests: when a step's hidden states are wanted on the host."""

from __future__ import annotations

import numpy as np
import pytest

from quire.core.request_limits import RequestLimits
from quire.core.sampling_params import SamplingParams
from quire.core.scheduler_output import NewRequest, ScheduledRequest, SchedulerOutput
from quire.engine.core.input_batch import StepOrder
from quire.engine.core.running_requests import RunningRequests

LIMITS = RequestLimits(max_model_len=64, max_kv_tokens=64, vocab_size=32, max_num_seqs=2)
PROMPT = [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("start", "num_tokens", "wanted"),
    [(0, 5, True), (0, 2, True), (3, 2, True), (4, 1, False), (5, 1, False), (9, 1, False)],
)
def test_scores_of_a_prompt_hold_up_its_own_steps_alone(
    start: int, num_tokens: int, wanted: bool
) -> None:
    running = RunningRequests(LIMITS, 4, {})
    request = NewRequest(
        request_id="a",
        token_ids=PROMPT,
        num_prompt_tokens=len(PROMPT),
        sampling=SamplingParams(temperature=0.0, prompt_logprobs=1),
        bad_words_ids=[],
        eos_token_ids=[],
    )
    plan = SchedulerOutput(step_id=0, removed_ids=[], new_requests=[request], scheduled=[])
    rows = running.apply_differences(plan)
    entry = ScheduledRequest(
        request_id="a", start=start, num_tokens=num_tokens, new_block_ids=[], samples=True
    )
    order = StepOrder(
        [entry], np.array(rows), np.array([0, num_tokens]), np.array([start + num_tokens])
    )
    assert running.needs_hidden_states(order) is wanted
