r"""Prompts of commands that ask a model: their texts, --escape, variables of the chat template.

With --escape `\n` is a line break, as in llama.cpp.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import select
import stat
import sys
from collections.abc import Callable, Collection
from typing import Any, TextIO

from quire.cli.options import CommandParser
from quire.errors import ConfigError
from quire.options import flag_of

_ESCAPE = re.compile(r"""(?:\\x[0-9a-fA-F]{2})+|\\[nrt'"\\]""")
_CHARACTERS = {"n": "\n", "r": "\r", "t": "\t"}
_ESCAPED = {"text", "prompt", "system", "stop"}  # options with one text, or a list of them
_TEXTS = _ESCAPED | {"bad_words", "choice", "grammar", "json_schema", "regex"}
_VARIABLES = "default_chat_template_kwargs"  # the server's name, as other engines' names mean it
MOST_BYTES = 1 << 30  # of all prompts
FIRST_SECONDS = 0.5  # for what is piped in beside a prompt; a script's stdin may stay open


def add_prompt_options(parser: CommandParser, more: str = "") -> None:
    """Add the options. more: what else the help on variables says."""
    parser.add_argument(
        flag_of(_VARIABLES),
        metavar="JSON",
        help=f'variables of the chat template, such as {{"enable_thinking": false}}{more}',
    )
    parser.add_argument(
        *("-e", "--escape"),
        action=argparse.BooleanOptionalAction,
        default=argparse.SUPPRESS,
        help=r"interpret \n, \r, \t, \', \", \\ and \xHH in prompts, --system and --stop"
        " (default: off)",
    )


def template_variables(args: argparse.Namespace) -> dict[str, Any]:
    """The variables of the chat template that were given. Raises ConfigError."""
    if _VARIABLES not in args:
        return {}
    from quire.server.parsing.template_variables import (
        parse_template_defaults,  # usually not needed
    )

    return parse_template_defaults(getattr(args, _VARIABLES))


def read_texts(args: argparse.Namespace) -> None:
    r"""Read texts as UTF-8 in any locale, and their escapes if asked; if not, tell of a `\n`.

    Raises ConfigError for what is not UTF-8.
    """
    given = vars(args)
    for name in sorted(_TEXTS & given.keys()):
        given[name] = _each(utf8(name), given[name])
        if name not in _ESCAPED:
            continue
        if given.get("escape"):
            given[name] = _each(unescaped, given[name])
        elif "escape" not in given and r"\n" in "".join(given[name]):
            print(rf"note: \n in {name} is two characters; --escape makes it one", file=sys.stderr)


def _each(read: Callable[[str], str], value: str | list[str]) -> str | list[str]:
    return [read(text) for text in value] if isinstance(value, list) else read(value)


def utf8(name: str) -> Callable[[str], str]:
    """Reads bytes that Python has escaped, as they are not text in the locale's encoding."""

    def read(text: str) -> str:
        if not any("\udc80" <= character <= "\udcff" for character in text):
            return text
        try:
            return text.encode(sys.getfilesystemencoding(), "surrogateescape").decode()
        except UnicodeError:
            word = "TEXT" if name == "text" else flag_of(name)
            raise ConfigError(f"{word} is not UTF-8 text; convert it") from None

    return read


def unescaped(text: str) -> str:
    r"""The text with characters for escapes; bytes (\xHH) are UTF-8, and stay if they are not."""
    return _ESCAPE.sub(_character, text)


def _character(match: re.Match[str]) -> str:
    escape = match[0]
    if escape[1] != "x":
        return _CHARACTERS.get(escape[1], escape[1])
    try:
        return bytes.fromhex(escape.replace(r"\x", "")).decode()
    except UnicodeDecodeError:
        return escape


def standard_input() -> TextIO:
    """Standard input, read as text files are: UTF-8, a BOM or none, ends of lines of any kind."""
    stdin = sys.stdin
    if isinstance(stdin, io.TextIOWrapper) and stdin.encoding != "utf-8-sig":
        stdin.reconfigure(encoding="utf-8-sig", errors="strict", newline=None)
    return stdin


def piped_text() -> str:
    """All of standard input. Raises ConfigError where it is not text, or does not end."""
    try:
        text = standard_input().read(MOST_BYTES + 1)
    except UnicodeDecodeError:
        raise ConfigError("standard input is not UTF-8 text; convert it") from None
    if len(text) > MOST_BYTES:
        from quire.input_file import too_large

        raise ConfigError(f"standard input: {too_large(MOST_BYTES).strerror}; send it in parts")
    return text


def piped_before(prompts: Collection[str]) -> str:
    """The text that is piped in beside prompts, mostly none; only a prompt - waits for it."""
    return piped_text().strip() if "-" in prompts or _has_piped_text() else ""


def _has_piped_text() -> bool:
    """Whether a file or a pipe comes in that has something; tells of a pipe that stays empty."""
    try:
        file = sys.stdin.fileno()
        mode = os.fstat(file).st_mode
    except (OSError, ValueError):  # it is closed, or no file
        return False
    if stat.S_ISREG(mode):  # of which a loop over its lines has read some
        return os.lseek(file, 0, os.SEEK_CUR) == 0 < os.fstat(file).st_size
    return stat.S_ISFIFO(mode) and _has_data(file)


def _has_data(pipe: int) -> bool:
    poller = select.poll()
    poller.register(pipe, select.POLLIN)
    events = poller.poll(FIRST_SECONDS * 1000.0)
    if not events:
        text = "nothing is piped in yet, so it is left out; - as the prompt waits for it"
        print(f"note: {text}", file=sys.stderr)
    return any(event & select.POLLIN for _, event in events)
