"""The pieces of an answer, joined."""

from __future__ import annotations

from quire.server.parsing.output_events import (
    Answer,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    ToolCallArguments,
    ToolCallBegin,
    join,
)
from quire.server.parsing.output_parser import PlainParser


def test_pieces_are_joined_by_kind_and_call() -> None:
    events = [
        ReasoningDelta("hm"),
        ReasoningDelta("m"),
        TextDelta("I "),
        ToolCallBegin(0, "a", "f"),
        ToolCallArguments(0, '{"x"'),
        ToolCallArguments(0, ":1}"),
        ToolCallBegin(1, "b", "g"),
        TextDelta("ask"),
    ]
    calls = [ToolCall("a", "f", '{"x":1}'), ToolCall("b", "g", "")]
    assert join(events) == Answer("I ask", "hmm", calls)


def test_plain_text_passes() -> None:
    parser = PlainParser()
    assert parser.push("<think>") == [TextDelta("<think>")]
    assert parser.push("") == parser.finish() == []
    assert not parser.called_tools
