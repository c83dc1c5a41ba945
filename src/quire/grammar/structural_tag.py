"""Structural tags as Lark: text in which tags stand whose contents are constrained.

Both of what vLLM takes is read: `structures` with `triggers`, and the newer `format`, a tree of the
types in `_Writer`. Owns their checks; regular expressions and schemas in them are checked with the
complete grammar.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from quire.grammar.json_style import USUAL_STYLE
from quire.grammar.lark_text import ANY_TEXT, json_rule, quoted, regex_rule
from quire.grammar.schema_bounds import OverBoundsError

MAX_DEPTH = 16  # formats in one another
MAX_CHARS = 1 << 20  # of all expressions: an end is written behind each of the formats before it
_KINDS = {str: "a string", dict: "an object", list: "a list", bool: "true or false"}

Ends = str | None  # what follows a format at once, as Lark: "": the answer's end; None: more of it
Object = dict[str, Any]


def structural_tag_lark(text: str) -> str:
    """The Lark grammar of a structural tag, which is given as JSON.

    Raises OverBoundsError, which names what is wrong in it.
    """
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OverBoundsError(f"must be a structural tag as JSON ({error})") from None
    return _Writer().write(given)


class _Writer:
    """Writes one grammar. Each format becomes an expression, with what has to follow it."""

    def __init__(self) -> None:
        self._rules = [ANY_TEXT]
        self._num_chars = 0
        self._writers: dict[str, Callable[[Object, str, Ends], str]] = {
            "const_string": self._const_string,
            "json_schema": self._json_schema,
            "regex": self._regex,
            "any_text": self._any_text,
            "sequence": self._sequence,
            "or": self._either,
            "tag": self._tag,
            "triggered_tags": self._triggered_tags,
            "tags_with_separator": self._tags_with_separator,
        }

    def write(self, given: Any) -> str:
        """The complete grammar. given: a structural tag."""
        if isinstance(given, dict):
            given = {name: value for name, value in given.items() if value is not None}
        if isinstance(given, dict) and "format" not in given:
            start = self._older_fields(given)
        else:
            (inner,) = _members(given, "", {"format": dict})
            start = self._expression(inner, "format", "")
        return "\n".join([f"start: {start}", *self._rules, ""])

    def _older_fields(self, given: Any) -> str:
        """Text in which a JSON value stands between each tag's begin and its end."""
        structures, triggers = _members(given, "", {"structures": list, "triggers": list})
        tags = []
        for index, structure in enumerate(structures):
            where = f"structures[{index}]"
            begin, end, schema = _members(
                structure, where, {"begin": str, "end": str}, {"schema": dict}
            )
            content = {"type": "json_schema", "json_schema": schema or {}}
            tags.append({"begin": begin, "content": content, "end": end})
        return self._triggered_tags({"triggers": triggers, "tags": tags}, "", "")

    def _expression(self, given: Any, where: str, ends: Ends) -> str:
        """A format, and what follows it. where: its name in messages."""
        if where.count(".") + where.count("[") > MAX_DEPTH:
            raise OverBoundsError(f"formats are nested more than {MAX_DEPTH} deep; flatten it")
        kind = given.get("type") if isinstance(given, dict) else None
        if not isinstance(kind, str) or kind not in self._writers:
            known = ", ".join(self._writers)
            problem = f"must be one of {known}, not {str(kind)[:40]!r}"
            raise OverBoundsError(f"{where}.type: {problem}; write it with one of these")
        return self._counted(self._writers[kind](given, where, ends))

    def _counted(self, expression: str) -> str:
        """An expression. Raises OverBoundsError if all are too long together."""
        self._num_chars += len(expression)
        if self._num_chars > MAX_CHARS:
            raise OverBoundsError("its grammar is too long; use fewer formats, or fewer ends")
        return expression

    def _const_string(self, given: Object, where: str, ends: Ends) -> str:
        (value,) = _members(given, where, {"value": str})
        return f"{quoted(value)} {ends or ''}"

    def _json_schema(self, given: Object, where: str, ends: Ends) -> str:
        (schema,) = _members(given, where, {"json_schema": dict})
        return f"{self._rule(json_rule(schema, USUAL_STYLE))} {ends or ''}"

    def _regex(self, given: Object, where: str, ends: Ends) -> str:
        (pattern,) = _members(given, where, {"pattern": str})
        return f"{self._rule(regex_rule(pattern))} {ends or ''}"

    def _any_text(self, given: Object, where: str, ends: Ends) -> str:
        _members(given, where, {})
        return self._text_up_to(ends, where)

    def _sequence(self, given: Object, where: str, ends: Ends) -> str:
        elements = _listed(given, where, "elements")
        *others, last = enumerate(elements)
        parts = [self._expression(part, f"{where}.elements[{i}]", None) for i, part in others]
        return " ".join([*parts, self._expression(last[1], f"{where}.elements[{last[0]}]", ends)])

    def _either(self, given: Object, where: str, ends: Ends) -> str:
        parts = enumerate(_listed(given, where, "elements"))
        return _group(self._expression(part, f"{where}.elements[{i}]", ends) for i, part in parts)

    def _tag(self, given: Object, where: str, ends: Ends) -> str:
        begin, rest = self._begin_and_rest(given, where, ends)
        return f"{quoted(begin)} {rest}"

    def _begin_and_rest(self, given: Any, where: str, ends: Ends) -> tuple[str, str]:
        """A tag's begin, and the expression of its content, its end and what follows."""
        asked = {"begin": str, "content": dict, "end": (str, list)}
        begin, content, end = _members(given, where, asked)
        several = [end] if isinstance(end, str) else _listed(given, where, "end", str)
        if not all(several):
            return begin, self._expression(content, f"{where}.content", ends)
        own = _group(map(quoted, several))
        rest = f"{self._expression(content, f'{where}.content', own)} {ends or ''}"
        return begin, self._counted(rest)

    def _triggered_tags(self, given: Object, where: str, ends: Ends) -> str:
        """Text in which a trigger starts one of its tags."""
        flags = {"at_least_one": bool, "stop_after_first": bool}
        asked = {"triggers": list, "tags": list}
        *_, at_least_one, is_last = _members(given, where, asked, flags)
        after = ends if is_last else None
        tags = [
            self._begin_and_rest(tag, f"{where}.tags[{index}]", after)
            for index, tag in enumerate(_listed(given, where, "tags"))
        ]
        direct = _group(f"{quoted(begin)} {rest}" for begin, rest in tags)
        if at_least_one and is_last:
            return direct
        inside = self._inside_text(_listed(given, where, "triggers", str), tags, where)
        if is_last:
            return f"({inside} | {self._text_up_to(ends, where)})"
        first = direct if at_least_one else ""
        return f"{first} {inside}* {self._text_up_to(ends, where)}"

    def _inside_text(self, triggers: list[str], tags: list[tuple[str, str]], where: str) -> str:
        """Text up to a trigger, and a tag that begins with it."""
        options: dict[str, list[str]] = {}
        for index, (begin, rest) in enumerate(tags):
            found = [trigger for trigger in triggers if trigger and begin.startswith(trigger)]
            if len(found) != 1:
                name = f"{where}.tags[{index}].begin".removeprefix(".")
                raise OverBoundsError(f"{name}: must begin with exactly one of the triggers")
            after = begin.removeprefix(found[0])
            options.setdefault(found[0], []).append(f"{quoted(after)} {rest}" if after else rest)
        return _group(
            f"{self._text_up_to(quoted(trigger), where)} {_group(each)}"
            for trigger, each in options.items()
        )

    def _tags_with_separator(self, given: Object, where: str, ends: Ends) -> str:
        flags = {"at_least_one": bool, "stop_after_first": bool}
        asked = {"tags": list, "separator": str}
        _, separator, at_least_one, is_last = _members(given, where, asked, flags)
        tags = [
            self._tag(tag, f"{where}.tags[{index}]", None)
            for index, tag in enumerate(_listed(given, where, "tags"))
        ]
        more = "" if is_last else f"({quoted(separator) if separator else ''} {_group(tags)})*"
        several = f"{_group(tags)} {more}"
        return f"{several if at_least_one else f'({several})?'} {ends or ''}"

    def _text_up_to(self, ends: Ends, where: str) -> str:
        """Any text, and the first end in it."""
        if ends is None:
            problem = "text must have an end: put it last, or into a tag with an end"
            raise OverBoundsError(f"{where}: {problem}")
        return self._rule(f"TEXT {ends}", "[lazy]") if ends else "TEXT"

    def _rule(self, body: str, kind: str = "") -> str:
        """Add a rule; returns its name."""
        name = f"part_{len(self._rules)}"
        self._rules.append(f"{name}{kind}: {self._counted(body)}")
        return name


def _group(parts: Any) -> str:
    return f"({' | '.join(parts)})"


def _listed(given: Object, where: str, name: str, kind: type = dict) -> list[Any]:
    """A member that is a list with at least one value, all of a kind."""
    values = given.get(name)
    if isinstance(values, list) and values and all(isinstance(value, kind) for value in values):
        return values
    problem = f"must be a list with at least one value, each {_KINDS[kind]}"
    raise OverBoundsError(f"{where}.{name}: {problem}".removeprefix("."))


def _members(
    given: Any, where: str, needed: dict[str, Any], others: dict[str, Any] | None = None
) -> list[Any]:
    """The values of an object's members, first those needed; None for what is not there."""
    kinds = needed | (others or {})
    if not isinstance(given, dict):
        raise OverBoundsError(f"{where}: must be an object".removeprefix(": "))
    before = f"{where}." if where else ""
    for name in given:
        if name not in kinds and name != "type":
            raise OverBoundsError(f"{before}{name[:40]}: not supported; leave it out")
    for name, kind in kinds.items():
        value = given.get(name)
        if not isinstance(value, kind) and (name in needed or value is not None):
            words = " or ".join(_KINDS[k] for k in (kind if isinstance(kind, tuple) else (kind,)))
            raise OverBoundsError(f"{before}{name}: must be {words}")
    return [given.get(name) for name in kinds]
