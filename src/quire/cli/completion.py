"""`quire completion`: a script that completes commands, options and their values in a shell.

The script has all words in itself, so that a shell starts no program to complete one.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
from collections.abc import Iterator, Sequence

from quire.cli.options import CommandParser
from quire.errors import ConfigError

EXAMPLES = (
    "quire completion fish | source       # in ~/.config/fish/config.fish",
    'eval "$(quire completion bash)"      # in ~/.bashrc; zsh likewise',
)
SHELLS = ("bash", "zsh", "fish")

_BASH = """\
_quire() {
    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" words=""
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "@COMMANDS@" -- "$cur")); return
    fi
    case "${COMP_WORDS[1]} $prev" in
@VALUES@
    esac
    if [ -z "$words" ]; then
        case "${COMP_WORDS[1]} $cur" in
@FLAGS@
        esac
    fi
    if [ -n "$words" ]; then COMPREPLY=($(compgen -W "$words" -- "$cur"))
    else COMPREPLY=($(compgen -f -- "$cur")); fi
}
complete -o filenames -F _quire quire
"""


def make_parser() -> CommandParser:
    """The parser of the options of `quire completion`."""
    parser = CommandParser(
        "completion", "Print a shell completion script.", EXAMPLES, words="SHELL "
    )
    parser.add_argument("shell", nargs="?", default="bash", metavar="SHELL", help=", ".join(SHELLS))
    return parser


def run(argv: Sequence[str]) -> int:
    """Print the script."""
    shell = make_parser().parse(argv).shell
    if shell not in SHELLS:
        raise ConfigError(f"shell must be one of {', '.join(SHELLS)}, not {shell[:64]!r}")
    if shell == "zsh":
        print("(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }")
        print("autoload -U +X bashcompinit && bashcompinit")
    print("\n".join(_fish()) + "\n" if shell == "fish" else _bash(), end="")
    return 0


def _parsers() -> dict[str, CommandParser]:
    from quire.cli import COMMANDS

    modules = {name: f"quire.cli.{name.replace('-', '_')}" for name in COMMANDS}
    return {name: importlib.import_module(path).make_parser() for name, path in modules.items()}


def _options(parser: CommandParser) -> Iterator[tuple[argparse.Action, list[str]]]:
    """Each option with its long flags."""
    for action in parser._actions:
        if flags := [flag for flag in action.option_strings if flag.startswith("--")]:
            yield action, flags


def _bash() -> str:
    values, flags = [], []
    parsers = _parsers()
    for command, parser in parsers.items():
        for action, names in _options(parser):
            if action.choices:
                pattern = "|".join(f'"{command} {name}"' for name in names)
                values.append(f'        {pattern}) words="{" ".join(action.choices)}";;')
        listed = " ".join(name for _, names in _options(parser) for name in names)
        flags.append(f'            "{command} -"*) words="{listed}";;')
    script = _BASH.replace("@COMMANDS@", " ".join(parsers))
    return script.replace("@VALUES@", "\n".join(values)).replace("@FLAGS@", "\n".join(flags))


def _fish() -> Iterator[str]:
    from quire.cli import COMMANDS

    for command, text in COMMANDS.items():
        yield f"complete -c quire -n __fish_use_subcommand -fa {command} -d {shlex.quote(text)}"
    for command, parser in _parsers().items():
        for action, names in _options(parser):
            flags = " ".join(f"-l {name[2:]}" for name in names)
            values = f" -xa {shlex.quote(' '.join(action.choices))}" if action.choices else ""
            text = shlex.quote((action.help or "").replace("%%", "%").partition(";")[0])
            seen = f"'__fish_seen_subcommand_from {command}'"
            yield f"complete -c quire -n {seen} {flags}{values} -d {text}"
