"""Grammars that make a model call tools in its own format, with arguments that fit their schema.

The text is Lark as llguidance takes it. What a grammar of a format allows, the format's reader
reads as calls; compiling is the grammar room's work.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from quire.server.parsing.formats import NAME_PLACE, ReasoningFormat
from quire.server.parsing.parser import Reading
from quire.server.parsing.xml_call import is_readable_key, types_of

_COMMON_RULES = [r"TEXT: /(?s:.*)/", r"SPACE: /[ \n]{0,4}/", r"NO_CALL: /([^{ \t\r\n](?s:.*))?/"]
_JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class NoGrammarError(ValueError):
    """Why a tool has no grammar, and how to mend it."""


def calls_grammar(
    reading: Reading, *, must_call: bool, control_token_id: Callable[[str], int | None]
) -> str:
    """The grammar of an answer whose calls have arguments that fit the tools' schemas.

    must_call: the answer is calls and nothing else, but for a thought before them; without it,
    there may be text and no call. control_token_id: the id of a control token by its text.
    Raises NoGrammarError.
    """
    return _Writer(reading, control_token_id).write(must_call=must_call)


class _Writer:
    """Writes one grammar, rule by rule."""

    def __init__(self, reading: Reading, control_token_id: Callable[[str], int | None]) -> None:
        assert reading.tool_format is not None
        self._reading = reading
        self._form = reading.tool_format
        ids = {mark: control_token_id(mark) for mark in reading.marks}
        self._ids = {mark: token_id for mark, token_id in ids.items() if token_id is not None}
        self._rules = list(_COMMON_RULES)

    def write(self, *, must_call: bool) -> str:
        """The whole text; the rule `start` comes first."""
        thought = self._thought(self._reading.reasoning)
        answer = self._calls() if must_call else self._text_and_calls()
        return "\n".join([f"start: {thought} {answer}", *self._rules, ""])

    def _thought(self, reasoning: ReasoningFormat | None) -> str:
        if reasoning is None:
            return ""
        end = self._text_up_to(reasoning.end, "thought_end")
        if self._reading.in_thought:
            return f"{end} SPACE"
        self._rules.append(f"thought: {self._literal(reasoning.begin)} {end} SPACE")
        return "thought?"

    def _calls(self) -> str:
        frame = self._form.frame
        call = self._one_of_the_tools(frame.before)
        several = "" if self._at_most_one else f"({self._literal(frame.between or '')} {call})*"
        return f"{self._literal(frame.begin)} {call} {several} {self._literal(frame.end)}"

    def _text_and_calls(self) -> str:
        """Text in which calls may begin wherever their mark stands."""
        frame, mark = self._form.frame, self._form.begin.texts[0]
        if self._form.bare:
            return f"({self._calls()} | NO_CALL)"
        lead = self._text_up_to(mark, "lead")
        if frame.begin:
            begin, before = frame.begin.removeprefix(mark), frame.before
        else:
            begin, before = "", frame.before.removeprefix(mark)
        call = self._one_of_the_tools(before)
        more = f"({self._literal(frame.between or '')} {call})*" if frame.begin else ""
        return f"({lead} {self._literal(begin)} {call} {more} {self._literal(frame.end)})* TEXT"

    @property
    def _at_most_one(self) -> bool:
        return self._form.frame.between is None or self._reading.most_calls == 1

    def _one_of_the_tools(self, before: str) -> str:
        """Add a rule for each tool; returns the name of the rule for any of them."""
        frame, names = self._form.frame, []
        for place, (name, schema) in enumerate((self._reading.tools or {}).items()):
            arguments = self._tags(schema, place) if frame.has_tags else _json(schema)
            self._rules.append(f"arguments_{place}: {arguments}")
            begin, end = before.replace(NAME_PLACE, name), frame.after
            parts = [self._literal(begin), f"arguments_{place}", self._literal(end)]
            self._rules.append(f"call_{place}: {' '.join(parts)}")
            names.append(f"call_{place}")
        self._rules.append(f"call: {' | '.join(names)}")
        return "call"

    def _tags(self, schema: Mapping[str, Any], place: int) -> str:
        """Arguments as tags around bare values; of those that are not required any may be left."""
        required, tags = schema.get("required", ()), []
        for number, (key, inner) in enumerate(schema.get("properties", {}).items()):
            if not is_readable_key(key):
                raise NoGrammarError(f"{key[:64]!r} cannot be written by this model; rename it")
            rule = f"value_{place}_{number}"
            self._value(rule, inner, schema)
            tag = f"{self._literal(f'<parameter={key}>')} {rule}"
            tags.append(tag if key in required else f"({tag})?")
        return " ".join(tags) or '""'

    def _value(self, rule: str, schema: Any, root: Mapping[str, Any]) -> None:
        types = types_of(schema)
        if types is None or "string" in types:
            self._rules.append(f'{rule}: "\\n" {rule}_end "\\n"')
            self._rules.append(f'{rule}_end[lazy]: TEXT "\\n</parameter>"')
        else:
            shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
            self._rules.append(f'{rule}: "\\n" {_json({**shared, **schema})} "\\n</parameter>\\n"')

    def _text_up_to(self, mark: str, rule: str) -> str:
        """Add a rule for text that ends with the first `mark`; returns its name."""
        kind = "" if mark in self._ids else "[lazy]"
        self._rules.append(f"{rule}{kind}: TEXT {self._literal(mark)}")
        return rule

    def _literal(self, text: str) -> str:
        """Exactly this text, its control tokens as such."""
        if not text:
            return ""
        marks = "|".join(map(re.escape, self._ids)) or "(?!)"
        parts = [part for part in re.split(f"({marks})", text) if part]
        return " ".join(f"<[{self._ids[p]}]>" if p in self._ids else _quoted(p) for p in parts)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _json(schema: Mapping[str, Any]) -> str:
    """A JSON value of a schema, written as models write it: one space after each separator."""
    return f"%json {json.dumps({**schema, 'x-guidance': _JSON_STYLE}, ensure_ascii=False)}"
