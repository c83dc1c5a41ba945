from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.server.parsing.output_events import join
from quire.server.parsing.output_parser import OutputParser, ParserConfig
from quire.server.parsing.reasoning_parser import REASONING_PARSERS, ReasoningTokenCounter

THINK = REASONING_PARSERS["think"]
PIECES = [
    "<think>",
    "</think>",
    "<th",
    "ink>",
    "</",
    "think",
    ">",
    " ",
    "\n",
    "a",
    "ö",
    "</think>x",
]


def count(*pieces: str, in_reasoning: bool = False) -> int:
    """Counts each piece as one token."""
    counter = ReasoningTokenCounter(THINK, in_reasoning, lambda token_id: pieces[token_id].encode())
    counter.push(range(len(pieces)))
    return counter.num_tokens


@pytest.mark.parametrize(
    ("pieces", "in_reasoning", "num_tokens"),
    [
        (["<think>", "a", "b", "</think>", "c"], False, 4),
        (["\n", " <th", "ink>a", "</", "think", ">c", "d"], False, 6),
        (["a", "b", "</think>", "c"], True, 3),
        (["a", "b", "</think>", "c"], False, 0),
        (["<think>", "a"], False, 2),
        (["<", "b", "<think>", "a", "</think>"], False, 0),
        (["a", "<think>", "b", "</think>"], False, 0),
        (["\x0b", "<think>", "a"], False, 0),  # no white space to the parser
        (["</think>"], True, 1),
        ([], True, 0),
    ],
)
def test_tokens_up_to_the_end_of_the_thought(
    pieces: list[str], in_reasoning: bool, num_tokens: int
) -> None:
    assert count(*pieces, in_reasoning=in_reasoning) == num_tokens


def test_characters_that_tokens_share() -> None:
    tokens = [b"<think>", "é".encode()[:1], "é".encode()[1:], b"</think>", b"x"]
    counter = ReasoningTokenCounter(THINK, False, tokens.__getitem__)
    counter.push(range(5))
    assert counter.num_tokens == 4


@settings(max_examples=300)
@given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=12), cut=st.integers(0, 12), at=st.booleans()
)
def test_it_agrees_with_the_parser_however_tokens_come(
    pieces: list[str], cut: int, at: bool
) -> None:
    counter = ReasoningTokenCounter(THINK, at, lambda token_id: pieces[token_id].encode())
    for part in (range(min(cut, len(pieces))), range(min(cut, len(pieces)), len(pieces))):
        counter.push(part)
    assert counter.num_tokens == count(*pieces, in_reasoning=at)
    parser = OutputParser(ParserConfig(THINK, in_reasoning=at))
    answer = join(parser.push("".join(pieces)) + parser.finish())
    if answer.reasoning:
        assert counter.num_tokens > 0
    if counter.num_tokens == 0 and "".join(pieces).strip():
        assert answer.reasoning == ""
