"""Cores that may be used, by files like those of the kernel."""

from __future__ import annotations

import os
from pathlib import Path

from quire.engine.startup.cpu_cores import physical_cores, usable_cores


def test_threads_of_one_core_count_once(tmp_path: Path) -> None:
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    assert physical_cores({0, 1, 2, 3}, tmp_path) == 2
    assert physical_cores({0, 2}, tmp_path) == 1
    assert physical_cores({0, 9}, tmp_path) == 2  # nothing is known of the other


def test_this_machine() -> None:
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
