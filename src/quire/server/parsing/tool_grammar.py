"""Grammars that enforce tool calls, or structured output after reasoning.

The text is Lark as llguidance takes it. What the grammar of a tool parser allows, the tool parser
parses as calls. Compiling is done in quire/grammar.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from quire.core.sampling_params import StructuredOutputs
from quire.core.structured_outputs import MAX_GRAMMAR_BYTES
from quire.grammar.gbnf import embedded
from quire.grammar.json_style import json_style
from quire.grammar.lark_text import ANY_TEXT, THOUGHT, json_rule, quoted, regex_rule
from quire.grammar.schema_bounds import OverBoundsError
from quire.grammar.structural_tag import structural_tag_lark
from quire.server.parsing.output_parser import ParserConfig
from quire.server.parsing.reasoning_parser import ReasoningParser
from quire.server.parsing.tag_arguments import is_readable_key, options_of, texts_of, types_of
from quire.server.parsing.tool_parser import (
    KEY_FIELD,
    NAME_FIELD,
    CallTemplate,
    TagTemplate,
    ToolParser,
)

# of a tool's schema, and not enforced where each argument has a tag of its own
_OF_ALL_ARGUMENTS = (
    "$ref", "allOf", "anyOf", "const", "dependentRequired", "dependentSchemas",
    "enum", "if", "maxProperties", "minProperties", "not", "oneOf",
)  # fmt: skip
_RULE_OF_TOOL = re.compile(r"(?:arguments|value)_(\d+)")
_COMMON_RULES = [ANY_TEXT, r"SPACE: /[ \n]{0,4}/", r"NO_CALL: /([^{ \t\r\n](?s:.*))?/"]
# as models write calls
_CALL_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class NoGrammarError(ValueError):
    """Raised where there is no such grammar; says how to correct the request."""


def answer_grammar(
    config: ParserConfig,
    *,
    text_format: StructuredOutputs | None,
    control_token_id: Callable[[str], int | None],
) -> str:
    """The grammar of an answer whose calls have arguments that match the tools' schemas.

    Without config.must_call there may be text instead of calls. text_format: the structured output
    of the text; then the answer is either text or calls. control_token_id: the id of a control
    token by its text. A thought that may come first is a part of the grammar only where a control
    token begins it, see `thought_mark`. Raises NoGrammarError.
    """
    return _Writer(config, control_token_id).write(text_format)


def thought_mark(config: ParserConfig, control_token_id: Callable[[str], int | None]) -> str | None:
    """The plain text that begins a thought before the answer (`StructuredOutputs.thought_mark`)."""
    if config.reasoning is None or config.in_reasoning or config.is_past_reasoning:
        return None
    mark = config.reasoning.begin
    return mark if control_token_id(mark) is None else None


def tools_of_lines(grammar: str) -> dict[int, int]:
    """Map from the grammar's lines with a tool's schema to the tool's index; lines count from 1."""
    lines = enumerate(grammar.split("\n"), 1)
    return {line: int(rule[1]) for line, text in lines if (rule := _RULE_OF_TOOL.match(text))}


class _Writer:
    """Writes one Lark grammar, rule by rule."""

    def __init__(self, config: ParserConfig, control_token_id: Callable[[str], int | None]) -> None:
        self._config = config
        ids = {mark: control_token_id(mark) for mark in config.marks}
        self._ids = {mark: token_id for mark, token_id in ids.items() if token_id is not None}
        self._rules = list(_COMMON_RULES)
        self._num_chars = 0

    def write(self, text_format: StructuredOutputs | None) -> str:
        """The complete grammar; the rule `start` comes first."""
        must_call = self._config.must_call
        reasoning, tools = self._reasoning(self._config.reasoning), self._config.tool_parser
        if tools is None:
            answer = "form"
        elif must_call:
            answer = self._calls(tools)
        else:
            answer = (
                f"({self._calls(tools)} | form)" if text_format else self._text_and_calls(tools)
            )
        if text_format is not None and not must_call:
            self._add("form", _text_rule(text_format))
        start = f"{reasoning} {answer}".lstrip()
        return "\n".join([f"start: {start}", *self._rules, ""])

    def _reasoning(self, reasoning: ReasoningParser | None) -> str:
        if reasoning is None or self._config.is_past_reasoning:
            return ""
        end = self._text_up_to(reasoning.end, "thought_end")
        if self._config.in_reasoning:
            return f"{end} SPACE"
        self._add(THOUGHT, f"{self._literal(reasoning.begin)} {end} SPACE")
        return f"{THOUGHT}?" if reasoning.begin in self._ids else ""

    def _calls(self, tools: ToolParser) -> str:
        frame = tools.frame
        call = self._one_of_the_tools(frame, frame.before)
        at_most_one = frame.between is None or self._config.most_calls == 1
        several = "" if at_most_one else f"({self._literal(frame.between or '')} {call})*"
        return f"{self._literal(frame.begin)} {call} {several} {self._literal(frame.end)}"

    def _text_and_calls(self, tools: ToolParser) -> str:
        """Text in which calls may start wherever their mark stands."""
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
        for index, (name, schema) in enumerate((self._config.tools or {}).items()):
            in_json = json_rule({"type": "object", **schema}, _CALL_STYLE)
            arguments = self._tags(frame.tags, schema, index) if frame.tags else in_json
            self._add(f"arguments_{index}", arguments)
            begin, end = before.replace(NAME_FIELD, name), frame.after
            parts = [self._literal(begin), f"arguments_{index}", self._literal(end)]
            self._add(f"call_{index}", " ".join(parts))
            names.append(f"call_{index}")
        self._add("call", " | ".join(names))
        return "call"

    def _tags(self, frame: TagTemplate, schema: Mapping[str, Any], index: int) -> str:
        """Arguments as tags around bare values; optional ones may be missing."""
        properties, required = _arguments_of(schema)
        tags = []
        for number, (key, inner) in enumerate(properties.items()):
            if not is_readable_key(key):
                raise NoGrammarError(f"{key[:64]!r} cannot be written by this model; rename it")
            rule = f"value_{index}_{number}"
            self._add(rule, self._value(rule, frame, inner, schema))
            before = self._literal(frame.before.replace(KEY_FIELD, key))
            tag = f"{before} {rule} {self._literal(frame.after)}"
            tags.append(tag if key in required else f"({tag})?")
        return " ".join(tags) or '""'

    def _value(self, rule: str, frame: TagTemplate, schema: Any, root: Mapping[str, Any]) -> str:
        """The grammar of an argument's value and the mark that ends it."""
        listed = [(texts_of(option), option) for option in options_of(schema, root)]
        others = [option for texts, option in listed if not texts]
        texts = [text for each, _ in listed for text in each]
        if any(_may_be_text(o, root) for o in others) or any(frame.end in text for text in texts):
            return self._text_up_to(frame.end, f"{rule}_end")
        in_json = [_with_definitions(each, root) for each in (others if texts else [schema])]
        values = [json_rule(each, _CALL_STYLE) for each in in_json]
        end = self._literal(frame.space + frame.end)
        return f"({' | '.join([*map(quoted, texts), *values])}) {end}"

    def _add(self, rule: str, body: str) -> None:
        """Add a rule. Raises NoGrammarError as soon as the grammar is too long."""
        self._rules.append(f"{rule}: {body}")
        self._num_chars += len(body)
        if self._num_chars > MAX_GRAMMAR_BYTES:
            problem = f"their grammar has more than {MAX_GRAMMAR_BYTES} bytes; shorten the schemas"
            raise NoGrammarError(problem)

    def _text_up_to(self, mark: str, rule: str) -> str:
        """Add a rule for text that ends with the first `mark`; returns its name."""
        kind = "" if mark in self._ids else "[lazy]"
        self._add(f"{rule}{kind}", f"TEXT {self._literal(mark)}")
        return rule

    def _literal(self, text: str) -> str:
        """The grammar of exactly this text; control tokens are matched by id."""
        if not text:
            return ""
        marks = "|".join(map(re.escape, self._ids)) or "(?!)"
        parts = [part for part in re.split(f"({marks})", text) if part]
        return " ".join(f"<[{self._ids[p]}]>" if p in self._ids else quoted(p) for p in parts)


def _arguments_of(schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], set[str]]:
    """The properties of a tool's schema, and the names of the required ones.

    Raises NoGrammarError for a schema that says more than tags can hold to.
    """
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not (isinstance(properties, Mapping) and isinstance(required, list)):
        raise NoGrammarError("properties must be an object and required a list")
    if found := [name for name in _OF_ALL_ARGUMENTS if name in schema]:
        problem = f"{found[0]} beside properties cannot be enforced in this model's format"
        raise NoGrammarError(f"{problem}; leave it out")
    for key in required:
        if not isinstance(key, str) or key not in properties:
            problem = f"{str(key)[:64]!r} is required, but not among the properties; add it"
            raise NoGrammarError(problem)
    return properties, set(required)


def _may_be_text(option: Any, root: Mapping[str, Any]) -> bool:
    types = types_of(option, root)
    return types is None or "string" in types


def _with_definitions(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """A schema inside another one, with the definitions that it may refer to."""
    keys = ("$defs", "definitions") if "$ref" in str(schema) else ()
    return {**{key: root[key] for key in keys if key in root}, **schema}


def _text_rule(outputs: StructuredOutputs) -> str:
    """The grammar of an answer's structured output."""
    match outputs.kind:
        case "json":
            try:
                schema = json.loads(outputs.text)
            except (ValueError, RecursionError):
                schema = None
            if not isinstance(schema, dict):
                raise NoGrammarError("must be a JSON schema: an object")
            return json_rule(schema, json_style(outputs))
        case "json_object":
            return json_rule({"type": "object"}, json_style(outputs))
        case "choice":
            return " | ".join(map(quoted, outputs.choice or ()))
        case "regex":
            return regex_rule(outputs.text)
        case "structural_tag":
            try:
                return embedded(structural_tag_lark(outputs.text))
            except OverBoundsError as error:
                raise NoGrammarError(str(error)) from None
    return embedded(outputs.text)
