"""Limits of requests: token ids that steps would use beyond the logits."""

from __future__ import annotations

import pytest

from quire.core.messages import AddRequest
from quire.core.reasoning_marks import ReasoningMarks
from quire.core.request_limits import RequestLimits
from quire.core.sampling_params import SamplingParams
from quire.errors import InvalidRequestError

LIMITS = RequestLimits(max_model_len=9, max_kv_tokens=9, vocab_size=9, max_num_seqs=1)


@pytest.mark.parametrize("wrong", [9, -1])
@pytest.mark.parametrize("field", ["begin", "end"])
def test_marks_of_reasoning_beyond_the_vocabulary_are_refused(field: str, wrong: int) -> None:
    """A budget that ends would force such a token, and fail the step of all requests."""

    def asked(**changed: list[int]) -> AddRequest:
        marks = ReasoningMarks(**{"begin": [1], "end": [2]} | changed)
        sampling = SamplingParams(thinking_token_budget=1, max_tokens=1, reasoning_marks=marks)
        return AddRequest(request_id="a", prompt_token_ids=[1], sampling=sampling)

    LIMITS.check(asked())
    with pytest.raises(InvalidRequestError, match="reasoning_marks: token ids of this model"):
        LIMITS.check(asked(**{field: [wrong]}))
