"""`quire serve`: the parent of engine processes and of the processes that speak HTTP."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import msgspec

from quire.cli.banner import CHAT, example_request, key_in_shell, ready_text
from quire.cli.open_file_limit import raise_open_file_limit
from quire.cli.options import CommandParser, add_engine_options, add_option
from quire.cli.served_models import model_plans, read_config, server_settings
from quire.compat.environment import unread_variables
from quire.engine.processes.fleet_model import ModelSpec
from quire.engine.processes.model_fleet import ModelFleet
from quire.engine.processes.server_supervisor import ServerSupervisor, ServerSupervisorSettings
from quire.errors import ConfigError, UserError
from quire.logs import LogOptions, configure_logging
from quire.options import options_of
from quire.processes import require_threads, try_start
from quire.server.http.listen_address import (
    admin_address,
    base_url,
    bind_admin,
    bind_api,
    is_loopback,
)
from quire.server.settings import ServerSettings

LAST_SECONDS = 5.0  # beyond shutdown_timeout, for API processes to end by themselves
_THREADS = 5  # of this process, besides the main one
_CHILD_THREADS = 6  # of an engine or an API process, at the least
_OPEN_TO_ALL = "  note      other machines can reach this without a key; set --api-key"

EXAMPLES = (
    "quire serve",
    "quire serve meta-llama/Llama-3.2-1B-Instruct --max-model-len 8K --port 9000",
    "QUIRE_API_KEY=secret quire serve ./my-model --host 0.0.0.0",
    "quire serve --model chat=quire-tiny --model small=quire-tiny-draft",
    "quire serve --config models.yaml --model-memory-bytes 8G",
    "quire serve ./my-model --dry-run --gpu-memory-gib 80",
)


def make_parser() -> CommandParser:
    """The parser of the options of `quire serve`."""
    parser = CommandParser(
        "serve",
        "Serve a model over HTTP with OpenAI's API.",
        EXAMPLES,
        instead="use --model MODEL for each of several models",
    )
    parser.add_argument(
        "--model",
        dest="models",
        action="append",
        metavar="[NAME=]MODEL",
        help="a model to serve; repeat it for several; the first is the default",
    )
    parser.add_argument(
        "--config", metavar="FILE", help="YAML file with any of these options, or several models"
    )
    parser.add_switch("--dry-run", "print the planned memory use, and exit")
    parser.add_argument(
        "--gpu-memory-gib",
        type=float,
        metavar="X",
        help="with --dry-run: plan for a GPU of this size",
    )
    parser.add_switch("--json", "with --dry-run: print JSON")
    group = parser.add_argument_group("server")
    for option in options_of(ServerSettings):
        add_option(group, option)
    add_engine_options(parser)
    return parser


def run(argv: Sequence[str]) -> int:
    """Run `quire serve`: serve until a signal comes."""
    begin = time.monotonic()
    parser = make_parser()
    args = parser.parse(argv)
    read_config(args)
    try:
        return _run(args, partial(parser.in_flags, argv=argv), begin)
    except UserError as error:
        raise args.config.explained(error) if "config" in args else error from None


def _run(args: argparse.Namespace, in_flags: Callable[[str], str], begin: float) -> int:
    settings = server_settings(args)
    for notice in unread_variables(os.environ, vars(args)):
        print(f"note: {notice}", file=sys.stderr)
    locked = settings.keys.are_required  # a file of keys that cannot be read is reported at once
    from_environment = settings.api_key is not None and "api_key" not in vars(args)
    key = key_in_shell(settings, from_environment=from_environment) if locked else ""
    plans = model_plans(args, settings)
    if not args.dry_run and (args.json or "gpu_memory_gib" in args):
        name = "json" if args.json else "gpu_memory_gib"
        raise ConfigError(f"{name} is for --dry-run; use both or none")
    if args.dry_run:
        from quire.cli.dry_run import dry_run  # which reads models

        return dry_run(plans, args, in_flags, settings.model_memory_bytes)
    num_engines = max(1, sum(plan.at_start for plan in plans))
    num_threads = _THREADS + _CHILD_THREADS * (num_engines + settings.api_server_count)
    require_threads(num_threads, "this server")
    raise_open_file_limit()
    configure_logging(_log_options(settings))
    with (
        bind_api(settings.host, settings.port, settings.uds) as listeners,
        bind_admin(settings.admin_port, settings.admin_uds) as admin,
    ):
        return asyncio.run(_serve(plans, settings, listeners, admin, begin, key))


def _log_options(settings: ServerSettings) -> LogOptions:
    return LogOptions(settings.log_level, settings.log_format)


async def _serve(
    plans: Sequence[ModelSpec],
    settings: ServerSettings,
    listeners: Sequence[socket.socket],
    admin: socket.socket | None,
    begin: float,
    key: str,
) -> int:
    """Run until a signal comes; a second one cuts what still runs, a third one everything.

    key: how the example that is shown names a key.
    """
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in _ending_signals():
        asyncio.get_running_loop().add_signal_handler(number, signals.put_nowait, number)
    async with ServerSupervisor(_processes(settings), listeners, admin) as supervisor:
        fleet = ModelFleet(
            supervisor,
            plans,
            memory_bytes=settings.model_memory_bytes,
            idle_seconds=settings.idle_unload_seconds,
        )

        async def work() -> None:
            infos = await fleet.start()
            waiting = {each.name: each.failure for each in fleet.statuses() if not each.at_start}
            is_refused, config = bool(waiting.get(plans[0].name)), plans[0].config
            example = CHAT if is_refused else await asyncio.to_thread(example_request, config)
            text = ready_text(
                infos,
                waiting,
                base_url(listeners[0]),
                time.monotonic() - begin,
                key=key,
                admin=admin_address(admin) if admin else "",
                example=example,
            )
            print(text, *_notes(listeners, key), sep="\n", flush=True)
            try_start(settings.hosts.log_names, "quire-hosts")  # as it waits for DNS
            await supervisor.run()

        ended_by = await _until_signal(work(), signals)
        for grace in (settings.shutdown_timeout + LAST_SECONDS, LAST_SECONDS):
            if await _until_signal(supervisor.stop(grace), signals) is None:
                break
    return 130 if ended_by is signal.SIGINT else 0


def _processes(settings: ServerSettings) -> ServerSupervisorSettings:
    return ServerSupervisorSettings(
        worker_module="quire.server.worker",
        worker_settings=msgspec.msgpack.encode(settings),
        num_workers=settings.api_server_count,
        hang_timeout=settings.engine_hang_timeout,
        load_timeout=settings.engine_load_timeout,
        log=_log_options(settings),
    )


def _notes(listeners: Sequence[socket.socket], key: str) -> list[str]:
    """The lines after the banner: further addresses, and that anyone may use them."""
    others = [f"also at {base_url(listener)}" for listener in listeners[1:]]
    is_open = not key and not all(map(is_loopback, listeners))
    return [*others, _OPEN_TO_ALL] if is_open else others


def _ending_signals() -> list[signal.Signals]:
    """Those that end a server. A terminal that is closed sends SIGHUP, which nohup has ignored."""
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM] + [signal.SIGHUP] * (not is_ignored)


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
