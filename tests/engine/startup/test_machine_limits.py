"""Memory and cores that a process may use, by files like those of the kernel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quire.engine.startup.machine_limits import (
    UNLIMITED,
    available_bytes,
    cpu_quota,
    memory_left,
    memory_limit,
    most_bytes,
    own_groups,
    physical_cores,
    usable_cores,
)


def write(group: Path, **texts: str) -> None:
    """Write files of a cgroup controller; underscores in names stand for dots."""
    group.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (group / name.replace("_", ".", 1)).write_text(f"{text}\n")


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


def test_memory_left_in_a_group_and_in_those_above_it(tmp_path: Path) -> None:
    inner, stat = tmp_path / "outer" / "inner", "anon 700\ninactive_file 200\nactive_file 100"
    write(inner, memory_max="max", memory_current="1000", memory_stat=stat)
    assert memory_left("0::/outer/inner\n", tmp_path) == UNLIMITED
    write(inner, memory_max="1500")
    assert memory_left("0::/outer/inner\n", tmp_path) == 800
    write(tmp_path / "outer", memory_max="1200", memory_current="1100", memory_stat=stat)
    assert memory_left("0::/outer/inner\n", tmp_path) == 400
    write(tmp_path / "outer", memory_current="9999")
    assert memory_left("0::/outer/inner\n", tmp_path) == 0


def test_the_lowest_limit_of_groups(tmp_path: Path) -> None:
    write(tmp_path / "outer" / "inner", memory_max="max")
    assert memory_limit("0::/outer/inner\n", tmp_path) == UNLIMITED
    write(tmp_path / "outer", memory_max="1200")
    assert memory_limit("0::/outer/inner\n", tmp_path) == 1200


def test_memory_left_by_files_of_the_older_kind(tmp_path: Path) -> None:
    write(
        tmp_path / "memory" / "box",
        memory_limit_in_bytes="1000",
        memory_usage_in_bytes="900",
        memory_stat="inactive_file 50",
    )
    assert memory_left("4:memory:/box\n3:cpu,cpuacct:/box\n", tmp_path) == 150
    write(tmp_path / "memory" / "box", memory_limit_in_bytes="9223372036854771712")
    assert memory_left("4:memory:/box\n", tmp_path) == UNLIMITED


def test_a_container_is_not_given_the_memory_of_its_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, memory_max=str(3 << 20), memory_current="0", memory_stat="anon 0")
    monkeypatch.setattr(
        "quire.engine.startup.machine_limits.memory_left",
        lambda listed: memory_left(listed, tmp_path),
    )
    monkeypatch.setattr("quire.engine.startup.machine_limits.own_groups", lambda: "0::/\n")
    assert available_bytes() == 3 << 20


def test_this_machine() -> None:
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
    assert memory_left(own_groups()) > 0
    assert most_bytes() >= available_bytes()


def test_threads_of_one_core_count_once(tmp_path: Path) -> None:
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    assert physical_cores({0, 1, 2, 3}, tmp_path) == 2
    assert physical_cores({0, 2}, tmp_path) == 1
    assert physical_cores({0, 9}, tmp_path) == 2  # nothing is known of the other
