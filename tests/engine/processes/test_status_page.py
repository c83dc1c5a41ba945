"""The page that others read while the engine writes, or after it has died."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from quire.engine.processes import status_page
from quire.engine.processes.status_page import RING_WORDS, StatusPage
from quire.shared_memory import PAGE_BYTES, clear_page, create_shared_memory

NUMBER = 3


@pytest.fixture
def memory() -> Iterator[int]:
    memory = create_shared_memory()
    clear_page(memory, NUMBER)
    yield memory
    os.close(memory)


def test_a_page_is_there_before_it_is_touched(memory: int) -> None:
    """Memory that is allocated later may not be there, and the process dies of SIGBUS."""
    assert os.fstat(memory).st_blocks * 512 == PAGE_BYTES
    StatusPage(memory, NUMBER, writable=True).record_started(map(str, range(RING_WORDS)))
    assert os.fstat(memory).st_blocks * 512 == PAGE_BYTES


def test_half_a_page_is_none(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written in part says so only by its number of bytes."""
    monkeypatch.setattr(os, "pwrite", lambda _fd, data, _at: len(data) // 2)
    with pytest.raises(OSError, match="No space"):
        clear_page(memory, NUMBER)


def test_a_page_can_be_used_again(memory: int) -> None:
    StatusPage(memory, NUMBER, writable=True).record_started(["a"])
    clear_page(memory, NUMBER)
    assert StatusPage(memory, NUMBER).find_started(["a"]) == set()


def test_an_engine_that_still_loads_is_not_old(memory: int) -> None:
    page = StatusPage(memory, NUMBER)
    assert (page.age(), page.num_steps, page.has_work) == (0.0, 0, False)


def test_readers_see_heartbeats_and_their_age(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10**9
    monkeypatch.setattr(status_page, "time", SimpleNamespace(monotonic_ns=lambda: now))
    writer, reader = StatusPage(memory, NUMBER, writable=True), StatusPage(memory, NUMBER)
    writer.heartbeat(3, has_work=True)
    assert (reader.num_steps, reader.has_work, reader.age()) == (3, True, 0.0)
    now += 5 * 10**9
    assert (reader.age(), reader.last_work) == (5.0, 1.0)
    writer.heartbeat(4, has_work=False)
    assert (reader.has_work, reader.age(), reader.last_work) == (False, 0.0, 1.0)
    now += 10**9
    writer.heartbeat_within_step()
    assert (reader.num_steps, reader.age(), reader.last_work) == (4, 0.0, 7.0)


def test_readers_cannot_write(memory: int) -> None:
    with pytest.raises(TypeError):
        StatusPage(memory, NUMBER).heartbeat(1, has_work=True)


def test_started_requests_are_readable_after_the_writer_ended(memory: int) -> None:
    reader, writer = StatusPage(memory, NUMBER), StatusPage(memory, NUMBER, writable=True)
    writer.record_started(["a", "b"])
    writer.close()
    assert reader.find_started(["a", "b", "c"]) == {"a", "b"}


def test_the_ring_keeps_the_latest(memory: int) -> None:
    page = StatusPage(memory, NUMBER, writable=True)
    page.record_started(f"request-{number}" for number in range(RING_WORDS + 10))
    latest = [f"request-{number}" for number in range(10, RING_WORDS + 10)]
    assert page.find_started(latest) == set(latest)
    assert len(page.find_started(f"request-{number}" for number in range(10))) <= 1
