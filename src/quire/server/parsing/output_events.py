"""What an answer consists of, piece by piece, whichever API tells it. Finding it is next door.

The pieces of a stream, joined, are exactly what one-shot parsing gives, because there is only one
parser and how the text was cut has no influence on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec


class TextDelta(msgspec.Struct, frozen=True):
    """More of the answer."""

    text: str


class ReasoningDelta(msgspec.Struct, frozen=True):
    """More of the model's thoughts."""

    text: str


class ToolCallBegin(msgspec.Struct, frozen=True):
    """A call of one of the request's tools. index: counts an answer's calls from 0."""

    index: int
    id: str
    name: str


class ToolCallArguments(msgspec.Struct, frozen=True):
    """More of a call's arguments, which are the text of one JSON object."""

    index: int
    text: str


Event = TextDelta | ReasoningDelta | ToolCallBegin | ToolCallArguments


class StreamParser(Protocol):
    """Reads one answer's text as it comes. Any text is an answer; nothing raises."""

    def push(self, text: str) -> list[Event]:
        """Take more text; returns what is certain now."""

    def finish(self) -> list[Event]:
        """No more text comes; returns what was held back."""

    @property
    def called_tools(self) -> bool:
        """Whether there are tool calls so far, and all of them are complete."""


class ToolCall(msgspec.Struct):
    """A whole call. arguments: the text of a JSON object, unless the answer broke off in it."""

    id: str
    name: str
    arguments: str = ""


class Answer(msgspec.Struct):
    """A whole answer."""

    text: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = []


def join(events: Sequence[Event]) -> Answer:
    """The answer that the events tell; each list of text is joined once."""
    if len(events) == 1 and isinstance(events[0], TextDelta):  # as most answers are
        return Answer(events[0].text)
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    arguments: list[list[str]] = []
    for event in events:
        match event:
            case TextDelta(text):
                texts.append(text)
            case ReasoningDelta(text):
                thoughts.append(text)
            case ToolCallBegin(_, call_id, name):
                calls.append(ToolCall(call_id, name))
                arguments.append([])
            case ToolCallArguments(index, text):
                arguments[index].append(text)
    for call, parts in zip(calls, arguments, strict=True):
        call.arguments = "".join(parts)
    return Answer("".join(texts), "".join(thoughts), calls)
