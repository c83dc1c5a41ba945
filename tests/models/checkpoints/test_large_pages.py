"""Asking for large pages works also where there are none."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest

from quire.models.checkpoints import large_pages
from quire.models.checkpoints.large_pages import (
    LARGE_PAGE,
    ask_for_large_pages,
    read_in_large_pages,
)


@pytest.mark.skipif(sys.platform != "linux", reason="pages are Linux's")
def test_the_begin_of_a_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_pages, "_WINDOW", LARGE_PAGE)
    path = tmp_path / "file"
    path.write_bytes(bytes(2 * LARGE_PAGE + 5))
    with path.open("rb") as file:
        assert read_in_large_pages(file.fileno(), 2 * LARGE_PAGE + 5)
        assert read_in_large_pages(file.fileno(), 0)
        assert not read_in_large_pages(file.fileno(), 4 * LARGE_PAGE)  # which the file has not
        monkeypatch.setattr(large_pages, "_POPULATE_READ", 10_000)  # as an older system knows none
        assert not read_in_large_pages(file.fileno(), LARGE_PAGE)


def test_nothing_is_asked_where_no_page_is_large(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(LARGE_PAGE + 5))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        ask_for_large_pages(mapped, LARGE_PAGE - 1)
        ask_for_large_pages(mapped, LARGE_PAGE + 5)
        assert mapped[LARGE_PAGE] == 0
