"""Settings: fields of frozen dataclasses with help text and range.

The command line and `LLM(...)` are both generated from such fields. The settings themselves are in
config.py (engine) and server/settings.py.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Iterable
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from quire.errors import ConfigError
from quire.plain_values import plain_number

MOST = 2**31 - 1  # of whatever is counted: kernels count in 32 bits
MOST_BYTES = 2**63 - 1
COUNT = (1, MOST)
UNITS = " such as 4096, 4K or 4k"  # in errors about texts of integers
_MOST_PLAIN = 65535  # numbers up to which no unit is of use, as ports
_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_KINDS = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}

# as messages name settings: with an underscore, or at their beginning, or with a value
SETTING = re.compile(
    r"(?<!\w)'[^' ]*[;,][^' ]*'"  # a value of several, which stays
    r"|(?<![\w'\"$./-])"
    r"(?:[a-z]+(?:_[a-z]+)+"
    r"|(?:(?<=\A)[a-z]+(?=: | is | must | does nothing | '[^']*' (?:is not|cannot) ))"
    r"|[a-z]+(?=='))(?![\w/.-])"
    r"(?:='(?P<value>[\w.-]+)')?"
)

Range = tuple[float, float]

_NEW_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_MISSPELT = 0.75  # names that are less alike mean different things, as ctx_size and block_size do


def setting(
    default: Any, help_text: str, *, within: Range | None = None, is_list: bool = False
) -> Any:
    """A field of a class of settings; the arguments are those of Option."""
    metadata = {"help": help_text, "within": within, "is_list": is_list}
    return dataclasses.field(default=default, metadata=metadata)


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that a misspelt one most probably means; None if there is none.

    Names are compared without the dashes of options, which would make all of them more alike.
    """
    bare = {snake_case(each): each for each in known}
    near = difflib.get_close_matches(snake_case(name[:64]), bare, 1, _MISSPELT)
    return bare[near[0]] if near else None


def snake_case(name: str) -> str:
    """A name as Python spells it: top_k for topK, --top-k and TOP_K."""
    return _NEW_WORD.sub("_", name.strip("-")).replace("-", "_").lower()


def flag_of(name: str) -> str:
    """The option of a setting on a command line: --max-tokens for max_tokens."""
    return "--" + name.replace("_", "-")


def require(condition: bool, message: str) -> None:
    """Raises ConfigError with this message unless the condition holds."""
    if not condition:
        raise ConfigError(message)


def check_ranges(settings: Any) -> None:
    """Raises ConfigError for a number that is out of its setting's range, or text not in UTF-8."""
    for field in dataclasses.fields(settings):
        check_range(field.name, field.metadata["within"], getattr(settings, field.name))


def check_range(name: str, within: Range | None, value: Any) -> None:
    """Raises ConfigError for a number that is out of the range of the setting `name`.

    And for a text that is not UTF-8, which other processes and libraries cannot be told.
    """
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"{name} is {value!r:.64}, which is not UTF-8; rename it") from None
    if within is not None and value is not None:
        least, most = within
        message = f"{name} must be between {least} and {most}, not {value!r:.64}"
        require(least <= value <= most, message)  # also refuses NaN


def read_integer(text: str, example: str = UNITS) -> int:
    """`32K` is 32 * 1024, `32k` is 32,000; likewise M, m, G, g. example: what an error shows.

    Raises ValueError with what the text must be.
    """
    match = re.fullmatch(r"(-?\d+(?:\.\d{1,9})?)([kKmMgG]?)", text.replace("_", ""), re.ASCII)
    if match is None:
        raise ValueError(f"must be an integer{example}, not {text[:64]!r}")
    number, unit = match.groups()
    is_exact = "." not in number and len(number) <= 20  # Python reads no integer of any length
    value = (int(number) if is_exact else float(number)) * _FACTORS[unit]
    if not -(2**63) <= value < 2**63:  # messages between processes have no more
        raise ValueError(f"must fit in 64 bits, not {text[:64]!r}")
    if value != int(value):
        raise ValueError(f"must be an integer, not {text[:64]!r}")
    return int(value)


def same_choice(value: Any, choices: Iterable[str]) -> Any:
    """The choice that a text names in upper or lower case; any other value as it is."""
    lower = value.lower() if isinstance(value, str) else None
    return next((choice for choice in choices if choice.lower() == lower), value)


def json_object(name: str, text: str, example: str) -> dict[str, Any]:
    """The object that the setting `name` has as JSON text. Raises ConfigError."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        text = f"{name} must be a JSON object, such as {example}, not {text[:64]!r}"
        raise ConfigError(text) from None


class Option(msgspec.Struct, frozen=True):
    """One setting as the command line sees it. within: the least and the most it may be."""

    name: str
    kind: type  # bool, int, float or str
    default: Any
    choices: tuple[str, ...] | None
    help: str
    within: Range | None = None
    is_list: bool = False  # text with commas between, or a list; may be given several times

    @property
    def units(self) -> str:
        """`UNITS`, for an integer that may be large."""
        return UNITS if self.within is None or self.within[1] > _MOST_PLAIN else ""

    def checked(self, value: Any) -> Any:
        """The value, a path as text. Raises ConfigError for a wrong type or an unknown choice.

        An integer may be a text as on the command line, with a unit; a choice has any case.
        """
        if value is None and self.default is None:
            return None
        if self.kind is str and isinstance(value, os.PathLike):
            value = os.fspath(value)
        if self.is_list and isinstance(value, list | tuple):
            value = ",".join(map(str, value))
        value = same_choice(plain_number(value), self.choices or ())
        if self.kind is int and isinstance(value, str):
            try:
                return read_integer(value, self.units)
            except ValueError as error:
                raise ConfigError(f"{self.name} {error}") from None
        if self.choices is not None and value not in self.choices:
            known = ", ".join(self.choices)
            raise ConfigError(f"{self.name} must be one of {known}, not {value!r:.64}")
        accepted: tuple[type, ...] = (int, float) if self.kind is float else (self.kind,)
        if not isinstance(value, accepted) or (self.kind is not bool and isinstance(value, bool)):
            or_list = ", or a list of such" if self.is_list else ""
            raise ConfigError(
                f"{self.name} must be {_KINDS[self.kind]}{or_list}, not {value!r:.64}"
            )
        return value


def options_of(cls: Any) -> list[Option]:
    """The fields of one settings class, in order of declaration."""
    hints = get_type_hints(cls)
    found = []
    for field in dataclasses.fields(cls):
        kind, choices = _plain_type(hints[field.name])
        found.append(Option(field.name, kind, field.default, choices, **field.metadata))
    return found


def _plain_type(hint: Any) -> tuple[type, tuple[str, ...] | None]:
    """`int | None` → int; `Literal["a", "b"]` → str with choices."""
    if get_origin(hint) is Literal:
        return str, get_args(hint)
    inner = [t for t in get_args(hint) if t is not type(None)]
    return (inner[0], None) if inner else (hint, None)
