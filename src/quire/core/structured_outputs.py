"""Structured outputs: the schema, expression or grammar that an answer must match. No torch.

Owns the request parameter and the checks that need no compiler. quire.grammar compiles it and
checks the rest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

from quire.errors import InvalidRequestError, invalid_value
from quire.plain_values import plain_value

MAX_GRAMMAR_BYTES = 64 << 10  # of a JSON schema or a grammar, as UTF-8
MAX_REGEX_BYTES = 4 << 10
MAX_CHOICES = 1000
MAX_CHOICES_BYTES = 64 << 10  # of all choices together

# A regular expression of white space alone, as JSON knows it: characters or classes of them, each
# with a number of repetitions.
WHITESPACE_PATTERN = (
    r"\A(?:(?:[ \n\r\t]|\\[nrt]|\[(?:[ \n\r\t]|\\[nrt])+\])(?:[?*+]|\{(?:[01],)?[1-9]\d?\})?)+\Z"
)
MAX_WHITESPACE_CHARS = 64

# why a grammar allows no token any more
TOO_SLOW = "it takes too long to find the tokens that may come next"
TOO_MUCH_FOR_CALLER = "finding the tokens that may come next has taken too long in your requests"

KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_MAX_BYTES = {
    **dict.fromkeys(("json", "grammar", "structural_tag"), MAX_GRAMMAR_BYTES),
    "regex": MAX_REGEX_BYTES,
}
_OF_COMPILERS = ("disable_fallback", "backend")  # of vLLM
_OBJECTS = ("json", "structural_tag")  # kinds that are given as an object or as its text


_AT_LINE = re.compile(r"at (\d{1,9})\(\d+\): ")  # line and column
_IN_A_GRAMMAR = "failed to compile JSON schema: "  # before what is wrong with a schema


class _Names(msgspec.StructMeta):
    """Lets the constructor take vLLM's further fields where they ask for nothing."""

    def __call__(cls, *values: Any, **params: Any) -> Any:  # noqa: N805 - a class of classes
        """Raises TypeError for an unknown name, and says which one has its meaning."""
        unknown = _asked(params).keys() - set(cls.__struct_fields__)
        if unknown:
            from quire.compat.name_homes import CONSTRAINTS  # usually not needed

            name = min(unknown)
            hint = f"use {CONSTRAINTS[name]}" if name in CONSTRAINTS else f"known: {_LISTED}"
            raise TypeError(f"{cls.__name__} has no parameter {name!r}; {hint}")
        own = {name: params[name] for name in params if name in cls.__struct_fields__}
        return super().__call__(*values, **own)


class StructuredOutputs(
    msgspec.Struct, metaclass=_Names, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """The constraint that every answer must match: exactly one of KINDS.

    json: a JSON schema, given as an object, as text or as a class of pydantic's, and stored as
    text. regex: a regular expression in Rust's syntax for the entire answer. choice: texts, of
    which the answer is one, or an Enum of them. grammar: a context-free grammar in llguidance's
    variant of Lark, or in GBNF. json_object: true for any JSON object. structural_tag: text in
    which tags with constrained contents stand, as an object of vLLM's two forms or as its text, and
    stored as text. field: the caller's name of it, for error messages; fields_of_lines: likewise,
    by line, for a grammar that is made of several fields (None: the caller's own). thought_mark:
    the plain text that begins a thought; where the answer begins with it, the grammar's rule
    `thought` comes first.

    JSON is on one line, with at most one space after each comma and colon, unless
    disable_any_whitespace leaves out that space, too, or whitespace_pattern, a regular expression
    of white space, says what may stand between any two parts.

    Raises InvalidRequestError, which names the field and the fix.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    disable_any_whitespace: bool | None = None
    whitespace_pattern: str | None = None
    field: str | None = None
    fields_of_lines: dict[int, str] | None = None
    thought_mark: str | None = None

    def __post_init__(self) -> None:
        given = [name for name in KINDS if getattr(self, name) is not None]
        for name in ("json", "choice"):
            if name in given:
                msgspec.structs.force_setattr(self, name, _from_class(getattr(self, name)))
        if type(self.choice) is not list:
            msgspec.structs.force_setattr(self, "choice", plain_value(self.choice))
        if len(given) != 1:
            raise self.invalid(f"must have one of {_LISTED}, not {' and '.join(given) or 'none'}")
        match self.kind:
            case "choice":
                self._check_choice()
            case "json_object":
                if self.json_object is not True:
                    raise self.invalid("must be true, or left out")
            case _:
                self._check_text()
        self._check_style()

    @property
    def kind(self) -> str:
        """The name of the field that is set: one of KINDS."""
        return next(name for name in KINDS if getattr(self, name) is not None)

    @property
    def may_have_reasoning(self) -> bool:
        """Whether reasoning may be a part of the answer: JSON and choices have no place for it."""
        return self.kind not in ("json", "json_object", "choice")

    @property
    def text(self) -> str:
        """The schema, expression, grammar or list as text."""
        value = getattr(self, self.kind)
        return value if isinstance(value, str) else msgspec.json.encode(value).decode()

    @property
    def key(self) -> tuple[str, str, str | None]:
        """A cache key made of the kind, the text and its option, of JSON or of a grammar."""
        option = "" if self.disable_any_whitespace else self.whitespace_pattern
        return self.kind, self.text, self.thought_mark or option

    @property
    def name(self) -> str:
        """The field's name in error messages."""
        if self.field is not None:
            return self.field
        given = [name for name in KINDS if getattr(self, name) is not None]
        return f"structured_outputs.{given[0]}" if len(given) == 1 else "structured_outputs"

    def invalid(self, problem: str) -> InvalidRequestError:
        """An InvalidRequestError for this field. problem: what is wrong, and the fix."""
        return invalid_value(self.name, problem)

    def invalid_at_line(self, problem: str) -> InvalidRequestError:
        """An InvalidRequestError with the compiler's message, which may name a line.

        Lines of a grammar that the caller has not written become the names of its fields.
        """
        at = _AT_LINE.match(problem)
        if at is None or self.fields_of_lines is None:
            return self.invalid(problem)
        field = self.fields_of_lines.get(int(at[1]), self.name)
        return invalid_value(field, problem[at.end() :].removeprefix(_IN_A_GRAMMAR))

    def _check_text(self) -> None:
        text, limit = getattr(self, self.kind), _MAX_BYTES[self.kind]
        if isinstance(text, dict) and self.kind in _OBJECTS:
            text = self._as_text(text)
            msgspec.structs.force_setattr(self, self.kind, text)
        if not isinstance(text, str):
            kinds = "a string or an object" if self.kind in _OBJECTS else "a string"
            raise self.invalid(f"must be {kinds}, not {type(text).__name__}")
        self._check_size([text], limit)

    def _as_text(self, schema: dict[str, Any]) -> str:
        try:
            return msgspec.json.encode(schema).decode()
        except (TypeError, ValueError, RecursionError):
            raise self.invalid("must be plain JSON values: it cannot be encoded as JSON") from None

    def _check_style(self) -> None:
        for name in ("disable_any_whitespace", "whitespace_pattern"):
            if getattr(self, name) and self.kind not in ("json", "json_object"):
                raise self._invalid_option(name, "applies to JSON only; leave it out")
        if self.disable_any_whitespace not in (None, False, True):
            raise self._invalid_option("disable_any_whitespace", "must be true or false")
        pattern = self.whitespace_pattern
        if pattern is None:
            return
        if self.disable_any_whitespace:
            problem = "excludes disable_any_whitespace; set one of them"
            raise self._invalid_option("whitespace_pattern", problem)
        if not (
            isinstance(pattern, str)
            and len(pattern) <= MAX_WHITESPACE_CHARS
            and re.match(WHITESPACE_PATTERN, pattern)
        ):
            problem = r"must be an expression of white space only, such as [ \n]{0,20}"
            raise self._invalid_option("whitespace_pattern", problem)

    def _invalid_option(self, name: str, problem: str) -> InvalidRequestError:
        """An InvalidRequestError for an option beside the field."""
        return invalid_value(self.name.removesuffix(self.kind) + name, problem)

    def _check_choice(self) -> None:
        choice = self.choice
        if not isinstance(choice, list) or not all(isinstance(text, str) for text in choice):
            raise self.invalid("must be a list of strings")
        if not 1 <= len(choice) <= MAX_CHOICES:
            raise self.invalid(f"must have 1 to {MAX_CHOICES} choices, not {len(choice)}")
        if not all(choice):
            raise self.invalid("must not have an empty string; remove it")
        self._check_size(choice, MAX_CHOICES_BYTES)

    def _check_size(self, texts: list[str], limit: int) -> None:
        try:
            size = sum(len(text.encode()) for text in texts)
        except UnicodeEncodeError:
            raise self.invalid("must be Unicode text: it has half of a surrogate pair") from None
        if not 1 <= size <= limit:
            raise self.invalid(f"must have 1 to {limit} bytes, not {size}")


def _from_class(value: Any) -> Any:
    """The schema of a pydantic model's class, the values of an Enum; anything else as it is."""
    if not isinstance(value, type):
        return value
    if issubclass(value, Enum):
        return [member.value for member in value]
    make_schema = getattr(value, "model_json_schema", None)
    return value if make_schema is None else make_schema()


_LISTED = f"{', '.join(KINDS[:-1])} or {KINDS[-1]}"


def structured_outputs_from(value: Any) -> StructuredOutputs:
    """StructuredOutputs of a map of its fields, or of another engine's object with them.

    Fields that ask for nothing may be there besides. Raises InvalidRequestError.
    """
    if isinstance(value, StructuredOutputs):
        return value
    if isinstance(value, dict):
        given = {name: item for name, item in value.items() if item is not None}
    else:
        given = {n: item for n in _NAMES if (item := getattr(value, n, None)) is not None}
    asked = _asked(given)
    if unknown := sorted(map(str, asked.keys() - set(_NAMES))):
        where = f"structured_outputs.{unknown[0]}"
        raise invalid_value("structured_outputs", "not supported; leave it out", where=where)
    if not given and not isinstance(value, dict):
        raise invalid_value("structured_outputs", "must be StructuredOutputs(...), a map or None")
    return StructuredOutputs(**asked)


def _asked(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that ask for something. _OF_COMPILERS are about other compilers of grammars."""
    empty = (None, False, "")
    return {
        name: item
        for name, item in given.items()
        if name in KINDS or (item not in empty and name not in _OF_COMPILERS)
    }


_NAMES = (*KINDS, "disable_any_whitespace", "whitespace_pattern")
