"""The events of an answer: text, reasoning and tool calls, piece by piece, for any API.

The joined events of a stream equal those of the complete text, because there is only one parser
(output_parser.py), and how the text is cut has no influence on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec


class TextDelta(msgspec.Struct, frozen=True):
    """The next part of the answer's text."""

    text: str


class ReasoningDelta(msgspec.Struct, frozen=True):
    """The next part of the model's reasoning."""

    text: str


class ToolCallBegin(msgspec.Struct, frozen=True):
    """The start of a call of one of the request's tools. index: of the answer's call, from 0."""

    index: int
    id: str
    name: str


class ToolCallArguments(msgspec.Struct, frozen=True):
    """More of a call's arguments, the text of one JSON object."""

    index: int
    text: str


Event = TextDelta | ReasoningDelta | ToolCallBegin | ToolCallArguments


class ToolCall(msgspec.Struct):
    """A complete call. arguments: the text of a JSON object, unless the answer ended inside it."""

    id: str
    name: str
    arguments: str = ""


def arguments_of(text: str) -> dict[str, Any] | None:
    """A call's arguments; None if they are not a JSON object: the answer ended inside them."""
    try:
        value = msgspec.json.decode(text) if text else {}
    except (msgspec.DecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


Part = TextDelta | ReasoningDelta | ToolCall


class Answer(msgspec.Struct):
    """A complete answer: text, reasoning and tool calls."""

    text: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = []


def join(events: Sequence[Event]) -> Answer:
    """The answer of these events, of which a whole text has few."""
    answer = Answer()
    for part in parts_of(events):
        match part:
            case TextDelta(text):
                answer.text += text
            case ReasoningDelta(text):
                answer.reasoning += text
            case call:
                answer.calls.append(call)
    return answer


def parts_of(events: Sequence[Event]) -> list[Part]:
    """The parts of a whole answer in their order, each as long as it goes on."""
    parts: list[Part] = []
    for event in events:
        match event, parts[-1] if parts else None:
            case ToolCallBegin(_, call_id, name), _:
                parts.append(ToolCall(call_id, name))
            case ToolCallArguments(_, text), ToolCall() as call:
                call.arguments += text
            case TextDelta(text), TextDelta(before):
                parts[-1] = TextDelta(before + text)
            case ReasoningDelta(text), ReasoningDelta(before):
                parts[-1] = ReasoningDelta(before + text)
            case (TextDelta() | ReasoningDelta()) as first, _:
                parts.append(first)
    return parts
