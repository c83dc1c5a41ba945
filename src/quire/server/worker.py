"""The API process: `python -m quire.server.worker`, started by the supervisor alone.

HTTP on a socket that the parent holds, engines in other processes. Owns how the two are joined:
the application is built when the engine can be reached, and told when it dies or comes back.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import msgspec
import uvloop

from quire.engine.client import AsyncEngine
from quire.engine.control import (
    Control,
    EngineDown,
    EngineUp,
    ParentLine,
    StartFailed,
    StartWorker,
    WorkerReady,
)
from quire.engine.ipc import ProcessLink
from quire.errors import QuireError
from quire.hub import tokenizer_folder
from quire.logs import configure_logging
from quire.server.app import build_app
from quire.server.listen import Server
from quire.server.settings import ServerSettings
from quire.tokenizer.tokenizer import Tokenizer

# Threads for what would hold the loop up, such as encoding long texts. A flood of those waits for
# one of these threads: with asyncio's own number (cores + 4) it would take the engine's cores.
NUM_HELPERS = max(2, (os.cpu_count() or 1) // 2)


def main() -> None:
    """Serve as the parent says, until it asks to end."""
    signal.signal(signal.SIGTERM, _leave)  # also what uvicorn raises again once it has shut down
    line = ParentLine()
    start = line.receive()
    assert isinstance(start, StartWorker)
    configure_logging(start.log)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_serve(line, start))
        except QuireError as error:
            line.send(StartFailed(kind=type(error).__name__, message=str(error)))


async def _serve(line: ParentLine, start: StartWorker) -> None:
    settings = msgspec.msgpack.decode(start.settings, type=ServerSettings)
    if start.client.partition(".")[0] != "0":  # of several processes, one has the admin endpoints
        settings = replace(settings, admin_port=None, admin_uds=None)
    engines = Engines(start.client)
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(NUM_HELPERS, "quire-helper"))
    line.follow(lambda message: _call(loop, engines, message))
    app = build_app(await engines.first, settings, Path(start.metrics_folder))
    server = Server(app, settings, on_ready=lambda: line.send(WorkerReady()))
    with socket.socket(fileno=start.listener) as listener:
        await server.serve(sockets=[listener])


class Engines:
    """The engines that this process knows. first: the engine, once it can be reached."""

    def __init__(self, client: str) -> None:
        self.first: asyncio.Future[AsyncEngine] = asyncio.get_running_loop().create_future()
        self._client = client
        self._links: dict[str, ProcessLink] = {}

    def handle(self, message: Control) -> None:
        """Take news from the supervisor."""
        match message:
            case EngineUp() if message.name in self._links:
                self._links[message.name].engine_returned(
                    message.info, message.address, message.page_path
                )
            case EngineUp():
                self._meet(message)
            case EngineDown() if message.name in self._links:
                self._links[message.name].engine_died(will_return=message.will_return)

    def _meet(self, up: EngineUp) -> None:
        link = self._links[up.name] = ProcessLink(self._client, up.address, up.page_path)
        try:
            tokenizer = Tokenizer.from_folder(tokenizer_folder(up.config))
        except QuireError as error:
            self.first.set_exception(error)
            return
        self.first.set_result(AsyncEngine(link, tokenizer, up.info, up.config.model.seed))


def _call(loop: asyncio.AbstractEventLoop, engines: Engines, message: Control) -> None:
    loop.call_soon_threadsafe(engines.handle, message)


def _leave(*_: object) -> NoReturn:
    raise SystemExit(0)


if __name__ == "__main__":
    main()
