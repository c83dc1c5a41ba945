r"""Options on how prompts are read: --escape, and variables of the chat template.

For the commands that ask a model directly. With --escape `\n` is a line break, as in llama.cpp.
"""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any

from quire.cli.options import CommandParser

_ESCAPE = re.compile(r"""(?:\\x[0-9a-fA-F]{2})+|\\[nrt'"\\]""")
_CHARACTERS = {"n": "\n", "r": "\r", "t": "\t"}
_TEXTS = {"text", "prompt", "system", "stop"}  # options with one text, or a list of them
_VARIABLES = "default_chat_template_kwargs"  # the server's name, as other engines' names mean it


def add_prompt_options(parser: CommandParser, more: str = "") -> None:
    """Add the options. more: what else the help on variables says."""
    parser.add_argument(
        "--" + _VARIABLES.replace("_", "-"),
        metavar="JSON",
        help=f'variables of the chat template, such as {{"enable_thinking": false}}{more}',
    )
    parser.add_argument(
        *("-e", "--escape"),
        action=argparse.BooleanOptionalAction,
        default=argparse.SUPPRESS,
        help=r"read \n, \r, \t, \', \", \\ and \xHH in prompts, --system and --stop as characters"
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


def read_escapes(args: argparse.Namespace) -> None:
    r"""Replace the escapes of all texts if that is asked for; if nothing is, tell of a `\n`."""
    given = vars(args)
    for name in sorted(_TEXTS & given.keys()):
        value = given[name]
        texts = value if isinstance(value, list) else [value]
        if given.get("escape"):
            new = [unescaped(text) for text in texts]
            given[name] = new if isinstance(value, list) else new[0]
        elif "escape" not in given and any(r"\n" in text for text in texts):
            print(rf"note: \n in {name} is two characters; --escape makes it one", file=sys.stderr)


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
