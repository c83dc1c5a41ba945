"""A checkpoint format that stores all weights alike, but for modules that rules name. No torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from re import _parser as parser  # type: ignore[attr-defined]  # as re.compile parses them
from typing import Any, TypeVar

from quire.config_file import ConfigFile
from quire.models.checkpoint_formats.checkpoint_format import CheckpointFormat, StoredLinear
from quire.models.checkpoints.checkpoint import PREFIX

MAX_PATTERN = 1000  # characters
# In a pattern: its time grows with that power of the length of a module's name.
MAX_REPEATS = 4
_REPEATS = (parser.MAX_REPEAT, parser.MIN_REPEAT, parser.POSSESSIVE_REPEAT)

_SPECIAL = frozenset("*+?[](){}|^$\\")  # what a plain name does not have
_BOUNDARY = r"(?:(?<=\.)|(?=\.|$))"  # of the words of a name
_FLAGS = re.compile(r"\(\?[aiLmsux]+\)")  # of a whole pattern, at its start

Linear = TypeVar("Linear", bound=StoredLinear)


class Names(frozenset[str]):
    """Whole names of modules, of which a config file may list ten thousands."""

    __slots__ = ()

    def match(self, module: str) -> bool:
        """Whether a module's name is among them."""
        return module in self


Rule = tuple[re.Pattern[str] | Names, StoredLinear | None]  # a pattern is of how names begin


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleRules(CheckpointFormat):
    """One layout for the linear layers of decoder layers, and exceptions.

    rules: the first whose pattern matches a module's name decides; None for not quantized. Where a
    model was saved without its head, as embedding models are, patterns are of names without
    `model.`. ignored: words or ends of names of modules that are not quantized; only: words of
    those that are, empty for all. has_head: whether the head is. table_rules: of embeddings.
    """

    name: str
    linear: StoredLinear | None
    rules: tuple[Rule, ...] = ()
    table_rules: tuple[Rule, ...] = ()
    ignored: frozenset[str] = frozenset()
    only: tuple[str, ...] = ()
    has_head: bool = False
    choice: str = ""
    otherwise: str = "none"

    def stored_linear(self, module: str) -> StoredLinear | None:
        """See `CheckpointFormat`."""
        if module == "lm_head" and not self.has_head:
            return None
        names = module, module.removeprefix(PREFIX)
        for pattern, linear in self.rules:
            if any(map(pattern.match, names)):
                return linear
        if any(name in self.ignored for name in _endings_and_runs(module)):
            return None
        is_chosen = not self.only or any(f".{words}." in f".{module}." for words in self.only)
        return self.linear if is_chosen or module == "lm_head" else None

    def stored_table(self, module: str) -> StoredLinear | None:
        """See `CheckpointFormat`."""
        names = module, module.removeprefix(PREFIX)
        found = (own for pattern, own in self.table_rules if any(map(pattern.match, names)))
        return next(found, None)


def _endings_and_runs(module: str) -> Iterator[str]:
    """All ends of a module's name, and all runs of its words.

    They are few; the modules that a config file ignores may be tens of thousands.
    """
    yield from (module[at:] for at in range(len(module)))
    words = module.split(".")
    for begin, end in combinations(range(len(words) + 1), 2):
        yield ".".join(words[begin:end])


def read_ignored(config: ConfigFile, *keys: str) -> tuple[tuple[Rule, ...], frozenset[str]]:
    """Modules that are not quantized: rules for patterns of how names begin, and plain names.

    As transformers reads such lists; each entry is a name as well. Raises CheckpointError.
    """
    rules, names = list[Rule](), list[str]()
    for key in keys:
        listed = config.texts(key)
        patterns = [each for each in listed if set(each) & _SPECIAL and _compiles(each)]
        check_patterns(config, key, patterns)
        rules += [(surrounded("", pattern, _BOUNDARY), None) for pattern in patterns]
        names += [name for name in listed if name]
    return tuple(rules), frozenset(names)


def surrounded(before: str, pattern: str, behind: str) -> re.Pattern[str]:
    """A pattern between two others, where flags at its start are not allowed, but hold as well."""
    inner = pattern.removeprefix(begin[0] if (begin := _FLAGS.match(pattern)) else "")
    return re.compile(f"{before}(?:{inner}){behind}", re.compile(pattern).flags)


def read_dynamic(
    config: ConfigFile, linear: Linear, changed: Callable[[Linear, ConfigFile], Linear]
) -> tuple[Rule, ...]:
    """GPTQModel's rules: `-:pattern` excludes, `+:pattern` or `pattern` changes values.

    changed: the layout with the values of a rule. Raises CheckpointError.
    """
    section, found = config.section("dynamic"), list[Rule]()
    if section is None:
        return ()
    for rule in section.values:
        pattern, own = rule.removeprefix("+:").removeprefix("-:"), None
        check_patterns(section, rule, [pattern])
        if not rule.startswith("-:"):
            values = section.section(rule)
            own = linear if values is None else changed(linear, values)
        found.append((re.compile(pattern), own))
    return tuple(found)


def first_text(config: ConfigFile, keys: tuple[str, ...], default: str) -> tuple[str, str]:
    """The first of the keys that is there, and its text; or the first key with the default."""
    key = next((key for key in keys if config.get(key) is not None), keys[0])
    return key, config.text(key, default)


def _compiles(pattern: str) -> bool:
    try:
        parser.parse(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def check_patterns(config: ConfigFile, key: str, patterns: Iterable[str]) -> None:
    """Raise CheckpointError for what is not a regular expression, or what may match for ever."""
    for pattern in patterns:
        shown = repr(pattern[:MAX_PATTERN])
        if len(pattern) > MAX_PATTERN:
            raise config.wrong(key, f"holds {shown}..., which is too long; shorten it")
        try:
            parsed = parser.parse(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise config.wrong(
                key, f"holds {shown}, which is not a regular expression ({error}); correct it"
            ) from error
        if _num_repeats(parsed) > MAX_REPEATS:
            raise config.wrong(
                key, f"holds {shown}, which may take very long to match; use fewer repetitions"
            )


def _num_repeats(parsed: Any) -> int:
    """The number of repeated parts, each counted as often as those that hold it may repeat it."""
    total = 0
    for operation, argument in parsed:
        inner = sum(_num_repeats(part) for part in _parts(argument))
        if operation in _REPEATS and argument[1] > 1:
            total += 1 + inner * MAX_REPEATS
        else:
            total += inner
    return total


def _parts(argument: Any) -> Iterator[Any]:
    """The patterns within an operation's argument."""
    if isinstance(argument, parser.SubPattern):
        yield argument
    elif isinstance(argument, (tuple, list)):
        for each in argument:
            yield from _parts(each)
