"""The output items of a response, part by part."""

from __future__ import annotations

import time

from cpu_limit import cpu_limit

from quire.server.api.common.logprob_formats import ChatLogprob
from quire.server.api.openai import responses_reply as replies
from quire.server.api.openai.response_output import OutputItems
from quire.server.api.openai.responses_tools import ResponsesTools
from quire.server.parsing.output_events import (
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallBegin,
)


def test_parts_of_a_long_answer_take_time_in_proportion() -> None:
    """Each part once copied the log-probabilities of all before it."""
    output, count = OutputItems("resp_0", ResponsesTools()), 160_000
    score = ChatLogprob(token="a", logprob=-1.0, bytes=[97], top_logprobs=[])
    with cpu_limit(2.5, time.process_time):
        for _ in range(count):
            output.logprobs.append(score)
            for _ in output.add(TextDelta("a")):
                pass
        done = list(output.close("completed"))
    assert isinstance(done[0], replies.TextDone)
    assert (done[0].text, done[0].logprobs) == ("a" * count, [score] * count)


def test_each_item_has_its_own_text() -> None:
    output = OutputItems("resp_0", ResponsesTools())
    parts = [
        ReasoningDelta("so"), ReasoningDelta(" be it"), TextDelta("a"), TextDelta("b"),
        ToolCallBegin(0, "call_0", "f"), ToolCallArguments(0, "{"), ToolCallArguments(0, "}"),
        ToolCallBegin(1, "call_1", "g"), ToolCallArguments(1, '{"a": '),
    ]  # fmt: skip
    for part in parts:
        list(output.add(part))
    list(output.close("incomplete"))
    reasoning, message, first, second = output.items
    assert isinstance(reasoning, replies.OutputReasoning)
    assert isinstance(message, replies.OutputMessage)
    assert isinstance(first, replies.OutputCall)
    assert isinstance(second, replies.OutputCall)
    assert (reasoning.content[0].text, message.content[0].text) == ("so be it", "ab")
    assert (first.arguments, first.status) == ("{}", "completed")
    assert (second.arguments, second.status) == ('{"a": ', "incomplete")
