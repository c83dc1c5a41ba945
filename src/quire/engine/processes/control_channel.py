"""The line between the supervisor and each of its children: typed messages on a socket pair.

It is the child's standard input: settings come in on it (never on the command line, where other
users could read them), reports go out on it, and its end means that the parent has died. Owns the
messages and their framing. Requests do not travel here: see ipc.py.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from typing import Literal

import msgspec

from quire.config import EngineConfig
from quire.engine.core.engine_info import EngineInfo
from quire.errors import CheckpointError, ConfigError, EngineError, QuireError
from quire.logs import LogOptions

MAX_CONTROL_BYTES = 1 << 20

_LENGTH = struct.Struct("<I")
_PR_SET_PDEATHSIG = 1
_ERRORS: dict[str, type[QuireError]] = {
    error.__name__: error for error in (ConfigError, CheckpointError, EngineError)
}


class StartEngine(msgspec.Struct, frozen=True, kw_only=True, tag="start_engine"):
    """To an engine process: load this. address, page_path: where requests and status go.

    epoch: how often the engine was started before. num_restarts: how often because one had died.
    """

    config: EngineConfig
    epoch: int
    num_restarts: int = 0
    address: str
    page_path: str
    log: LogOptions


class EngineStarted(msgspec.Struct, frozen=True, kw_only=True, tag="engine_started"):
    """From an engine process: requests can come."""

    info: EngineInfo


class StartFailed(msgspec.Struct, frozen=True, kw_only=True, tag="start_failed"):
    """From a child: it cannot start. kind: the name of the error's class."""

    kind: str
    message: str

    @classmethod
    def by(cls, error: QuireError) -> StartFailed:
        """For this reason."""
        return cls(kind=type(error).__name__, message=str(error))

    def as_error(self) -> QuireError:
        """The error, to be raised in this process."""
        return _ERRORS.get(self.kind, EngineError)(self.message)


class ForgetClient(msgspec.Struct, frozen=True, kw_only=True, tag="forget_client"):
    """To an engine process: this client has died, and so have its requests."""

    client: str


ModelState = Literal["unloaded", "loading", "loaded", "unloading"]


class ModelStatus(msgspec.Struct, frozen=True, kw_only=True, tag="model_condition"):
    """To an API process: how a model is now. at_start: the server is not ready without it.

    num_bytes: what it takes while it is loaded, None as long as that is not known. failure: why it
    could not be loaded or kept, to be tried again after retry_after seconds.
    """

    name: str
    state: ModelState
    at_start: bool
    max_num_seqs: int
    num_bytes: int | None = None
    failure: str = ""
    retry_after: float = 1.0


class LoadModel(msgspec.Struct, frozen=True, kw_only=True, tag="load_model"):
    """From an API process: somebody waits for this model."""

    name: str


class UnloadModel(msgspec.Struct, frozen=True, kw_only=True, tag="unload_model"):
    """From an API process: end this model, when its requests are done or after grace seconds."""

    name: str
    grace: float


class ReleaseModel(msgspec.Struct, frozen=True, kw_only=True, tag="leave_model"):
    """To an API process: begin no more requests with this model, and answer by ModelReleased.

    grace: seconds for those that run; with none, the model stays if there are any.
    """

    name: str
    grace: float


class ModelReleased(msgspec.Struct, frozen=True, kw_only=True, tag="model_left"):
    """From an API process: nothing of it uses the model any more, unless it says no."""

    name: str
    agreed: bool


class StartWorker(msgspec.Struct, frozen=True, kw_only=True, tag="start_worker"):
    """To an API process. client: its name towards engines. settings: the server's, as msgpack.

    listener, admin: file descriptors of the listening sockets, the public one and, for one of the
    processes, that of the admin endpoints. metrics_folder: shared by all API processes.
    models: all that the server has; the first is for requests that name none.
    """

    client: str
    settings: bytes
    models: list[ModelStatus] = []
    listener: int
    admin: int | None = None
    metrics_folder: str
    log: LogOptions


class WorkerReady(msgspec.Struct, frozen=True, kw_only=True, tag="worker_ready"):
    """From an API process: it accepts connections."""


class EngineUp(msgspec.Struct, frozen=True, kw_only=True, tag="engine_up"):
    """To an API process: this engine can be reached, for the first time or again."""

    name: str
    config: EngineConfig
    info: EngineInfo
    address: str
    page_path: str


class EngineDown(msgspec.Struct, frozen=True, kw_only=True, tag="engine_down"):
    """To an API process: this engine has ended. will_return: another one is being started.

    why: otherwise, in words for those whose requests end with it.
    """

    name: str
    will_return: bool
    why: str = ""


Control = (
    StartEngine
    | EngineStarted
    | StartFailed
    | ForgetClient
    | StartWorker
    | WorkerReady
    | EngineUp
    | EngineDown
    | ModelStatus
    | LoadModel
    | UnloadModel
    | ReleaseModel
    | ModelReleased
)

_decoder: msgspec.msgpack.Decoder[Control] = msgspec.msgpack.Decoder(Control)


def pack(message: Control) -> bytes:
    """One message as it goes on the line."""
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


def unpack(body: bytes) -> Control | None:
    """The message that stands in a frame, without its length; None for what is none."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


async def read_control(reader: asyncio.StreamReader) -> Control | None:
    """The next message, None at the end of the line and for what is no message."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > MAX_CONTROL_BYTES:
            return None
        return unpack(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


class ParentConnection:
    """A child's end of the line. From its making on, the child dies with its parent."""

    def __init__(self) -> None:
        self._socket = socket.socket(fileno=os.dup(0))
        self._file = self._socket.makefile("rb")
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        # not in the group that a terminal's Ctrl-C goes to, a child may write there all the same
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        _die_with_parent()

    def send(self, message: Control) -> None:
        """Tell the parent."""
        self._socket.sendall(pack(message))

    def receive(self) -> Control:
        """Wait for a message; ends the process at the end of the line, or if it is none."""
        header = self._file.read(_LENGTH.size)
        length = _LENGTH.unpack(header)[0] if len(header) == _LENGTH.size else 0
        body = self._file.read(length) if length <= MAX_CONTROL_BYTES else b""
        message = unpack(body) if len(body) == length else None
        if message is None:
            os._exit(1)  # nobody is left to tell; other threads may hang, so this is not exit()
        return message

    def follow(self, on_message: Callable[[Control], None]) -> None:
        """Receive in a thread of its own from now on."""

        def run() -> None:
            while True:
                on_message(self.receive())

        threading.Thread(target=run, name="quire-parent", daemon=True).start()


def _die_with_parent() -> None:
    """Ask the kernel to kill this process with its parent, for when no thread of it can run."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
