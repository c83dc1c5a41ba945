"""A client that leaves interrupts what works for it, and nothing else does so silently."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message

from quire.server.http.disconnect import STATE_KEY, DisconnectWatch, unless_disconnected


async def silent() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


async def work(log: list[str]) -> None:
    log.append("begun")
    try:
        await asyncio.sleep(0)
        await asyncio.sleep(10)
    finally:
        log.append("ended")


def run(scope: dict[str, Any], then: Any, log: list[str], receive: Any = silent) -> None:
    async def main() -> None:
        task = asyncio.ensure_future(unless_disconnected(scope, receive, work(log)))
        await asyncio.sleep(0.001)
        then(task)
        await task
        assert task.cancelling() == 0
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_the_protocol_reports_it_without_a_task() -> None:
    disconnect_watch, log = DisconnectWatch(), list[str]()
    run({"state": {STATE_KEY: disconnect_watch}}, lambda _: disconnect_watch.disconnect(), log)
    assert log == ["begun", "ended"]


def test_who_has_left_already_gets_nothing_done() -> None:
    disconnect_watch, log = DisconnectWatch(), list[str]()
    disconnect_watch.disconnect()
    run({"state": {STATE_KEY: disconnect_watch}}, lambda _: None, log)
    assert log == []


def test_another_server_is_asked() -> None:
    gone, log = asyncio.Event(), list[str]()

    async def receive() -> Message:
        await gone.wait()
        return {"type": "http.disconnect"}

    run({"state": {}}, lambda _: gone.set(), log, receive)
    assert log == ["begun", "ended"]


def test_a_server_that_stops_is_heard() -> None:
    log = list[str]()
    with pytest.raises(asyncio.CancelledError):
        run({"state": {STATE_KEY: DisconnectWatch()}}, lambda task: task.cancel(), log)
    assert log == ["begun", "ended"]
