"""The command line: the list of commands, and how failures end.

A command's module is imported only when it runs, so that `quire --help` is instant.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from quire.errors import (
    ConfigError,
    FileError,
    NoEffectWarning,
    OverloadedError,
    QuireError,
    UserError,
)
from quire.processes import INTERRUPTED, end_with, exit_on_interrupt, interrupted, no_thread

COMMANDS = {
    "serve": "serve a model over HTTP with OpenAI's API",
    "chat": "talk to a model in the terminal",
    "generate": "answer prompts, without a server",
    "run-batch": "answer a file of requests in OpenAI's batch format",
    "profile": "profile one step of a model: bytes, FLOPs, time, the roofline",
    "quantize": "quantize a model's weights into a new checkpoint, and measure what they lose",
    "verify": "measure what a quantized model loses against its base",
    "cache": "list or remove prepared weights",
    "completion": "print a shell completion script",
    "demo": "run the bundled model under load: answers, latency, throughput",
}

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the disk, or the user's share or limit

HELP = """\
usage: quire COMMAND [options]

A small, fast LLM inference and serving engine.

commands:
{commands}

options:
  --version   print the version
  --help      print this text; `quire COMMAND --help` prints a command's options

examples:
  quire demo
  quire chat
  quire serve meta-llama/Llama-3.2-1B-Instruct --max-model-len 8K
  quire generate --chat --prompt "Name three rivers." --temperature 0
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status: 0, 1 a failure, 2 a user's mistake, 130 Ctrl-C."""
    _open_standard_streams()
    _print_any_text()
    _show_notes()
    return end_with(_status_of(list(sys.argv[1:] if argv is None else argv)))


def _status_of(argv: list[str]) -> int:
    """Run a command, and put its failure into words."""
    try:
        status = _run(argv)
        sys.stdout.flush()  # here, where a full disk can still be reported in one line
        return status
    except UserError as error:
        return _fail(error, 2)
    except QuireError as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        interrupted.set()
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has closed the pipe
        _discard_output()
        return 0
    except OSError as error:
        if error.errno in FULL:
            _discard_output()
            return _fail(ConfigError("the disk is full; free some of it, or write elsewhere"), 1)
        if error.errno == errno.EAGAIN:  # of a fork
            return _fail(no_thread("no process could be started"), 1)
        if error.errno == errno.ENOMEM:  # of a fork, too, which needs as much as the process has
            text = "the system has no memory left; end other programs, or raise a container's limit"
            return _fail(OverloadedError(text), 1)
        if error.filename is None:
            raise
        text = f"{error.filename} cannot be used ({error.strerror}); correct it, or name another"
        return _fail(ConfigError(text), 1)
    except RuntimeError as error:
        if "start new thread" not in str(error):
            raise
        return _fail(no_thread(), 1)


def _open_standard_streams() -> None:
    """Open /dev/null for closed ones: else the next file or socket would get their number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def _print_any_text() -> None:
    """Escape what an output's encoding lacks, as in ASCII: else it would end the command."""
    for stream in (sys.stdout, sys.stderr):
        # strict, or surrogateescape in the C locale, which lacks all but bytes of names of files
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")


def _show_notes() -> None:
    """Print what has no effect as a note; Python would add a line of this program's code."""
    show_others = warnings.showwarning

    def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, NoEffectWarning):
            print(f"note: {message}", file=sys.stderr)
        else:
            show_others(message, category, *where, **more)

    warnings.showwarning = show


def _run(argv: list[str]) -> int:
    argv = ["--help" if word.startswith("--help=") else word for word in argv]  # vLLM's groups
    word = argv[0] if argv else "--help"
    if word == "help" and argv[1:2]:
        word, argv = argv[1], [argv[1], "--help"]
    if word in ("-h", "--help", "help"):
        commands = "\n".join(f"  {name:<12}{text}" for name, text in COMMANDS.items())
        print(HELP.format(commands=commands), end="")
        return 0
    if word in ("--version", "-v", "-V", "version"):
        from quire.version import __version__

        print(f"quire {__version__}")
        return 0
    if word not in COMMANDS:
        raise _unknown(word)
    # Texts are encoded one by one: the library would start a thread for each core, and fail for
    # good where one cannot be started.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with exit_on_interrupt():
        command = importlib.import_module(f"quire.cli.{word.replace('-', '_')}")
    try:
        status: int = command.run(argv[1:])
    except SystemExit as end:  # argparse's after --help, and that of rich for a closed pipe
        if isinstance(end.__context__, BrokenPipeError):
            raise end.__context__ from None
        return end.code if isinstance(end.code, int) else 0
    except FileError:  # which has no options
        raise
    except UserError as error:
        error.args = (command.make_parser().in_flags(str(error), argv[1:]),)
        raise
    return status


def _unknown(word: str) -> ConfigError:
    """The error for a word that is not a command; says what another engine's command is here."""
    from quire.cli.generate import could_be_model
    from quire.compat import foreign_commands
    from quire.options import nearest_name

    near = nearest_name(word, [*COMMANDS, "--version", "--help"])
    kind = "option" if word.startswith("-") else "command"
    if word in foreign_commands.COMMANDS:
        hint = foreign_commands.COMMANDS[word]
    elif near:
        hint = f"did you mean {near!r}?"
    elif kind == "option":
        hint = "a command comes first, such as `quire chat` or `quire serve`"
    elif could_be_model(word):
        hint = f"a command comes before a model: `quire chat {word}`, or `quire serve {word}`"
    else:
        hint = f"use one of {', '.join(COMMANDS)}"
    return ConfigError(f"unknown {kind} {word[:64]!r}; {hint}")


def _discard_output() -> None:
    """Send Python's last flush to /dev/null."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(error: Exception, status: int) -> int:
    print(f"error: {error}", file=sys.stderr)
    return status
