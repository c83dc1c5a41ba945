"""Items of streams: whatever the cuts, they add up to the whole answers, and stay as they were."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.request_output import CompletionOutput, RequestOutput, RequestTimes
from quire.core.sampling_params import RequestOutputKind, SamplingParams
from quire.engine.frontend.output_queue import StreamedItems, streamed_items
from quire.errors import InvalidRequestError

PARTS = st.lists(st.tuples(st.integers(0, 1), st.text("ab", max_size=3)), min_size=1, max_size=8)


def part(index: int, text: str, *, finished: bool) -> RequestOutput:
    """A part of one of two answers; a token for each letter."""
    answer = CompletionOutput(index, text, list(map(ord, text)))
    return RequestOutput("x", "p", [1], [answer], RequestTimes(0.0), finished=finished)


@given(PARTS)
def test_items_have_the_answers_so_far(parts: list[tuple[int, str]]) -> None:
    items, found, seen = StreamedItems(final_only=False), ["", ""], list[tuple[object, object]]()
    for number, (index, text) in enumerate(parts):
        item = items.add(part(index, text, finished=number == len(parts) - 1))
        found[index] += text
        assert item is not None
        assert {a.index: a.text for a in item.outputs} | dict(enumerate(found)) == dict(
            enumerate(found)
        )
        seen.append((item, [(a.text, list(a.token_ids)) for a in item.outputs]))
    for item, answers in seen:  # later parts have changed no earlier item
        assert isinstance(item, RequestOutput)
        assert [(a.text, a.token_ids) for a in item.outputs] == answers
        assert all(a.text == "".join(map(chr, a.token_ids)) for a in item.outputs)


@given(PARTS)
def test_the_last_item_alone(parts: list[tuple[int, str]]) -> None:
    items = StreamedItems(final_only=True)
    last = len(parts) - 1
    found = [items.add(part(*each, finished=i == last)) for i, each in enumerate(parts)]
    assert found[:-1] == [None] * last
    assert found[-1] is not None
    assert found[-1].finished


def test_kinds() -> None:
    assert streamed_items(None) is None
    assert streamed_items(RequestOutputKind.DELTA) is None
    assert SamplingParams(output_kind=2).output_kind is RequestOutputKind.FINAL_ONLY  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match=r"^output_kind: must be a RequestOutputKind"):
        SamplingParams(output_kind="delta")  # type: ignore[arg-type]
