"""`quire cache`: lists and removes prepared weights, the files that Quire stores by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from quire.cli.options import CommandParser, add_option, chosen
from quire.config import ModelSettings
from quire.errors import ConfigError
from quire.models.prepared.prepared_files import prepared_folder, source_of, stored_files
from quire.options import options_of

EXAMPLES = ("quire cache", "quire cache ls", "quire cache clear")
_ACTIONS = ("ls", "clear")
_HUB = "models of the hub are in its own cache: hf cache ls"


def make_parser() -> CommandParser:
    """The parser of the options of `quire cache`."""
    parser = CommandParser(
        "cache", "List or remove prepared weights of CPUs.", EXAMPLES, words="[ls | clear] "
    )
    parser.add_argument(
        "action", nargs="?", default="ls", metavar="ACTION", help="ls, or clear: remove all files"
    )
    for option in options_of(ModelSettings):
        if option.name == "prepared_weights":
            add_option(parser, option)
    return parser


def run(argv: Sequence[str]) -> int:
    """List or remove the files."""
    args = make_parser().parse(argv)
    if args.action not in _ACTIONS:
        raise ConfigError(f"action must be one of {', '.join(_ACTIONS)}, not {args.action!r}")
    folder = prepared_folder(ModelSettings(**chosen(args, ["prepared_weights"])))
    files = [] if folder is None else stored_files(folder)
    sizes = [file.stat().st_size for file in files]
    if args.action == "clear":
        for file in files:
            file.unlink(missing_ok=True)
    else:
        for line in listing(files, sizes):
            print(line)
    verb = "removed" if args.action == "clear" else "in all"
    print(f"{len(files)} files, {_size(sum(sizes))} {verb}; folder: {folder or 'none'}")
    print(_HUB)
    return 0


def listing(files: Sequence[Path], sizes: Sequence[int]) -> Iterator[str]:
    """One line for each file: size, days since the last use, what it was made of, its name."""
    for file, size in zip(files, sizes, strict=True):
        days = (time.time() - file.stat().st_mtime) / 86400
        source = "unfinished" if file.suffix == ".tmp" else source_of(file)
        yield f"{_size(size):>10}  {days:5.1f} days  {source or '?'}  {file.name}"


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**28 else f"{num_bytes / 2**20:.1f} MiB"
