"""`quire demo`: the bundled model behind a real server, under load, with answers and figures."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from urllib.parse import urlsplit

from quire.cli.options import CommandParser, human_int
from quire.errors import ConfigError
from quire.processes import require_threads

EXAMPLES = ("quire demo", "quire demo --json", "quire demo --url http://127.0.0.1:8000")

DEFAULT_CONCURRENCY = 16
_THREADS = 5  # of this process and of its server's first steps


def make_parser() -> CommandParser:
    """The parser of the options of `quire demo`."""
    text = "Send many requests at once to the bundled model, and show answers and latencies."
    parser = CommandParser("demo", text, EXAMPLES, words="")
    parser.add_argument("--url", help="use a running server; default: start one on a free port")
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help="key of the server at --url; default: the first of $QUIRE_API_KEY",
    )
    parser.add_argument(
        "--concurrency",
        type=human_int,
        metavar="N",
        default=DEFAULT_CONCURRENCY,
        help=f"requests in flight (default: {DEFAULT_CONCURRENCY})",
    )
    parser.add_switch("--json", "print one JSON object instead")
    return parser


def _server_key() -> str | None:
    """A key of a server that was started in this environment."""
    keys = os.environ.get("QUIRE_API_KEY")
    return keys and keys.partition(",")[0].strip()


def _is_address(url: str) -> bool:
    try:
        return urlsplit(url).scheme == "http" and bool(urlsplit(url).hostname)
    except ValueError:
        return False


def run(argv: Sequence[str]) -> int:
    """Run it; the exit status is 1 if a request failed or too few answers are right."""
    args = make_parser().parse(argv)
    url = vars(args).get("url")
    if args.concurrency < 1:
        raise ConfigError(f"concurrency must be at least 1, not {args.concurrency}")
    if url is not None and not _is_address(url):
        raise ConfigError(f"url must be an address such as http://127.0.0.1:8000, not {url!r}")
    if url is None and "api_key" in args:
        raise ConfigError("api_key is for --url; use both or none")
    url = url and url.rstrip("/").removesuffix("/v1")
    from rich.console import Console

    from quire.bench.demo import print_result, read_examples, run_demo

    if url is None:  # the server that is started ends with this command, however it is ended
        require_threads(_THREADS, "the demo")  # where one lacks, asyncio says nothing of it
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))
    examples = read_examples()
    progress = Console(stderr=True, quiet=not sys.stderr.isatty())
    result = asyncio.run(
        run_demo(
            examples,
            url=url,
            concurrency=args.concurrency,
            console=progress,
            api_key=vars(args).get("api_key", _server_key()),
        )
    )
    if args.json:
        print(result.as_json())
    else:
        print_result(result, Console())
    for problem in result.problems:
        print(f"quire demo: {problem}", file=sys.stderr)
    return 1 if result.problems else 0
