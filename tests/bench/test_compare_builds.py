"""How two builds are compared: equal loads in turn, ratios of neighbouring measurements."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import compare_builds
import pytest
from compare_builds import Comparison, level_of
from workloads.build_ratios import Ratios
from workloads.build_rows import SERVED, SERVED_ON_CPU, Load

LOADS = [load for row in (SERVED | SERVED_ON_CPU).values() for load in row.loads]


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_a_load_has_all_of_its_requests(load: Load) -> None:
    load = replace(load, level=10 * load.level) if load.share_of else load
    level = level_of(load, 1000, 5)
    assert level == level_of(load, 1000, 5)  # of both builds
    assert level.stop_after >= compare_builds.PATIENCE
    assert len(level.seeds) == (len(level.offsets) if load.workload.is_open else load.count)
    assert 0.5 * load.count <= len(level.seeds) <= 1.5 * load.count


def test_the_builds_alternate_in_being_first(tmp_path: Path) -> None:
    args = argparse.Namespace(seconds=1.0, name="found", out=tmp_path, device="cpu")
    builds: Any = (None, None)
    compare = Comparison(builds, args)
    assert [compare.in_turn() for _ in range(3)] == [(0, 1), (1, 0), (0, 1)]


def test_a_share_is_of_the_slower_builds_newest_rate(tmp_path: Path) -> None:
    args = argparse.Namespace(seconds=1.0, name="found", out=tmp_path, device="cpu")
    builds: Any = (None, None)
    compare = Comparison(builds, args)
    for build, value in ((0, 1.0), (0, 12.0), (1, 10.0)):
        compare.ratios.add("prompts 400/20 8 at a time", "req_s", build, value)
    *_, load = SERVED_ON_CPU["prompts"].loads
    found = compare._at_rate("prompts", load)
    assert (found.level, found.name) == (8.0, load.name)
    assert compare._at_rate("prompts", LOADS[0]) == LOADS[0]


def test_a_ratio_is_of_measurements_beside_one_another(tmp_path: Path) -> None:
    ratios = Ratios("found", tmp_path, "cpu")
    for build, value in ((0, 10.0), (1, 11.0), (1, 36.0), (0, 30.0), (0, 10.0), (1, 30.0)):
        ratios.add("8b", "itl_p50", build, value)
    ratios.add("8b", "lat_p50", 0, 1.0)  # the other build failed
    ratios.errors.append("why")
    ratios.save()
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["errors"] == ["why"]
    (row,) = found["rows"]
    assert (row["ratio"], row["least"], row["most"], row["n"]) == (1.2, 1.1, 3.0, 3)


def test_undisturbed_values_are_the_best_tenth_of_each_build(tmp_path: Path) -> None:
    ratios = Ratios("found", tmp_path, "cpu")
    for step in range(21):
        for build in (0, 1):
            slow = (step + 7 * build) % 3 == 0  # other programs run, at different times
            ratios.add("int8", "cpu tok_s", build, (50.0 if slow else 100.0) * (1 + build))
            ratios.add("int8", "load_s", build, (8.0 if slow else 4.0) / (1 + build))
    assert {row["figure"]: row["undisturbed"] for row in ratios.rows()} == {
        "cpu tok_s": 2.0,
        "load_s": 0.5,
    }
