"""Reads a chat's messages, typed or piped in: of one line, or of several between triple quotes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

from quire.cli.prompt_texts import standard_input, utf8
from quire.errors import ConfigError

QUOTES = '"' * 3
_PROMPT, _MORE = "> ", "... "  # of a message, and of its further lines

ReadLine = Callable[[str], str]
"""Reads a line, from a terminal behind a prompt. Raises EOFError, and DroppedMessageError."""


class DroppedMessageError(Exception):
    """Raised for a line at which Ctrl-C was pressed: what was typed so far is not a message."""


def read_messages(read_line: ReadLine | None = None) -> Iterator[str]:
    """Messages until the input ends; read_line: the terminal, or else whatever is piped in."""
    read = read_line or (typed_line_reader() if sys.stdin.isatty() else piped_line_reader())
    while True:
        try:
            message = _message(read)
        except DroppedMessageError:
            continue
        except EOFError:
            return
        yield message


def _message(read_line: ReadLine) -> str:
    text = read_line(_PROMPT).rstrip()
    if not text.lstrip().startswith(QUOTES):
        return text
    block = [text.lstrip().removeprefix(QUOTES)]
    while not block[-1].endswith(QUOTES):
        try:
            block.append(read_line(_MORE).rstrip("\n"))
        except EOFError:
            break
    return "\n".join(block).removesuffix(QUOTES)


def piped_line_reader() -> ReadLine:
    """Reads standard input. Its function raises ConfigError where that is not text."""
    lines = iter(standard_input())

    def read(_: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None
        except UnicodeDecodeError:
            raise ConfigError("standard input is not UTF-8 text; convert it") from None

    return read


def typed_line_reader() -> ReadLine:
    """Reads the terminal, with a history; lines that are pasted together stay together."""
    import readline  # gives input() a history and line editing

    readline.parse_and_bind("set enable-bracketed-paste on")  # which Python switches off
    return _typed_line


def _typed_line(prompt: str) -> str:
    if not sys.stdout.isatty():  # which is for answers, and may be a file
        _say(prompt, end="")
        prompt = ""
    try:
        line = input(prompt)
        with suppress(ConfigError):  # a request tells of what is no text
            line = utf8("text")(line)
        return line
    except EOFError:
        _say("")
        raise
    except KeyboardInterrupt:  # meant for an answer that had just ended, perhaps
        _say("\n/quit or Ctrl-D leaves")
        raise DroppedMessageError from None


def _say(text: str, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr, flush=True)
