"""`quire cache`: lists and removes prepared weights, the files that Quire stores by itself."""

from __future__ import annotations

import os
import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from quire.cli.options import CommandParser, add_option, chosen
from quire.config import ModelSettings
from quire.errors import ConfigError
from quire.hub import hub_name
from quire.model_folder import named_path
from quire.models.prepared.prepared_files import (
    UNFINISHED,
    dtype_of,
    is_outdated,
    other_processor,
    prepared_folder,
    quantization_of,
    source_of,
    stored_files,
)
from quire.options import options_of

EXAMPLES = (
    *("quire cache", "quire cache ls Qwen/Qwen3-0.6B", "quire cache rm Qwen3-0.6B"),
    *("quire cache rm ./models/mine", "quire cache clear", "quire cache clear --gone"),
    "quire cache clear --other-processors",
)
_ACTIONS = ("ls", "rm", "clear")
_CUT = ".../"  # the start of a path that is shown without its own
_HUB = "models of the hub are in its own cache: hf cache ls"


def make_parser() -> CommandParser:
    """The parser of the options of `quire cache`."""
    parser = CommandParser(
        "cache",
        "List or remove prepared weights of CPUs.",
        EXAMPLES,
        words="[ls [NAME ...] | rm NAME ... | clear [NAME ...]] ",
    )
    parser.add_argument(
        "action",
        nargs="?",
        default="ls",
        metavar="ACTION",
        help="ls: list; rm: remove those of NAME; clear: remove all, or those of NAME",
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="a model as quire serve takes it, the end of its path, or a listed file",
    )
    parser.add_switch(
        "--gone", "only those of models whose folder or file is not there any more, or has changed"
    )
    parser.add_switch(
        "--other-processors",
        "only those that processors with other instructions have stored, as in a shared home",
    )
    parser.add_switch("--full", "whole paths and file names, also on a terminal")
    for option in options_of(ModelSettings):
        if option.name == "prepared_weights":
            add_option(parser, option)
    return parser


def run(argv: Sequence[str]) -> int:
    """List or remove the files."""
    args = make_parser().parse(argv)
    action = "ls" if args.action == "list" else args.action
    names: list[str] = vars(args).get("names", [])
    given = [name.strip().rstrip("/").removeprefix(_CUT) for name in names]
    if action not in _ACTIONS:
        raise ConfigError(f"action must be one of {', '.join(_ACTIONS)}, not {action[:64]!r}")
    is_selected = args.gone or args.other_processors
    if not all(given) or (action == "rm" and not given and not is_selected):
        raise ConfigError("NAME must not be empty; see quire cache ls for names, or use clear")
    folder = prepared_folder(ModelSettings(**chosen(args, ["prepared_weights"])))
    if folder and folder.exists() and not folder.is_dir():
        raise ConfigError(f"prepared_weights: {folder} is a file; name its folder")
    files = [] if folder is None else stored_files(folder)
    for name in given:
        if not any(_is_of(file, name) for file in files):
            raise ConfigError(f"nothing is stored for {name[:64]!r}; see quire cache ls for names")
    if given:
        files = [file for file in files if any(_is_of(file, name) for name in given)]
    if is_selected:
        files = [file for file in files if _is_selected(file, args)]
    sizes = [file.lstat().st_size for file in files]
    if action != "ls":
        for file in files:
            file.unlink(missing_ok=True)
    else:
        width = shutil.get_terminal_size().columns
        is_short = sys.stdout.isatty() and not args.full
        for line in listing(files, sizes, width if is_short else None):
            print(line)
    verb, noun = "in all" if action == "ls" else "removed", "file" if len(files) == 1 else "files"
    print(f"{len(files)} {noun}, {_size(sum(sizes))} {verb}; folder: {folder or 'none'}")
    print(_HUB)
    return 0


def listing(files: Sequence[Path], sizes: Sequence[int], width: int | None) -> Iterator[str]:
    """One line for each file: size, days since the last use, model, data type, quantization, file.

    width: columns of a line, for which paths lose their start, and names of files are left out;
    None: all of both.
    """
    for file, size in zip(files, sizes, strict=True):
        days = max(0.0, time.time() - file.lstat().st_mtime) / 86400
        source = "unfinished" if file.suffix == UNFINISHED else source_of(file)
        model = str(named_path(Path(source))) if source else "unknown"
        start = f"{_size(size):>10}  {days:5.1f} days"
        made = (dtype_of(file), quantization_of(file), _mark(file))
        end = "".join(f"  {text}" for text in made if text)
        if width is None:
            yield f"{start}  {model}{end}  {file.name}"
        else:
            yield f"{start}  {_cut(model, width - len(start) - 2 - len(end))}{end}"


def _cut(path: str, length: int) -> str:
    """The last parts of a path that fit into a length, at least one."""
    parts = path.split("/")
    while len(path) > length and len(parts) > 1:
        del parts[0]
        path = _CUT + "/".join(parts)
    return path


def _is_selected(file: Path, args: Namespace) -> bool:
    """Whether an option is for a file; only another machine sees whether its model is gone."""
    return bool(args.other_processors if other_processor(file) else args.gone and _mark(file))


def _mark(file: Path) -> str:
    """A word on a file that no start here will use, and why; or ""."""
    if processor := other_processor(file):
        return f"(for {processor})"
    source = source_of(file)
    if os.path.isabs(source) and not os.path.exists(source):
        return "(gone)"
    return "(outdated)" if is_outdated(file) else ""


def _is_of(file: Path, given: str) -> bool:
    """Whether a file is meant by its own name, or by a path, end or hub name of its model."""
    if given == file.name or not (source := source_of(file)):
        return given == file.name
    path, name = Path(source), f"/{hub_name(given)}"
    is_path = Path(os.path.expanduser(given)).resolve() == path
    return is_path or any(f"/{of}".endswith(name) for of in (path, named_path(path)))


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**28 else f"{num_bytes / 2**20:.1f} MiB"
