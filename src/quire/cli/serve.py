"""`quire serve`: an engine in this process behind the HTTP server."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from quire.cli.options import (
    CommandParser,
    add_engine_options,
    add_option,
    chosen,
    engine_config,
)
from quire.config import EngineConfig, options_of
from quire.server.listen import Server, base_url, bind, is_loopback
from quire.server.settings import ServerSettings
from quire.version import __version__

if TYPE_CHECKING:
    from quire.engine.startup import EngineInfo

EXAMPLES = (
    "quire serve",
    "quire serve meta-llama/Llama-3.2-1B-Instruct --max-model-len 8K --port 9000",
    "QUIRE_API_KEY=secret quire serve ./my-model --host 0.0.0.0",
)


def make_parser() -> CommandParser:
    """All options of the command."""
    parser = CommandParser("serve", "Serve a model over HTTP with OpenAI's API.", EXAMPLES)
    group = parser.add_argument_group("server")
    for option in options_of(ServerSettings):
        add_option(group, option)
    add_engine_options(parser)
    return parser


def run(argv: Sequence[str]) -> int:
    """Serve until a signal comes."""
    begin = time.monotonic()
    args = make_parser().parse(argv)
    given = chosen(args, [option.name for option in options_of(ServerSettings)])
    for name in ("api_key", "admin_api_key"):
        if name not in given and (variable := f"QUIRE_{name.upper()}") in os.environ:
            given[name] = os.environ[variable]
    settings, config = ServerSettings(**given), engine_config(args)
    logging.basicConfig(
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("uvicorn").setLevel("WARNING")  # what it says at start and end, we say
    with bind(settings.host, settings.port) as sock, asyncio.Runner() as runner:
        runner.run(_serve(config, settings, sock, begin))
    return 0


async def _serve(
    config: EngineConfig, settings: ServerSettings, sock: socket.socket, begin: float
) -> None:
    from quire.engine.client import AsyncEngine
    from quire.server.app import build_app

    engine = await AsyncEngine.start(config)

    def say_ready() -> None:
        seconds = time.monotonic() - begin
        locked = settings.keys.are_asked_for
        text = ready_text(engine.info, base_url(sock), seconds, locked=locked)
        print(text, flush=True)
        if not locked and not is_loopback(sock):
            print("  note      other machines can reach this without a key; set --api-key")

    signal.signal(signal.SIGTERM, _leave)  # uvicorn raises it again once it has shut down
    await Server(build_app(engine, settings), settings, say_ready).serve(sockets=[sock])


def ready_text(info: EngineInfo, url: str, seconds: float, *, locked: bool) -> str:
    """What is said once requests can come."""
    key = " -H 'Authorization: Bearer '$QUIRE_API_KEY" if locked else ""
    limits = info.limits
    phases = ", ".join(f"{name} {spent:.1f} s" for name, spent in info.seconds.items())
    return f"""\
Quire {__version__} is ready at {url} after {seconds:.1f} s{f" ({phases})" if phases else ""}
  model     {info.model_name}: {info.dtype} on {info.device}, context {limits.max_model_len:,}
  KV cache  {limits.max_kv_tokens:,} tokens: {info.num_blocks:,} blocks of {info.block_size}, \
{info.kv_cache_bytes / 2**20:,.0f} MiB
  try       curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' \\
              -d '{{"messages": [{{"role": "user", "content": "hello"}}]}}'"""


def _leave(*_: object) -> NoReturn:
    raise SystemExit(0)
