"""Filters and functions of chat templates, with bounds on the texts that they make."""

from __future__ import annotations

import datetime
import functools
import json
import re
import string
from collections.abc import Callable
from typing import Any

from jinja2 import TemplateError, pass_environment
from jinja2.filters import do_sum

from quire.tokenizer.template_work import MAX_INDENT, TemplateLimitError, take_width, text_of

MAX_CHARACTERS = 2**24  # of the text, and of any string that is joined on the way
MAX_COUNT = 100_000  # of repetitions, widths and indents
_WIDE = re.compile(r"\d{4}")
_WIDE_PERCENT = re.compile(r"[-+ #\d.]*(\*|\d{4})")  # behind a % and its key
_BRACKET = re.compile(r"[()]")


def length_of(value: Any) -> int:
    """Characters or items of a sequence; 0 for other values."""
    return len(value) if isinstance(value, (str, bytes, list, tuple)) else 0


def repeated_length(left: Any, right: Any) -> int:
    """Length of a sequence times an integer; 0 for other products."""
    count = right if isinstance(right, int) else left
    return (length_of(left) + length_of(right)) * count if isinstance(count, int) else 0


def check_size(size: int) -> None:
    """Raises TemplateLimitError for a text of more characters than templates may make."""
    if size > MAX_CHARACTERS:
        raise TemplateLimitError(f"more than {MAX_CHARACTERS} characters")


def take_size(size: int) -> None:
    """Take the price of a text of so many characters. Raises TemplateLimitError."""
    check_size(size)
    take_width(size)


def check_count(value: Any) -> None:
    """Take the price of a width or repetition. Raises TemplateLimitError if it is too large."""
    if isinstance(value, int):
        if abs(value) > MAX_COUNT:
            raise TemplateLimitError(f"the count {value}, above {MAX_COUNT}")
        take_width(value)


def check_method(owner: Any, name: str, args: tuple[Any, ...]) -> None:
    """Take the price of what a string's method makes of it. Raises TemplateLimitError."""
    if not isinstance(owner, str):
        return
    if name == "replace" and len(args) > 1 and isinstance(args[0], str):
        take_size(owner.count(args[0]) * length_of(args[1]))
    elif name == "expandtabs":
        take_size(owner.count("\t") * (args[0] if args else 8))
    elif name == "join" and args:
        take_size(length_of(args[0]) * len(owner))


def replace_text(text: Any, old: str, new: str, count: int | None = None) -> str:
    """The filter `replace`."""
    given = text_of(text)
    check_method(given, "replace", (old, new))
    return given.replace(old, new, -1 if count is None else count)


@pass_environment
def sum_numbers(environment: Any, values: Any, attribute: Any = None, start: Any = 0) -> Any:
    """The filter `sum`, of numbers alone: sums of lists or texts take quadratic time."""
    if not isinstance(start, (int, float)):
        raise TemplateLimitError("a sum of other things than numbers")
    return do_sum(environment, values, attribute, start)


def with_small_indent(indent: Callable[..., Any]) -> Callable[..., Any]:
    """The filter `indent` with a limit on the length of its result."""

    def bounded(text: str, width: int | str = 4, *args: Any, **kwargs: Any) -> Any:
        size = len(width) if isinstance(width, str) else width
        take_size((str(text).count("\n") + 1) * size)
        return indent(text, width, *args, **kwargs)

    return bounded


def check_percents(template: str) -> None:
    """Raises TemplateLimitError for a printf format with a wide or variable width."""
    at = template.find("%") + 1
    while at:
        at = _behind_key(template, at)
        if _WIDE_PERCENT.match(template, at):
            raise TemplateLimitError("a format whose width is not small")
        at = template.find("%", at + 1) + 1


def _behind_key(template: str, at: int) -> int:
    """The end of the key that a format may have; brackets in it are in pairs."""
    depth = 0
    for found in _BRACKET.finditer(template, at) if template.startswith("(", at) else ():
        depth += 1 if found[0] == "(" else -1
        if depth == 0:
            return found.end()
    if depth:
        raise TemplateLimitError("a format whose key is not closed")
    return at


def check_braces(template: str) -> None:
    """Raises TemplateLimitError for a `str.format` format with a wide or variable width."""
    for _, _, spec, _ in string.Formatter().parse(template):
        if spec and ("{" in spec or _WIDE.search(spec)):
            raise TemplateLimitError("a format whose width is not small")


def with_small_counts(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that refuses large integers as arguments."""

    @functools.wraps(function)  # keeps Jinja's marks on the function
    def bounded(*args: Any, **kwargs: Any) -> Any:
        for argument in (*args, *kwargs.values()):
            check_count(argument)
        return function(*args, **kwargs)

    return bounded


def format_percents(template: str, *args: Any, **kwargs: Any) -> str:
    """The filter `format`."""
    check_percents(template)
    return template % (kwargs or args)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter `tojson` without Jinja's HTML escapes."""
    if indent is not None and (len(indent) if isinstance(indent, str) else indent) > MAX_INDENT:
        raise TemplateLimitError(f"the indent {indent!r}, above {MAX_INDENT}")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def raise_exception(message: str) -> None:
    """The function with which templates refuse a conversation."""
    raise TemplateError(message)


def strftime_now(pattern: str) -> str:
    """The current time in a format of `strftime`."""
    check_percents(pattern)
    return datetime.datetime.now().strftime(pattern)
