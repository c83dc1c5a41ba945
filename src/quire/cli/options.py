"""Command-line options made from settings: one name, one default, one help text everywhere."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NoReturn

from quire.cli.foreign_options import given_flags, own_argv
from quire.compat.foreign_name import DEFAULT
from quire.compat.own_values import OWN_VALUES, own_value
from quire.config import EngineConfig, iter_options
from quire.errors import ConfigError
from quire.options import SETTING, UNITS, Option, flag_of, nearest_name, read_integer, same_choice

_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")

_SECTION_TITLES = {
    "model": "model",
    "cache": "KV cache",
    "scheduler": "scheduler",
    "device": "device",
}


class CommandParser(argparse.ArgumentParser):
    """argparse whose mistakes are ConfigErrors, and which knows the nearest option."""

    def __init__(
        self,
        command: str,
        description: str,
        examples: Sequence[str],
        *,
        words: str = "[MODEL] ",
        instead: str = "name it by an option",
    ) -> None:
        """A parser of one command's options. instead: what to do with a word too many."""
        self._instead = instead
        super().__init__(
            prog=f"quire {command}",
            usage=f"quire {command} {words}[options]",
            description=description,
            epilog="examples:\n" + "\n".join(f"  {example}" for example in examples),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            argument_default=argparse.SUPPRESS,
            allow_abbrev=False,
        )

    def add_switch(self, flag: str, text: str) -> None:
        """Add an option without a value, which is off unless it is given."""
        self.add_argument(flag, action="store_true", default=False, help=text)

    def add_toggle(self, flag: str, text: str) -> None:
        """Add an option that `--no-` before its name switches off."""
        self.add_argument(flag, action=argparse.BooleanOptionalAction, help=text)

    def add_integer(self, flag: str, text: str) -> None:
        """Add an option with a number such as 8 or 32K."""
        self.add_argument(flag, type=human_int, metavar="N", help=text)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse all of argv; other engines' options are translated. Raises ConfigError."""
        flags = self._option_string_actions
        argv = self._joined(argv)
        own, notices = own_argv(argv, flags, takes_model=self._takes_model)
        own = self._joined(own)  # defaults of requests are such members
        if "--served-model-name" in own or "--api-key" in own:
            from quire.cli.joined_values import with_joined_values

            own = with_joined_values(own, flags)
        # words may stand between options; argparse forgets there what follows `--`
        parse = self.parse_known_args if "--" in own else self.parse_known_intermixed_args
        args, unknown = parse(own)
        for option in (word for word in unknown if word.startswith("-")):
            raise self._unknown_option(option)
        if unknown:
            text = f"unexpected {unknown[0][:64]!r}; {self._instead}, or see {self.prog} --help"
            raise ConfigError(text)
        for notice in notices:
            print(f"note: {notice}", file=sys.stderr)
        return args

    @staticmethod
    def _joined(argv: Sequence[str]) -> list[str]:
        if not any("." in word for word in argv):  # most command lines have none
            return list(argv)
        from quire.cli.dotted_options import with_joined_members

        return with_joined_members(argv)

    @property
    def _takes_model(self) -> bool:
        """Whether the first word is a model."""
        return any(a.dest == "model" and not a.option_strings for a in self._actions)

    def _unknown_option(self, word: str) -> ConfigError:
        """The error for an option that is not there, or stands where words are."""
        name, flags = word.partition("=")[0], self._option_string_actions
        if word == "--":
            return ConfigError("words before -- and after it; write all of them after it")
        if name in flags:
            return ConfigError(f"{name} is behind --, where words are; write it before --")
        near = nearest_name(name, flags)
        hint = f"did you mean {near}?" if near else f"see {self.prog} --help"
        from quire.compat.name_homes import command_home  # usually not needed

        home = command_home(name, name.lstrip("-").replace("-", "_"), flags)
        return ConfigError(home or f"unknown option {name[:64]}; {hint}")

    def in_flags(self, text: str, argv: Sequence[str] = ()) -> str:
        """An error's text with options for the settings that it names: max_tokens, --max-tokens.

        A name of one word is one only where no other word can be meant. argv: whose spellings are
        used, such as -n for --max-tokens.
        """
        given = given_flags(argv, self._option_string_actions, takes_model=self._takes_model)

        def flag(match: re.Match[str]) -> str:
            option = flag_of(match[0].partition("=")[0])
            if option not in self._option_string_actions:
                return match[0]
            return option if match["value"] is None else f"{option} {match['value']}"

        text = SETTING.sub(flag, text)
        return _FLAG.sub(lambda match: given.get(match[0], match[0]), text)

    def _get_values(self, action: argparse.Action, words: list[str]) -> Any:
        """The value of an option: that of `--stop=--` is the text --, which argparse drops."""
        if action.option_strings and words == ["--"]:
            value = self._get_value(action, words[0])
            self._check_value(action, value)
            return value
        return super()._get_values(action, words)

    def _get_value(self, action: argparse.Action, word: str) -> Any:
        """The value of a word, which need not have a choice's case."""
        return same_choice(super()._get_value(action, word), tuple(action.choices or ()))

    def print_help(self, file: Any = None) -> None:
        """Print the help; argparse would hide that the disk is full."""
        print(self.format_help(), end="", file=file)

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing usage and leaving."""
        for theirs, ours in _PLAIN.items():
            message = re.sub(theirs, ours, message)
        message = _LONG.sub(r"\1\2", message)
        raise ConfigError(f"{message.removeprefix('argument ')}; see {self.prog} --help")


# argparse's words, in those of the other messages
_PLAIN = {
    r"expected (one|at least one) argument$": "its value is missing",
    r"invalid float value: ": "must be a number, not ",
    r"invalid int value: ": "must be an integer, not ",
    r"invalid choice: (.*) \(choose from (.*)\)$": r"must be one of \2, not \1",
    r"ignored explicit argument .*": "it is a switch and takes no value",
}
_LONG = re.compile(r"""(, not (["']).{64}).+\2$""")  # a value that is cut


def human_int(text: str, example: str = UNITS) -> int:
    """`read_integer` with argparse's error."""
    try:
        return read_integer(text, example)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


class _Joined(argparse.Action):
    """Given several times, an option has all values with commas between."""

    def __call__(self, _: object, namespace: argparse.Namespace, value: Any, *__: object) -> None:
        values = [getattr(namespace, self.dest, DEFAULT), value]
        given = [each for each in values if each is not DEFAULT]  # which None stands for
        setattr(namespace, self.dest, ",".join(given) if given else DEFAULT)


def add_option(parser: argparse._ActionsContainer, option: Option, *flags: str) -> None:
    """Add one setting as `--its-name`. It is absent from the namespace unless it was given."""
    flag = flag_of(option.name)
    help_text = option.help.replace("%", "%%")
    if aliases := _aliases(option):
        help_text += f"; of other engines: {', '.join(aliases)}"
    if option.default is not None and "default" not in option.help:
        help_text += f" (default: {_shown(option.default)})"
    if option.kind is bool:
        parser.add_argument(
            flag,
            *flags,
            action=argparse.BooleanOptionalAction,
            help=help_text,
            default=argparse.SUPPRESS,
        )
        return
    kind = partial(_read, option)
    kind_name = {"int": "N", "float": "X"}.get(option.kind.__name__, option.name.upper())
    parser.add_argument(
        flag,
        *flags,
        action=_Joined if option.is_list else "store",
        type=kind,
        choices=option.choices,
        metavar=None if option.choices else kind_name,
        help=help_text,
    )


def _read(option: Option, text: str) -> Any:
    """The value of an option's text, which may be in another engine's spelling."""
    value = own_value(option.name, None if text == "None" else text)
    if isinstance(value, str) and option.kind is not str:
        is_integer = option.kind is int
        number = human_int(value, option.units) if is_integer else _number(value)
        value = own_value(option.name, number)
    value = same_choice(value, option.choices or ())
    if option.choices and value is not DEFAULT and value not in option.choices:
        known = ", ".join([*option.choices, *_aliases(option)])
        raise argparse.ArgumentTypeError(f"must be one of {known}, not {text[:64]!r}")
    return option.default if value is DEFAULT and option.choices else value


def _aliases(option: Option) -> list[str]:
    """Values of an option in other engines' spellings."""
    own = option.choices or ()
    values = OWN_VALUES.get(option.name, {}) if own else {}
    return [value for value in values if isinstance(value, str) and value not in own]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, not {text[:64]!r}") from None


def add_engine_options(parser: CommandParser) -> None:
    """Add the model as an optional word, and every engine setting as an option."""
    groups = {
        section: parser.add_argument_group(title) for section, title in _SECTION_TITLES.items()
    }
    for section, option in iter_options():
        if option.name == "model":
            text = f"{option.help} (default: {option.default})"
            parser.add_argument("model", nargs="?", metavar="MODEL", help=text)
        else:
            add_option(groups[section], option)


def engine_options(args: argparse.Namespace) -> dict[str, Any]:
    """The engine settings that were given, ready for EngineConfig.from_options or LLM."""
    return chosen(args, [option.name for _, option in iter_options()])


def engine_config(args: argparse.Namespace) -> EngineConfig:
    """The engine's settings from command-line options. Raises ConfigError."""
    return EngineConfig.from_options(**engine_options(args))


def chosen(args: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """The options among `names` that the command line sets, with their values."""
    given = vars(args)
    return {name: given[name] for name in names if given.get(name, DEFAULT) is not DEFAULT}


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
