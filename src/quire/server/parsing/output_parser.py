"""One answer's text, read as it comes: thoughts first, then text and tool calls.

What is no thought and no call is text, exactly as it was written; next to calls and thoughts the
white space is dropped. How calls and thoughts look is told by tool_parsers.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from quire.server.parsing.output_events import (
    Event,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallBegin,
)
from quire.server.parsing.reasoning_parser import ReasoningParser
from quire.server.parsing.text_source import SPACE, MalformedCall, Marks, TextSource, Wait
from quire.server.parsing.tool_call_reader import AllCallsRead, Schemas, ToolCallReader
from quire.server.parsing.tool_parser import ToolParser


class ParserConfig(msgspec.Struct, frozen=True):
    """What to look for. in_reasoning: the prompt has begun the thought already.

    tools: the request's; without a tool format there are none. most_calls: None is any number.
    must_call: the answer is calls and nothing else, but for a thought before them.
    """

    reasoning: ReasoningParser | None = None
    in_reasoning: bool = False
    tool_format: ToolParser | None = None
    tools: Schemas | None = None
    most_calls: int | None = None
    must_call: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        """All texts that are looked for, which may be control tokens."""
        thoughts = () if self.reasoning is None else (self.reasoning.begin, self.reasoning.end)
        form = self.tool_format
        return thoughts if form is None else (*thoughts, *form.begin.texts, *form.inner)


class OutputParser:
    """An StreamParser for what `reading` describes."""

    def __init__(self, reading: ParserConfig, *, new_id: Callable[[], str] | None = None) -> None:
        self._reading = reading
        self.is_over = False  # whatever comes tells nothing more
        self._source = TextSource()
        self._calls = ToolCallReader(
            self._source, reading.tools or {}, self._begin, self._add, most=reading.most_calls
        )
        self._new_id = new_id or (reading.tool_format.new_id if reading.tool_format else str)
        self._events: list[Event] = []
        self._kind: Callable[[str], Event] = TextDelta  # of the parts that are not told yet
        self._arguments: Callable[[str], Event] = TextDelta  # of the latest call
        self._parts: list[str] = []
        self._reader = self._read()
        next(self._reader)

    @property
    def called_tools(self) -> bool:
        """Whether there are tool calls so far, and all of them are complete."""
        return self._calls.num_begun == self._calls.num_complete > 0

    def push(self, text: str) -> list[Event]:
        """Take more text; returns what is certain now."""
        self._source.feed(text)
        next(self._reader)
        return self._take_events()

    def finish(self) -> list[Event]:
        """No more text comes; returns what was held back."""
        self._source.close()
        for _ in self._reader:
            raise AssertionError("the reader waits at the end of the text")
        events = self._take_events()
        if self._reading.must_call:  # a call that was cut before it was certain is no text
            return [event for event in events if not isinstance(event, TextDelta)]
        return events

    # ParserConfig

    def _read(self) -> Wait[None]:
        if self._reading.reasoning is not None:
            yield from self._read_thought(self._reading.reasoning)
        if self._reading.tool_format is not None:
            yield from self._read_answer(self._reading.tool_format)
        yield from self._read_rest(self._text)

    def _read_thought(self, reasoning: ReasoningParser) -> Wait[None]:
        """Read a thought if the answer begins with one; else take nothing."""
        source = self._source
        if not (yield from self._thought_begins(reasoning.begin)):
            return
        yield from source.skip_space()
        if (yield from source.until(Marks(reasoning.end), self._thought)) is not None:
            yield from source.expect(reasoning.end)
            yield from source.skip_space()

    def _thought_begins(self, mark: str) -> Wait[bool]:
        source = self._source
        if self._reading.in_reasoning:
            yield from source.skip_space()
            yield from source.accept(mark)  # some models write it once more
            return True
        if (yield from source.peek_past_space()) != mark[0]:
            return False
        source.begin_attempt()
        yield from source.skip_space()
        begins = yield from source.accept(mark)
        if begins:
            source.end_attempt()
        else:
            source.give_back()
        return begins

    def _read_answer(self, form: ToolParser) -> Wait[None]:
        """Read text and calls, as long as there may be further calls."""
        source = self._source
        if form.bare and (yield from source.peek_past_space()) == "{":
            yield from self._read_call(form, (yield from source.word(SPACE)))
        while self._reading.most_calls is None or self._calls.num_begun < self._reading.most_calls:
            space = yield from source.until(form.begin, self._text)
            if space is None:
                return
            yield from self._read_call(form, space)

    def _read_call(self, form: ToolParser, space: str) -> Wait[None]:
        """Read what may be one or more calls. space: what came before it."""
        num_before = self._calls.num_begun
        self._calls.attempt(before=space)
        try:
            yield from form.read(self._calls)
        except MalformedCall:
            self._text(self._source.end_attempt())
        except AllCallsRead:
            self.is_over = True
            yield from self._read_rest(_drop)
        if self._calls.num_begun > num_before and not (yield from self._source.peek_past_space()):
            yield from self._source.skip_space()  # nothing but space comes after the call

    def _read_rest(self, emit: Callable[[str], None]) -> Wait[None]:
        while (yield from self._source.more()):
            emit(self._source.take_to(len(self._source.text)))

    # Telling

    def _text(self, text: str) -> None:
        self._tell(TextDelta, text)

    def _thought(self, text: str) -> None:
        self._tell(ReasoningDelta, text)

    def _begin(self, index: int, name: str) -> None:
        self._flush()
        self._events.append(ToolCallBegin(index, self._new_id(), name))
        self._arguments = partial(ToolCallArguments, index)

    def _add(self, text: str) -> None:
        self._tell(self._arguments, text)

    def _tell(self, kind: Callable[[str], Event], text: str) -> None:
        """Tell a part; neighbours of one kind are joined when the events are taken."""
        if kind is not self._kind:
            self._flush()
            self._kind = kind
        self._parts.append(text)

    def _flush(self) -> None:
        if text := "".join(self._parts):
            self._events.append(self._kind(text))
        self._parts.clear()

    def _take_events(self) -> list[Event]:
        self._flush()
        events, self._events = self._events, []
        return events


class PlainParser:
    """A StreamParser for requests without tools and reasoning: all text is the answer."""

    called_tools = False

    def push(self, text: str) -> list[Event]:
        """The text itself."""
        return [TextDelta(text)] if text else []

    def finish(self) -> list[Event]:
        """Nothing: no text is held back."""
        return []


def _drop(_text: str) -> None:
    pass


def stop_after_calls(reading: ParserConfig) -> Callable[[str], bool]:
    """Takes an answer's text as it comes, and tells whether it has all calls that it may have."""
    parser = OutputParser(reading)

    def is_over(text: str) -> bool:
        parser.push(text)
        return parser.is_over

    return is_over
