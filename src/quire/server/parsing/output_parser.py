"""OutputParser: parses one answer's text as it comes: first reasoning, then text and tool calls.

What is neither reasoning nor a call is text, unchanged; white space next to calls and reasoning is
dropped. The formats are in tool_parsers.py and reasoning_parser.py.
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
    """Configuration of an OutputParser. in_reasoning: the prompt has opened the reasoning already.

    is_past_reasoning: the prompt has ended it, too, which switches it off: a constraint has no
    place for another one. tools: the request's; without a tool parser there are none. most_calls:
    None is any number. must_call: the answer consists only of calls, after optional reasoning.
    """

    reasoning: ReasoningParser | None = None
    in_reasoning: bool = False
    is_past_reasoning: bool = False
    tool_parser: ToolParser | None = None
    tools: Schemas | None = None
    most_calls: int | None = None
    must_call: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether all text is the answer: there are neither tools nor reasoning."""
        return self.reasoning is None and self.tool_parser is None

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks that the parser looks for; they may be control tokens."""
        marks = () if self.reasoning is None else (self.reasoning.begin, self.reasoning.end)
        tools = self.tool_parser
        return marks if tools is None else (*marks, *tools.begin.texts, *tools.inner)


class OutputParser:
    """Parses what `config` describes. Any text is valid; nothing raises."""

    def __init__(self, config: ParserConfig, *, new_id: Callable[[], str] | None = None) -> None:
        self._config = config
        self.is_done = False  # further text gives no more events
        self._source = TextSource()
        self._calls = ToolCallReader(
            self._source, config.tools or {}, self._begin, self._add, most=config.most_calls
        )
        self._new_id = new_id or (config.tool_parser.new_id if config.tool_parser else str)
        self._events: list[Event] = []
        self._kind: Callable[[str], Event] = TextDelta  # of the parts that are not reported yet
        self._arguments: Callable[[str], Event] = TextDelta  # of the latest call
        self._parts: list[str] = []
        self._reader = self._read()
        next(self._reader)

    @property
    def called_tools(self) -> bool:
        """Whether there are tool calls so far, and all of them are complete."""
        return self._calls.num_started == self._calls.num_complete > 0

    def push(self, text: str) -> list[Event]:
        """Take more text; returns the events that are certain now."""
        self._source.feed(text)
        next(self._reader)
        return self._take_events()

    def finish(self) -> list[Event]:
        """End the text; returns the events that were held back."""
        self._source.close()
        for _ in self._reader:
            raise AssertionError("the reader waits at the end of the text")
        events = self._take_events()
        if self._config.must_call:  # a call that was cut before it was certain is not text
            return [event for event in events if not isinstance(event, TextDelta)]
        return events

    # Parsing

    def _read(self) -> Wait[None]:
        if self._config.reasoning is not None:
            yield from self._read_reasoning(self._config.reasoning)
        if self._config.tool_parser is not None:
            yield from self._read_answer(self._config.tool_parser)
        yield from self._read_rest(self._text)

    def _read_reasoning(self, reasoning: ReasoningParser) -> Wait[None]:
        """Read the reasoning if the answer starts with it; else take nothing."""
        source = self._source
        if not (yield from self._reasoning_begins(reasoning.begin)):
            return
        yield from source.skip_space()
        if (yield from source.until(Marks(reasoning.end), self._reasoning)) is not None:
            yield from source.expect(reasoning.end)
            yield from source.skip_space()

    def _reasoning_begins(self, mark: str) -> Wait[bool]:
        source = self._source
        if self._config.in_reasoning:
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

    def _read_answer(self, tool_parser: ToolParser) -> Wait[None]:
        """Read text and calls, as long as there may be further calls."""
        source = self._source
        if tool_parser.bare and (yield from source.peek_past_space()) == "{":
            yield from self._read_call(tool_parser, (yield from source.word(SPACE)))
        while self._config.most_calls is None or self._calls.num_started < self._config.most_calls:
            space = yield from source.until(tool_parser.begin, self._text)
            if space is None:
                return
            yield from self._read_call(tool_parser, space)

    def _read_call(self, tool_parser: ToolParser, space: str) -> Wait[None]:
        """Read what may be one or more calls. space: what came before it."""
        num_before = self._calls.num_started
        self._calls.attempt(before=space)
        try:
            yield from tool_parser.read(self._calls)
        except MalformedCall:
            self._text(self._source.end_attempt())
        except AllCallsRead:
            self.is_done = True
            yield from self._read_rest(_drop)
        if self._calls.num_started > num_before and not (yield from self._source.peek_past_space()):
            yield from self._source.skip_space()  # nothing but space comes after the call

    def _read_rest(self, emit: Callable[[str], None]) -> Wait[None]:
        while (yield from self._source.more()):
            emit(self._source.take_to(len(self._source.text)))

    # Events

    def _text(self, text: str) -> None:
        self._report(TextDelta, text)

    def _reasoning(self, text: str) -> None:
        self._report(ReasoningDelta, text)

    def _begin(self, index: int, name: str) -> None:
        self._flush()
        self._events.append(ToolCallBegin(index, self._new_id(), name))
        self._arguments = partial(ToolCallArguments, index)

    def _add(self, text: str) -> None:
        self._report(self._arguments, text)

    def _report(self, kind: Callable[[str], Event], text: str) -> None:
        """Add text to the events; consecutive texts of one kind are joined."""
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
    """An OutputParser for requests without tools and reasoning: all text is the answer."""

    called_tools = False

    def push(self, text: str) -> list[Event]:
        """Return the text unchanged."""
        return [TextDelta(text)] if text else []

    def finish(self) -> list[Event]:
        """Return no events: no text is held back."""
        return []


StreamParser = OutputParser | PlainParser


def _drop(_text: str) -> None:
    pass


def stop_after_calls(config: ParserConfig) -> Callable[[str], bool]:
    """A function that takes an answer's next text and returns whether it has all its calls."""
    parser = OutputParser(config)

    def has_all_calls(text: str) -> bool:
        parser.push(text)
        return parser.is_done

    return has_all_calls
