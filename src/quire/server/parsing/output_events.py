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


class Answer(msgspec.Struct):
    """A complete answer: text, reasoning and tool calls."""

    text: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = []


def join(events: Sequence[Event]) -> Answer:
    """The answer of these events; each list of texts is joined once."""
    if len(events) == 1 and isinstance(events[0], TextDelta):  # the usual case
        return Answer(events[0].text)
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    arguments: list[list[str]] = []
    for event in events:
        match event:
            case TextDelta(text):
                texts.append(text)
            case ReasoningDelta(text):
                reasoning.append(text)
            case ToolCallBegin(_, call_id, name):
                calls.append(ToolCall(call_id, name))
                arguments.append([])
            case ToolCallArguments(index, text):
                arguments[index].append(text)
    for call, parts in zip(calls, arguments, strict=True):
        call.arguments = "".join(parts)
    return Answer("".join(texts), "".join(reasoning), calls)
