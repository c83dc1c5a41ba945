"""The page that others read while the engine writes, or after it has died."""

from __future__ import annotations

import stat
import time
from pathlib import Path

import pytest

from quire.engine.status_page import RING_WORDS, StatusPage, create_page


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


def test_readers_see_beats_and_their_age(path: Path) -> None:
    writer, reader = StatusPage(path, writable=True), StatusPage(path)
    writer.beat(3, has_work=True)
    assert (reader.num_steps, reader.has_work) == (3, True)
    time.sleep(0.02)
    assert 0.02 <= reader.age() < 5.0
    writer.beat(4, has_work=False)
    assert reader.age() < 0.02
    assert not reader.has_work


def test_readers_cannot_write(path: Path) -> None:
    with pytest.raises(TypeError):
        StatusPage(path).beat(1, has_work=True)


def test_it_tells_who_had_begun_also_after_the_writer_is_gone(path: Path) -> None:
    reader, writer = StatusPage(path), StatusPage(path, writable=True)
    writer.note_begun(["a", "b"])
    writer.close()
    assert reader.has_begun(["a", "b", "c"]) == {"a", "b"}


def test_the_ring_keeps_the_latest(path: Path) -> None:
    page = StatusPage(path, writable=True)
    page.note_begun(f"request-{number}" for number in range(RING_WORDS + 10))
    latest = [f"request-{number}" for number in range(10, RING_WORDS + 10)]
    assert page.has_begun(latest) == set(latest)
    assert len(page.has_begun(f"request-{number}" for number in range(10))) <= 1
