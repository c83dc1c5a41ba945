"""`quire serve`: the parent of an engine process and of the processes that speak HTTP."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec

from quire.cli.options import (
    CommandParser,
    add_engine_options,
    add_option,
    chosen,
    engine_config,
)
from quire.config import EngineConfig, options_of
from quire.engine.info import EngineInfo
from quire.engine.supervisor import Supervisor, SupervisorSettings
from quire.logs import LogOptions, configure_logging
from quire.server.listen import base_url, bind, is_loopback
from quire.server.settings import ServerSettings
from quire.version import __version__

LAST_SECONDS = 5.0  # beyond shutdown_timeout, for API processes to end by themselves

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
    configure_logging(_log_options(settings))
    with bind(settings.host, settings.port) as listener:
        return asyncio.run(_serve(config, settings, listener, begin))


def _log_options(settings: ServerSettings) -> LogOptions:
    return LogOptions(settings.log_level, settings.log_format)


async def _serve(
    config: EngineConfig, settings: ServerSettings, listener: socket.socket, begin: float
) -> int:
    """Run until a signal comes; a second one cuts what still runs, a third one everything."""
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, signals.put_nowait, number)
    processes = SupervisorSettings(
        worker_module="quire.server.worker",
        worker_settings=msgspec.msgpack.encode(settings),
        num_workers=settings.api_server_count,
        hang_timeout=settings.engine_hang_timeout,
        log=_log_options(settings),
    )
    async with Supervisor(processes, listener) as supervisor:

        async def work() -> None:
            (info,) = await supervisor.start({config.model.model: config})
            _say_ready(info, settings, listener, time.monotonic() - begin)
            await supervisor.run()

        ended_by = await _until_signal(work(), signals)
        for grace in (settings.shutdown_timeout + LAST_SECONDS, LAST_SECONDS):
            if await _until_signal(supervisor.stop(grace), signals) is None:
                break
    return 130 if ended_by is signal.SIGINT else 0


async def _until_signal(
    work: Coroutine[Any, Any, None], signals: asyncio.Queue[signal.Signals]
) -> signal.Signals | None:
    """Run `work` to its end, or to the next signal, which is returned."""
    task = asyncio.create_task(work)
    came = asyncio.create_task(signals.get())
    await asyncio.wait({task, came}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        came.cancel()
        task.result()
        return None
    task.cancel()
    await asyncio.wait({task})
    return came.result()


def _say_ready(
    info: EngineInfo, settings: ServerSettings, listener: socket.socket, seconds: float
) -> None:
    locked = settings.keys.are_asked_for
    print(ready_text(info, base_url(listener), seconds, locked=locked), flush=True)
    if not locked and not is_loopback(listener):
        print("  note      other machines can reach this without a key; set --api-key", flush=True)


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
  page      {url}/
  try       curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' \\
              -d '{{"messages": [{{"role": "user", "content": "hello"}}]}}'"""
