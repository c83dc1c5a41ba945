"""The control channel between the server supervisor and each child: messages on a socket pair.

It is the child's standard input. Settings come in on it (never on the command line, where other
users could read them), reports go out, and its end means that the parent has died. Owns the
messages and their framing. Requests and outputs use ipc.py instead.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
from collections.abc import Callable
from typing import Literal

import msgspec

from quire.config import EngineConfig
from quire.engine.core.engine_info import EngineInfo
from quire.errors import CheckpointError, ConfigError, EngineError, QuireError
from quire.logs import LogOptions
from quire.processes import die_with_parent, start_thread

MAX_CONTROL_BYTES = 1 << 20

_LENGTH = struct.Struct("<I")
_ERRORS: dict[str, type[QuireError]] = {
    error.__name__: error for error in (ConfigError, CheckpointError, EngineError)
}


class StartEngine(msgspec.Struct, frozen=True, kw_only=True, tag="start_engine"):
    """To an engine process: load this model.

    address: of the ZeroMQ socket. memory: file descriptor of the shared memory; page: number of the
    status page. epoch: number of processes that the model had before; num_restarts: how many of
    its starts followed a death.
    """

    config: EngineConfig
    epoch: int
    num_restarts: int = 0
    address: str
    memory: int
    page: int
    log: LogOptions


class EngineStarted(msgspec.Struct, frozen=True, kw_only=True, tag="engine_started"):
    """From an engine process: it accepts requests."""

    info: EngineInfo


class StartFailed(msgspec.Struct, frozen=True, kw_only=True, tag="start_failed"):
    """From a child: it cannot start. kind: the name of the error's class."""

    kind: str
    message: str

    @classmethod
    def by(cls, error: Exception) -> StartFailed:
        """The message that reports an error."""
        message = str(error) if isinstance(error, QuireError) else repr(error)  # KeyError('a')
        return cls(kind=type(error).__name__, message=message)

    def as_error(self) -> QuireError:
        """The error that the child reported."""
        return _ERRORS.get(self.kind, EngineError)(self.message)


ModelState = Literal["unloaded", "loading", "loaded", "unloading"]


class ModelStatus(msgspec.Struct, frozen=True, kw_only=True, tag="model_status"):
    """To an API process: the current state of a model.

    aliases: further names that requests may use. at_start: loaded with the server, which is not
    ready before. num_bytes: memory while loaded; None if unknown. failure: why it could not be
    loaded or kept running; loading is tried again after retry_after seconds. quality: figures of
    the weights' quality report as the server started; None if there is none.
    """

    name: str
    state: ModelState
    at_start: bool
    max_num_seqs: int
    num_bytes: int | None = None
    failure: str = ""
    retry_after: float = 1.0
    aliases: list[str] = []
    quality: dict[str, bool | float | str] | None = None


class LoadModel(msgspec.Struct, frozen=True, kw_only=True, tag="load_model"):
    """From an API process: load this model, a request waits for it."""

    name: str


class UnloadModel(msgspec.Struct, frozen=True, kw_only=True, tag="unload_model"):
    """From an API process: unload this model after its requests, or after grace seconds."""

    name: str
    grace: float


class ReleaseModel(msgspec.Struct, frozen=True, kw_only=True, tag="release_model"):
    """To an API process: start no more requests with this model, and reply with ModelReleased.

    number: of the question, for the reply. grace: seconds for running requests; with 0, those that
    wait for the model count, too.
    """

    name: str
    number: int
    grace: float


class ModelReleased(msgspec.Struct, frozen=True, kw_only=True, tag="model_released"):
    """From an API process: its reply to ReleaseModel. agreed: it no longer uses the model."""

    name: str
    number: int
    agreed: bool


class StartWorker(msgspec.Struct, frozen=True, kw_only=True, tag="start_worker"):
    """Message to an API process: serve HTTP.

    row: its number among the API processes, of its status page and its counters. client: its name
    towards engines. settings: the server's, as msgpack. listeners, admin: file descriptors of the
    listening sockets, public and (for one process) of the admin endpoints. memory, counters: those
    of shared memory, for pages and for what is in flight. metrics_folder: shared by all API
    processes. models: the first is the default.
    """

    row: int
    client: str
    settings: bytes
    models: list[ModelStatus] = []
    listeners: list[int]
    admin: int | None = None
    memory: int
    counters: int
    metrics_folder: str
    log: LogOptions


class WorkerReady(msgspec.Struct, frozen=True, kw_only=True, tag="worker_ready"):
    """From an API process: it accepts connections."""


class EngineUp(msgspec.Struct, frozen=True, kw_only=True, tag="engine_up"):
    """To an API process: this engine accepts requests, for the first time or again."""

    name: str
    config: EngineConfig
    info: EngineInfo
    address: str
    page: int


class EngineDown(msgspec.Struct, frozen=True, kw_only=True, tag="engine_down"):
    """To an API process: this engine has ended. will_return: another one is being started.

    is_blameless: none of its requests can have caused that. is_unload: it was ended on purpose, and
    has not failed. why: if none returns, the error message for its unfinished requests.
    """

    name: str
    will_return: bool
    is_blameless: bool = False
    is_unload: bool = False
    why: str = ""


ControlMessage = (
    StartEngine
    | EngineStarted
    | StartFailed
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

_decoder: msgspec.msgpack.Decoder[ControlMessage] = msgspec.msgpack.Decoder(ControlMessage)


def pack(message: ControlMessage) -> bytes:
    """A message as bytes, with its length."""
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


def unpack(body: bytes) -> ControlMessage | None:
    """The message in a frame, without the length; None if it is invalid."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, ConfigError, RecursionError, UnicodeDecodeError):
        return None


async def read_control(reader: asyncio.StreamReader) -> ControlMessage | None:
    """The next message; None at the end of the stream and for an invalid one."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > MAX_CONTROL_BYTES:
            return None
        return unpack(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


class ParentConnection:
    """A child's end of the control channel. Once it exists, the child dies with its parent."""

    def __init__(self) -> None:
        self._socket = socket.socket(fileno=os.dup(0))
        self._file = self._socket.makefile("rb")
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        # a child outside the terminal's foreground process group may still write to it
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        die_with_parent()

    def send(self, message: ControlMessage) -> None:
        """Send a message to the parent."""
        self._socket.sendall(pack(message))

    def receive(self) -> ControlMessage:
        """Wait for a message; exits this process at the end of the channel or if it is invalid."""
        header = self._file.read(_LENGTH.size)
        length = _LENGTH.unpack(header)[0] if len(header) == _LENGTH.size else 0
        body = self._file.read(length) if length <= MAX_CONTROL_BYTES else b""
        message = unpack(body) if len(body) == length else None
        if message is None:
            os._exit(1)  # the parent is gone; not exit(), as other threads may hang
        return message

    def follow(self, on_message: Callable[[ControlMessage], object]) -> None:
        """Receive messages in a thread from now on. Raises OverloadedError."""

        def run() -> None:
            while True:
                on_message(self.receive())

        start_thread(run, "quire-parent")
