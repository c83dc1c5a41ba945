r"""Escapes in texts of the command line: with --escape, `\n` is a line break, as in llama.cpp."""

from __future__ import annotations

import argparse
import re
import sys

from quire.cli.options import CommandParser

_ESCAPE = re.compile(r"""(?:\\x[0-9a-fA-F]{2})+|\\[nrt'"\\]""")
_CHARACTERS = {"n": "\n", "r": "\r", "t": "\t"}
_TEXTS = {"text", "prompt", "system", "stop"}  # options with one text, or a list of them


def add_escape_option(parser: CommandParser) -> None:
    """Add --escape and --no-escape, llama.cpp's; here no escape is the default."""
    parser.add_argument(
        *("-e", "--escape"),
        action=argparse.BooleanOptionalAction,
        default=argparse.SUPPRESS,
        help=r"read \n, \r, \t, \', \", \\ and \xHH in prompts, --system and --stop as characters"
        " (default: off)",
    )


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
