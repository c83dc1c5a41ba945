"""Grammars for answers of which only a part has a form: tool calls, or what comes after a thought.

The text is Lark as llguidance takes it. What a grammar of a format allows, the format's reader
reads as calls; compiling is the grammar room's work.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from quire.core.sampling_params import StructuredOutputs
from quire.grammar.json_style import json_style
from quire.server.parsing.output_parser import ParserConfig
from quire.server.parsing.reasoning_parser import ReasoningParser
from quire.server.parsing.tag_arguments import is_readable_key, types_of
from quire.server.parsing.tool_parser import (
    KEY_FIELD,
    NAME_FIELD,
    CallTemplate,
    TagTemplate,
    ToolParser,
)

_RULE_OF_TOOL = re.compile(r"(?:arguments|value)_(\d+)")
_COMMON_RULES = [r"TEXT: /(?s:.*)/", r"SPACE: /[ \n]{0,4}/", r"NO_CALL: /([^{ \t\r\n](?s:.*))?/"]
_SLASH = re.compile(r"(\\.)|[/\n]", re.DOTALL)  # what ends a regular expression in Lark
_ESCAPES = {"/": r"\/", "\n": r"\n"}
# as models write calls
_CALL_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class NoGrammarError(ValueError):
    """Why there is no such grammar, and how to mend it."""


def answer_grammar(
    reading: ParserConfig,
    *,
    form: StructuredOutputs | None,
    control_token_id: Callable[[str], int | None],
) -> str:
    """The grammar of an answer whose calls have arguments that fit the tools' schemas.

    Without reading.must_call there may be text and no call. form: of the text, and then it is
    either text or calls. control_token_id: the id of a control token by its text. Raises
    NoGrammarError.
    """
    return _Writer(reading, control_token_id).write(form)


def tools_of_lines(grammar: str) -> dict[int, int]:
    """Line of a grammar that a tool's schema is in → the tool's place; lines count from 1."""
    lines = enumerate(grammar.split("\n"), 1)
    return {line: int(rule[1]) for line, text in lines if (rule := _RULE_OF_TOOL.match(text))}


class _Writer:
    """Writes one grammar, rule by rule."""

    def __init__(
        self, reading: ParserConfig, control_token_id: Callable[[str], int | None]
    ) -> None:
        self._reading = reading
        ids = {mark: control_token_id(mark) for mark in reading.marks}
        self._ids = {mark: token_id for mark, token_id in ids.items() if token_id is not None}
        self._rules = list(_COMMON_RULES)

    def write(self, form: StructuredOutputs | None) -> str:
        """The whole text; the rule `start` comes first."""
        must_call = self._reading.must_call
        thought, tools = self._thought(self._reading.reasoning), self._reading.tool_format
        if form is not None and not must_call:
            self._rules.append(f"form: {_form(form)}")
        if tools is None:
            answer = "form"
        elif must_call:
            answer = self._calls(tools)
        else:
            answer = f"({self._calls(tools)} | form)" if form else self._text_and_calls(tools)
        return "\n".join([f"start: {thought} {answer}", *self._rules, ""])

    def _thought(self, reasoning: ReasoningParser | None) -> str:
        if reasoning is None:
            return ""
        end = self._text_up_to(reasoning.end, "thought_end")
        if self._reading.in_reasoning:
            return f"{end} SPACE"
        self._rules.append(f"thought: {self._literal(reasoning.begin)} {end} SPACE")
        return "thought?"

    def _calls(self, tools: ToolParser) -> str:
        frame = tools.frame
        call = self._one_of_the_tools(frame, frame.before)
        at_most_one = frame.between is None or self._reading.most_calls == 1
        several = "" if at_most_one else f"({self._literal(frame.between or '')} {call})*"
        return f"{self._literal(frame.begin)} {call} {several} {self._literal(frame.end)}"

    def _text_and_calls(self, tools: ToolParser) -> str:
        """Text in which calls may begin wherever their mark stands."""
        frame, mark = tools.frame, tools.begin.texts[0]
        if tools.bare:
            return f"({self._calls(tools)} | NO_CALL)"
        lead = self._text_up_to(mark, "lead")
        if frame.begin:
            begin, before = frame.begin.removeprefix(mark), frame.before
        else:
            begin, before = "", frame.before.removeprefix(mark)
        call = self._one_of_the_tools(frame, before)
        more = f"({self._literal(frame.between or '')} {call})*" if frame.begin else ""
        return f"({lead} {self._literal(begin)} {call} {more} {self._literal(frame.end)})* TEXT"

    def _one_of_the_tools(self, frame: CallTemplate, before: str) -> str:
        """Add a rule for each tool; returns the name of the rule for any of them."""
        names = []
        for place, (name, schema) in enumerate((self._reading.tools or {}).items()):
            arguments = self._tags(frame.tags, schema, place) if frame.tags else _json(schema)
            self._rules.append(f"arguments_{place}: {arguments}")
            begin, end = before.replace(NAME_FIELD, name), frame.after
            parts = [self._literal(begin), f"arguments_{place}", self._literal(end)]
            self._rules.append(f"call_{place}: {' '.join(parts)}")
            names.append(f"call_{place}")
        self._rules.append(f"call: {' | '.join(names)}")
        return "call"

    def _tags(self, frame: TagTemplate, schema: Mapping[str, Any], place: int) -> str:
        """Arguments as tags around bare values; of those that are not required any may be left."""
        required, properties = schema.get("required", []), schema.get("properties", {})
        if not (isinstance(properties, Mapping) and isinstance(required, list)):
            raise NoGrammarError("properties has to be an object and required a list; mend them")
        tags = []
        for number, (key, inner) in enumerate(properties.items()):
            if not is_readable_key(key):
                raise NoGrammarError(f"{key[:64]!r} cannot be written by this model; rename it")
            rule = f"value_{place}_{number}"
            self._rules.append(f"{rule}: {self._value(rule, frame, inner, schema)}")
            before = self._literal(frame.before.replace(KEY_FIELD, key))
            tag = f"{before} {rule} {self._literal(frame.after)}"
            tags.append(tag if key in required else f"({tag})?")
        return " ".join(tags) or '""'

    def _value(self, rule: str, frame: TagTemplate, schema: Any, root: Mapping[str, Any]) -> str:
        """A value and its end."""
        types = types_of(schema)
        if types is None or "string" in types:
            return self._text_up_to(frame.end, f"{rule}_end")
        shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
        return f"{_json({**shared, **schema})} {self._literal(frame.space + frame.end)}"

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


def _form(wish: StructuredOutputs) -> str:
    match wish.kind:
        case "json":
            try:
                schema = json.loads(wish.text)
            except (ValueError, RecursionError):
                schema = None
            if not isinstance(schema, dict):
                raise NoGrammarError("not a JSON schema; give an object")
            return _json(schema, json_style(wish))
        case "json_object":
            return _json({"type": "object"}, json_style(wish))
        case "choice":
            return " | ".join(map(_quoted, wish.choice or ()))
        case "regex":
            return f"/{_SLASH.sub(lambda found: found[1] or _ESCAPES[found[0]], wish.text)}/"
    if "::=" in wish.text:
        raise NoGrammarError("a grammar beside thoughts or tools has to be Lark; rewrite it")
    return f"%lark {{\n{wish.text}\n}}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _json(schema: Mapping[str, Any], style: Mapping[str, Any] = _CALL_STYLE) -> str:
    """A JSON value of a schema."""
    return f"%json {json.dumps({**schema, 'x-guidance': style}, ensure_ascii=False)}"
