"""The page that others read while the engine writes, or after it has died."""

from __future__ import annotations

import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from quire.engine.processes import status_page
from quire.engine.processes.status_page import RING_WORDS, StatusPage, create_page


@pytest.fixture
def path(tmp_path: Path) -> Path:
    create_page(tmp_path / "page")
    return tmp_path / "page"


def test_only_this_user_can_read_it(path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        create_page(path)


def test_an_engine_that_still_loads_is_not_old(path: Path) -> None:
    page = StatusPage(path)
    assert (page.age(), page.num_steps, page.has_work) == (0.0, 0, False)


def test_readers_see_beats_and_their_age(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10**9
    monkeypatch.setattr(status_page, "time", SimpleNamespace(monotonic_ns=lambda: now))
    writer, reader = StatusPage(path, writable=True), StatusPage(path)
    writer.heartbeat(3, has_work=True)
    assert (reader.num_steps, reader.has_work, reader.age()) == (3, True, 0.0)
    now += 5 * 10**9
    assert (reader.age(), reader.last_work) == (5.0, 1.0)
    writer.heartbeat(4, has_work=False)
    assert (reader.has_work, reader.age(), reader.last_work) == (False, 0.0, 1.0)
    now += 10**9
    writer.heartbeat_within_step()
    assert (reader.num_steps, reader.age(), reader.last_work) == (4, 0.0, 7.0)


def test_readers_cannot_write(path: Path) -> None:
    with pytest.raises(TypeError):
        StatusPage(path).heartbeat(1, has_work=True)


def test_it_tells_who_had_begun_also_after_the_writer_is_gone(path: Path) -> None:
    reader, writer = StatusPage(path), StatusPage(path, writable=True)
    writer.record_started(["a", "b"])
    writer.close()
    assert reader.find_started(["a", "b", "c"]) == {"a", "b"}


def test_the_ring_keeps_the_latest(path: Path) -> None:
    page = StatusPage(path, writable=True)
    page.record_started(f"request-{number}" for number in range(RING_WORDS + 10))
    latest = [f"request-{number}" for number in range(10, RING_WORDS + 10)]
    assert page.find_started(latest) == set(latest)
    assert len(page.find_started(f"request-{number}" for number in range(10))) <= 1
