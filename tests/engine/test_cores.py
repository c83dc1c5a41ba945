"""Cores that may be used, by files like those of the kernel."""

from __future__ import annotations

import os
from pathlib import Path

from quire.engine.cores import cpu_quota, physical_cores, usable_cores


def test_threads_of_one_core_count_once(tmp_path: Path) -> None:
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    assert physical_cores({0, 1, 2, 3}, tmp_path) == 2
    assert physical_cores({0, 2}, tmp_path) == 1
    assert physical_cores({0, 9}, tmp_path) == 2  # nothing is known of the other


def test_quota_of_a_group_and_of_those_above_it(tmp_path: Path) -> None:
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    assert cpu_quota("0::/outer/inner\n", tmp_path) > 1e6
    (inner / "cpu.max").write_text("max 100000\n")
    assert cpu_quota("0::/outer/inner\n", tmp_path) > 1e6
    (tmp_path / "outer" / "cpu.max").write_text("350000 100000\n")
    assert cpu_quota("0::/outer/inner\n", tmp_path) == 3.5
    (inner / "cpu.max").write_text("50000 100000\n")
    assert cpu_quota("0::/outer/inner\n", tmp_path) == 0.5


def test_quota_in_files_of_the_older_kind(tmp_path: Path) -> None:
    group = tmp_path / "cpu" / "box"
    group.mkdir(parents=True)
    (group / "cpu.cfs_quota_us").write_text("200000\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    assert cpu_quota("4:memory:/box\n3:cpu,cpuacct:/box\n", tmp_path) == 2.0
    (group / "cpu.cfs_quota_us").write_text("-1\n")
    assert cpu_quota("3:cpu,cpuacct:/box\n", tmp_path) > 1e6


def test_this_machine() -> None:
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
