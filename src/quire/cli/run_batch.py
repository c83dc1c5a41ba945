"""`quire run-batch`: a file of requests in OpenAI's batch format in, a file of answers out."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, aclosing
from pathlib import Path
from typing import IO

import msgspec

from quire.cli.answer_file import AnswerFile
from quire.cli.batch_file import bounded_lines, run_lines
from quire.cli.options import (
    CommandParser,
    add_engine_options,
    add_option,
    chosen,
    engine_config,
)
from quire.config import EngineConfig
from quire.errors import ConfigError
from quire.options import flag_of, options_of
from quire.server.settings import ServerSettings

EXAMPLES = (
    "quire run-batch -i requests.jsonl -o answers.jsonl",
    "quire run-batch Qwen/Qwen3-0.6B -i requests.jsonl -o answers.jsonl --max-num-seqs 64",
)

# settings of the server that change what a chat's answer is
_OF_CHATS = ("tool_call_parser", "reasoning_parser", "default_chat_template_kwargs")
AHEAD = 2  # requests under way for each that runs, so that the engine never waits for the file


def make_parser() -> CommandParser:
    """The parser of the options of `quire run-batch`."""
    parser = CommandParser(
        "run-batch", "Answer a file of requests in OpenAI's batch form.", EXAMPLES
    )
    parser.add_argument(
        "-i",
        "--input-file",
        type=os.path.expanduser,
        metavar="PATH",
        help="requests, one JSON per line; - is standard input",
    )
    parser.add_argument(
        "-o",
        "--output-file",
        type=os.path.expanduser,
        metavar="PATH",
        help="where the answers go; - is standard output",
    )
    group = parser.add_argument_group("server")
    for option in options_of(ServerSettings):
        if option.name in _OF_CHATS:
            add_option(group, option)
    add_engine_options(parser)
    return parser


def run(argv: Sequence[str]) -> int:
    """Answer all lines; 1 if some request failed. Raises ConfigError for the files."""
    args = make_parser().parse(argv)
    for name in ("input_file", "output_file"):
        if name not in args:
            raise ConfigError(f"{name} is missing; set {flag_of(name)} PATH")
    config, chats = engine_config(args), chosen(args, _OF_CHATS)
    settings = ServerSettings(max_queued_requests=1 << 30, **chats)
    with ExitStack() as stack:
        source = stack.enter_context(_open_source(args.input_file))
        is_file = args.input_file != "-" != args.output_file
        if (
            is_file
            and Path(args.output_file).exists()
            and Path(args.output_file).samefile(args.input_file)
        ):
            raise ConfigError("input_file and output_file are the same; use another output_file")
        total = sum(1 for line in bounded_lines(source) if line.strip())
        source.seek(0)
        target = stack.enter_context(AnswerFile(args.output_file))
        found = Counter[str]()
        try:
            asyncio.run(_run(config, settings, source, target, total, found))
        finally:
            if target.num_lines or not total:
                text = _summary(found, total, args.output_file)
                print(text, file=sys.stderr)
    return 0 if found["answered"] == total else 1


async def _run(
    config: EngineConfig,
    settings: ServerSettings,
    source: IO[bytes],
    target: AnswerFile,
    total: int,
    found: Counter[str],
) -> None:
    """Write a result for each line as soon as it is there.

    found: counts the requests that were "answered" and those that "failed".
    What was in the target stays there until the engine is up.
    """
    from rich.console import Console
    from rich.progress import track

    from quire.engine.frontend.async_engine import AsyncEngine
    from quire.engine.startup.torch_import import dedicated_start
    from quire.server.app import build_app

    with dedicated_start(config):
        engine = await AsyncEngine.start(config)
    try:
        target.clear()
        num_at_once = AHEAD * engine.info.limits.max_num_seqs
        app = build_app(engine, settings)
        console = Console(stderr=True)
        bar = track(range(total), "answering", console=console, disable=not console.is_terminal)
        ticks = iter(bar)
        lines = bounded_lines(source)
        async with aclosing(run_lines(lines, app, num_at_once=num_at_once)) as results:
            async for result in results:
                target.write(msgspec.json.encode(result))
                found["answered" if result.is_good else "failed"] += 1
                next(ticks, None)
        next(ticks, None)  # the bar is complete
    finally:
        await engine.close()


def _summary(found: Counter[str], total: int, path: str) -> str:
    """The last line; "answered" means what the exit status means by it."""
    failed = f", {found['failed']} failed" if found["failed"] else ""
    where = "standard output" if path == "-" else path
    return f"{found['answered']} of {total} requests answered{failed}; see {where}"


def _open_source(path: str) -> IO[bytes]:
    """The file at a path, - a copy of standard input, as it is read twice. Raises ConfigError."""
    if path == "-":
        copy = tempfile.TemporaryFile()  # noqa: SIM115
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.seek(0)
        return copy
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # it is read twice
            raise ConfigError(f"input_file {path!r} is a stream or a folder; use a file")
        return open(path, "rb")
    except OSError as error:
        text = f"input_file {path!r} cannot be opened ({error.strerror}); check it"
        raise ConfigError(text) from None
