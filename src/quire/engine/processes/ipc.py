"""Requests and outputs between processes: msgpack frames over ZeroMQ on a unix socket.

Owns the sockets and the limits of frames. A frame to the engine is a list of messages; a frame from
it is a step's output for one client. Nothing is unpickled; invalid frames are counted and dropped.
The folder of the sockets is accessible to this user alone.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Iterable

import msgspec
import zmq

from quire.core.messages import AddRequest, EngineMessage, StepOutput
from quire.engine.processes.outbox import Outbox
from quire.errors import EngineError, QuireError, invalid_value

logger = logging.getLogger(__name__)

MAX_FRAME_BYTES = 64 << 20
MAX_UNREAD_FRAMES = 1000  # per client; further deltas wait in its outbox
FLUSH_BYTES = 1 << 20  # at most, of messages that are sent in one frame

# What decoding may raise: msgspec's errors are ValueErrors, except for too deep nesting.
UNREADABLE = (ValueError, RecursionError, QuireError)

_READ_AT_ONCE = 1000  # frames, so that a flood cannot keep the engine from running steps
# of frames to a client: 6,000 tokens, or log-probabilities that keep its event loop for 20 ms
_READ_BYTES = 256 << 10


class Sent(enum.Enum):
    """The result of sending a frame to a client."""

    OK = enum.auto()
    FULL = enum.auto()  # the client does not read; try again later
    GONE = enum.auto()  # the client has disconnected, or died


class EngineSocket:
    """The engine's end: any number of clients with unique names."""

    def __init__(self, address: str) -> None:
        self.num_bad_frames = 0
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        self._socket.setsockopt(zmq.SNDHWM, MAX_UNREAD_FRAMES)
        self._socket.setsockopt(zmq.RCVHWM, 0)  # admission bounds what clients send
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.bind(address)
        self._decoder = msgspec.msgpack.Decoder(list[EngineMessage])
        self._encoder = msgspec.msgpack.Encoder()

    def receive(self, timeout: float = 0.0) -> list[tuple[bytes, list[EngineMessage]]]:
        """Received messages by client, oldest first. timeout: seconds to wait for the first."""
        if timeout and not self._socket.poll(round(timeout * 1000)):
            return []
        found: list[tuple[bytes, list[EngineMessage]]] = []
        for _ in range(_READ_AT_ONCE):
            try:
                client, *parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            messages = self._decode(parts)
            if messages is not None:
                found.append((client, messages))
        return found

    def send(self, client: bytes, step: StepOutput) -> Sent:
        """Send a step's output to a client; never blocks."""
        try:
            self._socket.send_multipart((client, self._encoder.encode(step)), zmq.NOBLOCK)
        except zmq.Again:
            return Sent.FULL
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return Sent.GONE
        return Sent.OK

    def close(self) -> None:
        """Close the socket; undelivered frames are dropped."""
        self._context.destroy()

    def _decode(self, parts: list[bytes]) -> list[EngineMessage] | None:
        try:
            (frame,) = parts
            return self._decoder.decode(frame)
        except UNREADABLE:
            self.num_bad_frames += 1
            return None


class EngineConnection:
    """A client's connection to one engine process.

    on_step: called on the event loop, with all steps that have arrived joined to one.
    """

    def __init__(self, address: str, client: str, on_step: Callable[[StepOutput], None]) -> None:
        self.num_bad_frames = 0
        self._on_step = on_step
        self._loop = asyncio.get_running_loop()
        # of the process: a new one would end it where too few file descriptors are left
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, MAX_UNREAD_FRAMES)
        self._socket.setsockopt(zmq.MAXMSGSIZE, -1)
        self._socket.setsockopt(zmq.IDENTITY, client.encode())
        self._socket.connect(address)
        self._decoder = msgspec.msgpack.Decoder(StepOutput)
        self._encoder = msgspec.msgpack.Encoder()
        self._is_open = True
        self._fd = int(self._socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._fd, self._read)

    def send(self, messages: Iterable[EngineMessage]) -> dict[str, QuireError]:
        """Send messages in as few frames as their sizes allow; see `EngineLink.send`."""
        failures: dict[str, QuireError] = {}
        frame, num_bytes = list[msgspec.Raw](), 0
        for message in messages:
            try:
                data = self._encode(message)
            except QuireError as error:
                if isinstance(message, AddRequest):  # others are small
                    failures[message.request_id] = error
                continue
            if num_bytes + len(data) > FLUSH_BYTES:
                self._send_frame(frame)
                frame, num_bytes = [], 0
            frame.append(msgspec.Raw(data))
            num_bytes += len(data)
        self._send_frame(frame)
        self._read()  # sending may consume the signal that frames have arrived
        return failures

    def _encode(self, message: EngineMessage) -> bytes:
        """One message of a frame. Raises QuireError."""
        try:
            data = self._encoder.encode(message)
        except Exception:  # such as for text that UTF-8 does not have
            logger.exception("a request could not be sent")
            raise EngineError("the request could not be sent") from None
        if len(data) > MAX_FRAME_BYTES // 2:
            raise invalid_value(
                "prompt", f"the request takes {len(data)} bytes; send a shorter one"
            )
        return data

    def close(self) -> None:
        """Read what has already arrived, then disconnect."""
        self._loop.remove_reader(self._fd)
        while self._read():
            pass
        self._is_open = False
        self._socket.close()

    def _send_frame(self, messages: list[msgspec.Raw]) -> None:
        if messages and self._is_open:
            self._socket.send(self._encoder.encode(messages), zmq.NOBLOCK)

    def _read(self) -> bool:
        """Deliver frames that have arrived, joined to one step; whether there may be more.

        A frontend that lags behind the engine so detokenizes several steps at once, and catches up.
        All frames are read, because ZeroMQ signals their arrival only once; many of them, or large
        ones, in several turns of the event loop.
        """
        steps: list[StepOutput] = []
        has_more, num_bytes = self._is_open, 0
        while has_more and len(steps) < _READ_AT_ONCE and num_bytes < _READ_BYTES:
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
                num_bytes += len(frame)
                steps.append(self._decoder.decode(frame))
            except zmq.Again:
                has_more = False
            except UNREADABLE:
                self.num_bad_frames += 1
                logger.warning("an invalid frame from the engine was dropped")
        if has_more:
            self._loop.call_soon(self._read)
        if steps:
            step = _joined(steps)
            step.stats.num_bad_frames += self.num_bad_frames
            self._on_step(step)
        return has_more


def _joined(steps: list[StepOutput]) -> StepOutput:
    if len(steps) == 1:
        return steps[0]
    box = Outbox()
    for step in steps:
        for delta in step.deltas:
            box.put(delta)
    view = next((step.view for step in steps if step.view is not None), None)
    return StepOutput(deltas=list(box.ready.values()), stats=steps[-1].stats, view=view)
