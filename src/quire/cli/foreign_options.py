"""Command lines with options of other engines, rewritten to Quire's own before they are parsed."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from quire.compat.foreign_name import DEFAULT, ForeignName
from quire.compat.name_homes import DEFAULTS, GENERATION_CONFIG
from quire.errors import ConfigError
from quire.options import flag_of

if TYPE_CHECKING:
    from quire.compat.names_table import Scope

SCOPES: tuple[Scope, ...] = ("engine", "server", "sampling", "cli")

# Other engines' flags for options that have the same long name here.
OWN_FLAGS = {
    "-m": "--model", "-p": "--prompt", "-t": "--threads", "-s": "--seed", "-sys": "--system",
    "--system-prompt": "--system", "-j": "--json-schema", "-dev": "--device",
    "-l": "--logit-bias", "-q": "--quantization", "-asc": "--api-server-count",
}  # fmt: skip
_LEVEL = re.compile(r"(-[A-Z])(\d+)")  # a short flag with its number, as -O3
# options of one command that ask for what others always do
_OF_OTHERS = {
    "chat": "a command has one mode",
    "log_level": "this command logs warnings alone",
    "reasoning_parser": "reasoning is a part of the answer",
}
_CONTEXT, _SLOTS = ("-c", "--ctx-size"), ("-np", "--parallel")  # llama.cpp's
_SWITCHES = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}
_SWITCH_WORDS = ("on", "off", "auto", "true", "false", "0", "1")  # after an optional flag


def flags_of(row: ForeignName) -> tuple[str, ...]:
    """All flags of a row, the long one first."""
    return (flag_of(row.name), *row.flags)


@cache
def _rows() -> Mapping[str, ForeignName]:
    """All rows by their flags. A command line of Quire's own options does not need the tables."""
    from quire.compat.names_table import rows_of

    return {flag: row for scope in SCOPES for row in rows_of(scope) for flag in flags_of(row)}


def own_argv(
    argv: Sequence[str], flags: Mapping[str, argparse.Action], *, takes_model: bool
) -> tuple[list[str], list[str]]:
    """The command line in Quire's own options, and a sentence for each option without effect.

    flags: those that the command has, which keep their meaning. takes_model: whether its first word
    is a model. Raises ConfigError for an option that is refused.
    """
    rewriter = _Rewriter(flags, takes_model)
    rewriter.rewrite(list(argv))
    return rewriter.words, rewriter.notices


def given_flags(
    argv: Sequence[str], flags: Mapping[str, argparse.Action], *, takes_model: bool
) -> Mapping[str, str]:
    """The command's options that argv has in another spelling, and that spelling, for messages.

    Those whose value is another one, too, are left out. Arguments as for own_argv.
    """
    rewriter = _Rewriter(flags, takes_model)
    with suppress(ConfigError):
        rewriter.rewrite(list(argv))
    return {own: given for own, (given, _) in rewriter.spelled.items() if given != own}


class _Rewriter:
    def __init__(self, flags: Mapping[str, argparse.Action], takes_model: bool) -> None:
        self._flags, self._takes_model = flags, takes_model
        self._model: str | None = None  # of an option; the other words are texts then
        self._over: dict[str, Any] = {}  # params that hold whatever the other words set
        self._given: dict[str, str] = {}  # by flag, or another word: the text that follows
        self.spelled: dict[str, tuple[str, str]] = {}  # own flag → that of argv, and its text
        self.words: list[str] = []
        self.notices: list[str] = []

    def rewrite(self, argv: list[str]) -> None:
        """Append all words of argv, rewritten."""
        rest = iter(argv)
        self._given = dict(pairwise(argv))
        self._given |= {flag: text for flag, sign, text in (w.partition("=") for w in argv) if sign}
        pending: list[str] = []  # a word that was looked at and belongs to nothing before it
        while (word := pending.pop() if pending else next(rest, None)) is not None:
            flag, sign, text = self._own_spelling(word)
            if word == "--":
                self._close()
                self.words += [word, *rest]
            elif flag == "--model" and flag not in self._flags and self._takes_model:
                self._name_model(text if sign else self._following(rest, flag))
            elif flag.startswith("--") and f"--no-{flag[2:]}" in self._flags:  # a switch
                value = text if sign else self._switch_value(rest, pending)
                self.words.append(self._switch(flag, value) or flag + sign + text)
            elif (name := flag[2:].replace("-", "_")) in DEFAULTS and self._has_defaults(flag):
                value = text if sign else self._following(rest, flag)
                self._append(flag, name, plain_value(value), value)
            elif flag in self._flags or (found := row_of(flag)) is None:
                if flag in self._flags and self._flags[flag].nargs != 0:
                    own = max(self._flags[flag].option_strings, key=lambda each: each[:2] == "--")
                    self.spelled[own] = word.partition("=")[0], text
                self.words.append(flag + sign + text)
            else:
                row, negated = found
                value = text if sign else self._value_of(row, rest, pending, flag)
                self._apply(row, word.partition("=")[0], negated, value)

        self._close()
        self._note_division(argv)

    def _note_division(self, argv: list[str]) -> None:
        """Add a notice where llama.cpp would divide a context among its slots."""
        context, tokens = self.spelled.get("--max-model-len", ("", ""))
        slots, count = self.spelled.get("--max-num-seqs", ("", ""))
        is_divided = context in _CONTEXT and slots in _SLOTS and count != "1"
        if is_divided and not {"-kvu", "--kv-unified"}.intersection(argv):
            self.notices.append(
                f"{context} {tokens} is for each request; llama.cpp divides it by {slots} {count}"
            )

    def _close(self) -> None:
        """Append what holds over all other words."""
        for name, value in self._over.items():
            self._append(name, name, value)
        self._over = {}

    def _name_model(self, model: str) -> None:
        """Put the model before all words. Raises ConfigError for a second one."""
        if self._model is not None:
            raise ConfigError(
                f"{self._model[:64]!r} and {model[:64]!r} are named as the model; name one of them"
            )
        self._model = model
        self.words.insert(0, model)

    def _has(self, params: Mapping[str, Any]) -> bool:
        flags = set(map(flag_of, params))
        return bool(flags) and flags.issubset(self._flags)

    def _has_defaults(self, flag: str) -> bool:
        """Whether the command has defaults of requests, not the sampling param itself."""
        return GENERATION_CONFIG in self._flags and flag not in self._flags

    def _own_spelling(self, word: str) -> tuple[str, str, str]:
        """Flag, sign and text of a word; the flag as this command writes it, if it has it."""
        flag, sign, text = word.partition("=")
        if (level := _LEVEL.fullmatch(word)) and row_of(level[1]) is not None:
            return level[1], "=", level[2]
        if flag in self._flags or not word.startswith("-"):
            return flag, sign, text
        own = OWN_FLAGS.get(flag) or flag.replace("_", "-")
        is_known = own in self._flags or own == "--model" or row_of(own) is not None
        return (own if is_known else flag), sign, text

    def _value_of(
        self, row: ForeignName, rest: Iterator[str], pending: list[str], flag: str
    ) -> str | None:
        if row.arity == "switch":
            return self._switch_value(rest, pending)
        if row.arity in ("value", "numbers"):
            value = self._following(rest, flag)
            while row.arity == "numbers" and (word := next(rest, None)) is not None:
                if not word.isdecimal():
                    pending.append(word)
                    break
            return value
        following = next(rest, None)
        if following is not None and following.lower() not in _SWITCH_WORDS:
            pending.append(following)
            return None
        return following

    def _following(self, rest: Iterator[str], flag: str) -> str:
        """The word after an option. Raises ConfigError where there is none but a known option, as
        -tp and --port=1 are, and -1 and --END are not.
        """
        word = next(rest, None)
        own = "" if word is None else self._own_spelling(word)[0]
        if word is None or own in self._flags or row_of(own) is not None:
            raise ConfigError(f"{flag}: its value is missing; write it after the option")
        return word

    def _switch_value(self, rest: Iterator[str], pending: list[str]) -> str | None:
        """The word after a switch, if it is a value, as older engines write it."""
        following = next(rest, None)
        if following is None or following.lower() in ("true", "false"):
            return following
        pending.append(following)
        return None

    def _switch(self, flag: str, value: str | None) -> str | None:
        """The switch that is on or off by itself; None for a value that no switch has."""
        is_on = True if value is None else _SWITCHES.get(value.lower())
        return None if is_on is None else flag if is_on else f"--no-{flag[2:]}"

    def _apply(self, row: ForeignName, flag: str, negated: bool, text: str | None) -> None:
        from quire.compat.names_table import NoEffect, Own, meaning_of_row
        from quire.compat.sampler_stages import params_set_by

        value: Any = not negated
        if text is not None:  # a row may know a word by itself: none
            value = text if text in row.values else plain_value(text)
        over, beside = params_set_by(row.name, value), dict[str, Any]()
        if row.repeats is not None:
            beside[row.repeats] = plain_value(self._given.get(flag_of(row.repeats), ""))
        match meaning_of_row(row, value, flag, beside):
            case Own(name=name, value=own):
                self._append(flag, name, own, text if own is value else None)
            case NoEffect() if self._has(over):
                self._over |= over
            case NoEffect(is_neutral=True) if over:
                raise ConfigError(f"{flag} is set by each request; send {row.name!r} there")
            case NoEffect(text=notice, is_neutral=is_neutral):
                self.notices += [] if is_neutral else [notice]
            case refused:
                raise ConfigError(refused.text)

    def _append(self, flag: str, name: str, value: Any, text: str | None = None) -> None:
        """Append an option with a value. text: the value's own spelling, such as 1.10, if any."""
        if value is DEFAULT or (value is None and name != "max_tokens"):  # which has a default
            return
        own = flag_of(name)
        shown = str(value) if text is None else text
        if isinstance(value, bool) and own in self._flags and self._flags[own].nargs == 0:
            self.words.append(own if value else f"--no-{own[2:]}")
        elif own in self._flags:
            self.spelled[own] = (own if text is None else flag), shown
            self.words.append(f"{own}={shown}")
        elif name == "model" and self._takes_model:
            self._name_model(shown)
        elif name == "model":
            self.words.append(shown)
        elif name in DEFAULTS and self._has_defaults(own):  # as llama-server takes them
            if value is not None:
                from quire.cli.request_defaults import default_value  # usually not needed

                default_value(flag, name, shown)
                self.words.append(f"{GENERATION_CONFIG}.{DEFAULTS[name]}={shown}")
        elif name in _OF_OTHERS:
            self.notices.append(f"{flag} has no effect: {_OF_OTHERS[name]}")
        else:
            from quire.compat.name_homes import command_home  # usually not needed

            home = command_home(flag, name, self._flags, value)
            raise ConfigError(home or f"{flag} is of another command; leave it out")


def row_of(flag: str) -> tuple[ForeignName, bool] | None:
    """The row of a flag, and whether it is the negative of a switch; None without a row.

    A flag such as --structured-outputs-config.backend sets a part of the option before its dot.
    """
    if not flag.startswith("-"):
        return None
    if row := _rows().get(flag) or _rows().get(flag.partition(".")[0]):
        return row, False
    row = _rows().get("--" + flag.removeprefix("--no-"))
    if flag.startswith("--no-") and row is not None and row.arity == "switch":
        return row, True
    return None


def plain_value(text: str) -> Any:
    """A word of a command line as the value that it spells."""
    words: dict[str, Any] = {
        "none": None,
        "null": None,
        "true": True,
        "false": False,
        "{}": {},
        "[]": [],
    }
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text) if len(text) <= 20 else text
        except ValueError:
            continue
    return text
