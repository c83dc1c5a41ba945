"""The channel between parent and children: invalid messages close it and raise nothing."""

from __future__ import annotations

import asyncio
import io
import socket
import struct
import sys
from collections.abc import Iterator

import msgspec
import pytest
from child_process import run_to_end
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_frame_fuzz import DEEP, LIARS, frames

from quire.config import EngineConfig
from quire.core.request_limits import RequestLimits
from quire.engine.core.engine_info import EngineInfo
from quire.engine.processes import control_channel
from quire.engine.processes.control_channel import (
    MAX_CONTROL_BYTES,
    ControlMessage,
    EngineDown,
    EngineStarted,
    EngineUp,
    LoadModel,
    ModelReleased,
    ModelStatus,
    ParentConnection,
    ReleaseModel,
    StartEngine,
    StartFailed,
    StartWorker,
    UnloadModel,
    WorkerReady,
    pack,
    read_control,
    unpack,
)
from quire.logs import LogOptions

LIMITS = RequestLimits(
    max_model_len=8, max_kv_tokens=9, vocab_size=10, max_num_seqs=2, hidden_size=4
)
INFO = EngineInfo("m", LIMITS, [1], "float32", "cpu", 5, 16, 100)
CONFIG, LOG = EngineConfig(), LogOptions("info", "text")
CONDITION = ModelStatus(name="m", state="loaded", at_start=True, max_num_seqs=2)
MESSAGES: list[ControlMessage] = [
    StartEngine(config=CONFIG, epoch=1, address="a", memory=4, page=1, log=LOG),
    EngineStarted(info=INFO),
    StartFailed(kind="ConfigError", message="no"),
    StartWorker(
        row=0,
        client="0.1",
        settings=b"\x80",
        models=[CONDITION],
        listeners=[3],
        memory=4,
        counters=5,
        metrics_folder="f",
        log=LOG,
    ),
    WorkerReady(),
    EngineUp(name="m", config=CONFIG, info=INFO, address="a", page=1),
    EngineDown(name="m", will_return=True),
    CONDITION,
    LoadModel(name="m"),
    UnloadModel(name="m", grace=1.0),
    ReleaseModel(name="m", number=3, grace=1.0),
    ModelReleased(name="m", number=3, agreed=True),
]
WHOLE = [msgspec.msgpack.encode(message) for message in MESSAGES]
LENGTHS = st.integers(0, 300) | st.just(MAX_CONTROL_BYTES) | st.integers(0, 2**32 - 1)


class ExitedError(Exception):
    """Raised in place of ending the process."""


@pytest.fixture(scope="module", autouse=True)
def no_exit() -> Iterator[None]:
    def leave(_status: int) -> None:
        raise ExitedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(control_channel.os, "_exit", leave)
        yield


def as_parent(line: bytes) -> ControlMessage | None:
    """What the parent reads from a child that writes these bytes and ends."""

    async def read() -> ControlMessage | None:
        reader = asyncio.StreamReader()
        reader.feed_data(line)
        reader.feed_eof()
        return await read_control(reader)

    return asyncio.run(read())


def test_a_child_has_the_channel_and_no_other_descriptor() -> None:
    """Its standard input is empty from then on, as what it starts would read the channel."""
    code = """
import os
from quire.engine.processes.control_channel import ParentConnection

before = set(os.listdir("/proc/self/fd"))
channel = ParentConnection()
assert os.read(0, 1) == b""
print(len(set(os.listdir("/proc/self/fd")) - before))
"""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        done = run_to_end([sys.executable, "-c", code], stdin=theirs)
    assert (done.stdout, done.stderr) == ("1\n", "")


def as_child(line: bytes) -> ControlMessage | None:
    """What a child reads from its parent; None if it exits."""
    child = object.__new__(ParentConnection)  # its making would take this process's standard input
    child._file = io.BytesIO(line)
    try:
        return child.receive()
    except ExitedError:
        return None


def test_each_kind_of_message_is_known() -> None:
    assert {type(message) for message in MESSAGES} == set(ControlMessage.__args__)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_what_is_packed_is_read(message: ControlMessage) -> None:
    assert as_parent(pack(message)) == as_child(pack(message)) == message


@settings(max_examples=80)
@given(body=frames(WHOLE))
@example(body=DEEP[0])
@example(body=DEEP[1])
@example(body=LIARS[0])
@example(body=b"")
@example(body=b"\x81\xa4type\xa1\xff")
def test_a_damaged_message_is_read_alike_or_not_at_all(body: bytes) -> None:
    line = struct.pack("<I", len(body)) + body
    found = as_parent(line)
    assert found == as_child(line)
    assert found is None or unpack(msgspec.msgpack.encode(found)) == found


@settings(max_examples=40)
@given(length=LENGTHS, body=frames(WHOLE), cut=st.integers(0, 6))
def test_a_wrong_length_ends_the_line(length: int, body: bytes, cut: int) -> None:
    line = (struct.pack("<I", length) + body)[cut:]
    found = as_parent(line)
    assert found == as_child(line)
    assert found is None or cut or found == unpack(body[:length])
