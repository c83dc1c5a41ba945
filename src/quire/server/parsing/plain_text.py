"""The parser of models and requests without tools and thoughts: all text is the answer."""

from __future__ import annotations

from quire.server.parsing.parsed_events import Event, TextDelta


class PlainParser:
    """An AnswerParser that passes text on."""

    called_tools = False

    def push(self, text: str) -> list[Event]:
        """The text itself."""
        return [TextDelta(text)] if text else []

    def finish(self) -> list[Event]:
        """Nothing was held back."""
        return []
