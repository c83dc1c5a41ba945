"""Stop strings against a naive search of the whole text, for any way to cut it into pieces."""

from __future__ import annotations

import time
from itertools import pairwise

from cpu_limit import cpu_limit
from hypothesis import example, given
from hypothesis import strategies as st

from quire.tokenizer.stop_strings import StopMatcher

ALPHABETS = ("ab", "ab|é👍")  # few letters make many near matches
TEXT = st.one_of(st.text(letters, max_size=30) for letters in ALPHABETS)
STOP = st.one_of(st.text(letters, min_size=1, max_size=5) for letters in ALPHABETS)
STOPS = st.lists(STOP, max_size=5)


def first_stop(text: str, stops: list[str]) -> tuple[int, str] | None:
    """(end, stop string) of the first match by the definition, looked for in the plainest way."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return end, max(ending, key=len)
    return None


def could_become_stop(text: str, stops: list[str]) -> int:
    """Length of the longest tail of a text that begins a stop string."""
    return (
        max(
            (
                n
                for n in range(len(text) + 1)
                if any(s.startswith(text[len(text) - n :]) for s in stops)
            ),
            default=0,
        )
        if stops
        else 0
    )


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    marks = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(marks)]


@given(text=TEXT, stops=STOPS, cuts=st.lists(st.integers(0, 30)), include=st.booleans())
@example(text="aabaab", stops=["aabaaa", "abaab"], cuts=[1, 2, 3, 4], include=False)
@example(text="abab", stops=["b", "ab", "bab"], cuts=[], include=False)
def test_equals_a_search_of_the_whole(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    matcher = StopMatcher(stops, include_stop=include)
    sent = "".join(matcher.feed(piece) for piece in pieces_of(text, cuts)) + matcher.flush()
    match = first_stop(text, stops)
    if match is None:
        assert (sent, matcher.found) == (text, None)
    else:
        end, stop = match
        assert (sent, matcher.found) == (text[: end if include else end - len(stop)], stop)
        assert matcher.feed("more") == ""


@given(text=TEXT, stops=STOPS)
def test_holds_back_no_more_than_it_must(text: str, stops: list[str]) -> None:
    matcher, sent = StopMatcher(stops, include_stop=False), ""
    for position, character in enumerate(text, 1):
        sent += matcher.feed(character)
        if matcher.found is not None:
            break
        held = could_become_stop(text[:position], stops)
        assert sent == text[: position - held]


@given(text=TEXT, stops=STOPS, first_allowed=st.integers(0, 30))
def test_passes_over_matches_that_may_not_count(
    text: str, stops: list[str], first_allowed: int
) -> None:
    matcher = StopMatcher(stops, include_stop=True)
    sent = "".join(matcher.feed(c, may_match=i >= first_allowed) for i, c in enumerate(text))
    sent += matcher.flush()
    ends = [e for e in range(first_allowed + 1, len(text) + 1) if text[:e].endswith(tuple(stops))]
    assert sent == text[: min(ends, default=len(text))]


def test_long_stop_strings_take_linear_time() -> None:
    with cpu_limit(2.0, time.process_time):
        matcher = StopMatcher(["a" * 20_000 + "b"] * 4, include_stop=False)
        for _ in range(2_000):
            matcher.feed("a" * 20)
