"""What a caller gets of an answer does not depend on how many of its tokens come together."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.messages import AddRequest, RequestDelta, TokenLogprobs
from quire.core.request_limits import RequestLimits
from quire.core.request_output import CompletionOutput
from quire.core.sampling_params import SamplingParams
from quire.engine.frontend.input_processor import PreparedRequest
from quire.engine.frontend.output_processor import OutputProcessor
from quire.engine.frontend.request_metrics import RequestMetrics
from quire.tokenizer.token_spelling import Pieces

SPELLING = [b"a", b"}", b"{}", b"ab", b"\xc3", b"\xa9", b"}b", b" }", b""]
LIMITS = RequestLimits(max_model_len=99, max_kv_tokens=99, vocab_size=9, max_num_seqs=1)


class Speller:
    """A tokenizer of SPELLING."""

    def pieces(self, *_: object) -> Pieces:
        return Pieces(SPELLING.__getitem__)

    def token_text(self, token_id: int) -> str:
        return str(token_id)

    def token_bytes(self, token_id: int, **_: object) -> bytes:
        return SPELLING[token_id]

    def shows(self, *_: object, **__: object) -> bool:
        return True


def second_brace() -> Callable[[str], bool]:
    """Ends an answer with its second closing brace, as the last call of a tool might."""
    found: list[str] = []

    def is_over(text: str) -> bool:
        found.append(text)
        return "".join(found).count("}") >= 2

    return is_over


def answer(
    deltas: list[RequestDelta], sampling: SamplingParams, *, is_over: bool
) -> CompletionOutput:
    """The answer's output, joined."""
    outputs = OutputProcessor(Speller(), RequestMetrics())  # type: ignore[arg-type]
    message = AddRequest(request_id="a/0", prompt_token_ids=[0], sampling=sampling)
    stop_when = second_brace if is_over else None
    request = PreparedRequest("a", None, [0], sampling, [message], LIMITS, stop_when)
    outputs.add(request, arrival=0.0)
    whole = CompletionOutput(0, logprobs=None if sampling.logprobs is None else [])
    for delta in deltas:
        for item in outputs.process([delta]).outputs.values():
            whole.append(item.outputs[0])
    assert outputs.num_unfinished == 0
    return whole


def cut(token_ids: list[int], reason: str, cuts: Collection[int]) -> list[RequestDelta]:
    """The tokens as deltas, cut before these positions; the last one has the reason."""
    ends = [0, *sorted(cuts), len(token_ids)]
    deltas = []
    for begin, end in itertools.pairwise(ends):
        ids = token_ids[begin:end]
        scores = [TokenLogprobs([i], [-1.0], 1) for i in ids]
        deltas.append(RequestDelta(request_id="a/0", token_ids=ids, logprobs=scores))
    deltas[-1].finish_reason = reason
    return deltas


@pytest.mark.parametrize("is_over", [True, False])
@given(
    token_ids=st.lists(st.integers(0, len(SPELLING) - 1), min_size=1, max_size=12),
    reason=st.sampled_from(["stop", "length"]),
    stop=st.lists(st.sampled_from(["}b", "}", "ba", "a}"]), max_size=2),
    includes_stop=st.booleans(),
    data=st.data(),
)
def test_the_cut_has_no_influence(
    is_over: bool,
    token_ids: list[int],
    reason: str,
    stop: list[str],
    includes_stop: bool,
    data: st.DataObject,
) -> None:
    sampling = SamplingParams(stop=stop, logprobs=0, include_stop_str_in_output=includes_stop)
    positions = st.sets(st.integers(1, len(token_ids) - 1)) if len(token_ids) > 1 else st.just({})
    one_by_one = cut(token_ids, reason, range(1, len(token_ids)))
    expected = answer(one_by_one, sampling, is_over=is_over)
    together = cut(token_ids, reason, data.draw(positions))
    assert answer(together, sampling, is_over=is_over) == expected


def whole(deltas: list[RequestDelta], **sampling: Any) -> CompletionOutput:
    return answer(deltas, SamplingParams(**sampling), is_over=False)


def test_what_might_have_become_a_stop_string_comes_at_the_end() -> None:
    assert whole(cut([0], "length", []), stop=["ab"]).text == "a"


def test_what_follows_a_stop_string_is_left_out() -> None:
    found = whole(cut([0, 1, 0, 0], "length", []), stop=["}"], logprobs=0)
    assert (found.text, found.token_ids) == ("a", [0, 1])
    assert found.logprobs is not None
    assert [list(position) for position in found.logprobs] == [[0], [1]]


def test_the_last_token_of_a_grammar_is_text_and_an_end_token_none() -> None:
    deltas = cut([0, 1], "stop", [])
    assert whole(deltas).text == "a"
    deltas[-1].grammar_terminated = True
    assert whole(deltas).text == "a}"
