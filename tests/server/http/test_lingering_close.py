"""What is dropped after a refusal is read slowly, by all connections of a process together."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import pytest

from quire.server.http.lingering_close import (
    BYTES_PER_SECOND,
    LONGEST_PAUSE,
    MOST_AT_ONCE,
    LingeringClose,
)

PIECE = bytes(1 << 20)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Mock:
    monkeypatch.setattr(LingeringClose, "_turn", 0.0)
    return Mock(spec=asyncio.AbstractEventLoop, time=Mock(return_value=100.0))


def transport() -> Mock:
    return Mock(spec=asyncio.Transport, is_closing=Mock(return_value=False))


def test_connections_are_read_one_after_the_other(loop: Mock) -> None:
    transports = [transport() for _ in range(3)]
    for each in transports:
        LingeringClose(loop, 5.0, 64 << 20).drop(each, PIECE)
        each.pause_reading.assert_called_once()
    begins = [call.args for call in loop.call_at.call_args_list]
    assert [at for at, _ in begins] == pytest.approx(
        [100.0 + n * len(PIECE) / BYTES_PER_SECOND for n in (1, 2, 3)]
    )
    assert [resume for _, resume in begins] == [each.resume_reading for each in transports]


def test_no_connection_waits_long(loop: Mock) -> None:
    for _ in range(2 * int(LONGEST_PAUSE * BYTES_PER_SECOND / len(PIECE))):
        LingeringClose(loop, 5.0, 64 << 20).drop(transport(), PIECE)
    assert loop.call_at.call_args.args[0] == 100.0 + LONGEST_PAUSE


def test_nothing_is_scheduled_once_the_connection_is_closed(loop: Mock) -> None:
    lingering, closed = LingeringClose(loop, 5.0, len(PIECE)), transport()
    lingering.drop(closed, PIECE)
    lingering.stop()
    loop.call_at.return_value.cancel.assert_called_once()
    closed.is_closing.return_value = True
    lingering.drop(closed, PIECE)
    closed.close.assert_called_once()
    loop.call_at.assert_called_once()


def test_of_too_many_the_first_one_is_closed(loop: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LingeringClose, "_active", {})
    transports = [transport() for _ in range(MOST_AT_ONCE + 2)]
    closes = [LingeringClose(loop, 5.0, 1 << 20) for _ in transports]
    for number, (close, each) in enumerate(zip(closes, transports, strict=True)):
        if number == MOST_AT_ONCE:
            closes[1].stop()  # it has ended by itself: there is room for one
        close.start(each)
    closed = [each.close.called for each in transports]
    assert closed == [True] + [False] * (MOST_AT_ONCE + 1)
