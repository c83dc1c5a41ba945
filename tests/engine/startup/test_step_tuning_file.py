"""What steps cost, kept from one start to the next."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from quire.config import ModelSettings
from quire.engine.startup import step_tuning, step_tuning_file
from quire.engine.startup.step_tuning import StepTable
from quire.engine.startup.step_tuning_file import steps_of
from quire.hub import resolve_model
from quire.models.config.model_config import ModelConfig

NUMBERS = ("bfloat16", "bfloat16", 16)
TABLE = StepTable(2, {2: 0.1, 1: 0.2}, {1: 0.1, 8: 0.12}, {32: 0.3})
OTHER = StepTable(2, {2: 0.05}, {1: 0.05}, {32: 0.2})

Seen = list[StepTable | None]


def start(
    folder: Path | str, seen: Seen, found: StepTable | None = None, **other: Any
) -> StepTable:
    """One start, which notes what was kept and measures `found`, or finds that the kept holds."""

    def measure(kept: StepTable | None) -> StepTable:
        seen.append(kept)
        table = found or kept
        assert table is not None
        return table

    config = ModelSettings(
        prepared_weights=str(folder), quantization=other.get("quantization", "none")
    )
    model_config = ModelConfig.from_folder(resolve_model(other.get("model", "quire-tiny")))
    numbers = other.get("numbers", NUMBERS)
    return steps_of(config, model_config, numbers, other.get("candidates", [2, 1]), measure)


def test_a_second_start_is_told_what_the_first_one_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_tuning_file, "BELIEVED_SECONDS", 0)
    seen: Seen = []
    assert start(tmp_path / "new", seen, TABLE) == TABLE
    assert start(tmp_path / "new", seen) == TABLE
    assert start(tmp_path / "new", seen, TABLE.slowed(3.0)).decodes[1] > 0.2  # a busy moment
    assert start(tmp_path / "new", seen, OTHER) == OTHER  # that was a busy one, too: this stays
    assert start(tmp_path / "new", seen) == OTHER
    assert seen == [None, TABLE, TABLE, TABLE, OTHER]
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["steps.json"]


def test_a_table_that_held_is_believed_for_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: Seen = []
    start(tmp_path, seen, TABLE)
    start(tmp_path, seen)
    assert start(tmp_path, seen, OTHER) == TABLE
    now = time.time()
    for seconds in (86400, -3600):  # a day later, and where the clock was wrong
        monkeypatch.setattr("time.time", lambda seconds=seconds: now + seconds)
        start(tmp_path, seen)
    assert seen == [None, TABLE, TABLE, TABLE]
    assert start(tmp_path, seen, OTHER) == TABLE


@pytest.mark.parametrize(
    "other",
    [
        {"quantization": "int8"},
        {"model": "quire-tiny-draft"},
        {"numbers": ("bfloat16", "int8", 16)},
        {"numbers": ("float32", "bfloat16", 16)},
        {"numbers": ("bfloat16", "bfloat16", 32)},
        {"candidates": [1]},
    ],
)
def test_what_steps_depend_on_has_a_table_of_its_own(tmp_path: Path, other: dict[str, Any]) -> None:
    seen: Seen = []
    start(tmp_path, seen, TABLE)
    start(tmp_path, seen, OTHER, **other)
    assert start(tmp_path, seen) == TABLE
    assert seen == [None, None, TABLE]


def test_an_other_machine_measures_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Seen = []
    start(tmp_path, seen, TABLE)
    monkeypatch.setattr(step_tuning_file, "_processor", lambda: "model name : another")
    start(tmp_path, seen, OTHER)
    assert seen == [None, None]


def test_without_a_folder_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    seen: Seen = []
    start("none", seen, TABLE)
    start("none", seen, TABLE)
    assert seen == [None, None]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", "[]", '{"x": {"num_threads": "many"}}'])
def test_a_file_that_says_nothing_costs_a_measurement(tmp_path: Path, text: str) -> None:
    (tmp_path / "steps.json").write_text(text)
    seen: Seen = []
    start(tmp_path, seen, TABLE)
    start(tmp_path, seen)
    assert seen == [None, TABLE]


@pytest.mark.parametrize(
    "table",
    [
        StepTable(0, {}, {1: 0.1}, {32: 0.3}),
        StepTable(1, {2: 0.4, 1: 0.1}, {1: 0.1}, {32: 0.3}),  # the choice of a busy moment?
        StepTable(2, {}, {8: 0.1}, {32: 0.3}),
        StepTable(2, {}, {1: 0.1}, {}),  # too slow a moment to come to prompts
        StepTable(2, {}, {1: 0.1}, {0: 0.3}),
        StepTable(2, {}, {1: 0.1}, {32: 0.0}),
    ],
)
def test_tables_that_something_speaks_against_are_not_used(
    tmp_path: Path, table: StepTable
) -> None:
    seen: Seen = []
    start(tmp_path, seen, table)
    start(tmp_path, seen, TABLE)
    assert seen == [None, None]


def test_another_build_measures_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Seen = []
    start(tmp_path, seen, TABLE)
    monkeypatch.setattr(step_tuning_file.native, "identity", lambda: "another")
    start(tmp_path, seen, OTHER)
    assert seen == [None, None]


def test_a_folder_that_cannot_be_written_costs_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    assert start(tmp_path / "file", [], TABLE) == TABLE
    assert "cannot be kept" in caplog.text


def test_one_that_came_with_its_table_costs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start(tmp_path, [], TABLE)
    monkeypatch.setattr("tempfile.NamedTemporaryFile", Mock(side_effect=PermissionError))
    assert start(tmp_path, []) == TABLE
    assert not caplog.text


def test_tables_made_first_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_tuning_file, "MOST_TABLES", 2)
    seen: Seen = []
    for candidates in ([2, 9], [2, 1], [2]):
        start(tmp_path, seen, TABLE, candidates=candidates)
    start(tmp_path, seen, OTHER, candidates=[2, 9])
    start(tmp_path, seen, candidates=[2])
    assert seen == [None, None, None, None, TABLE]


@pytest.mark.parametrize(("seconds", "times"), [(0.1, 1.0), (0.14, 1.0), (0.07, 1.0), (0.3, 3.0)])
def test_one_step_tells_how_long_all_take_now(seconds: float, times: float) -> None:
    found = step_tuning._as_of_now(lambda: seconds, TABLE)
    assert found is not None
    assert (found is TABLE) == (times == 1.0)
    assert found.decodes[8] == pytest.approx(0.12 * times)
    assert found.prompts[32] == pytest.approx(0.3 * times)


def test_the_table_of_a_busy_moment_does_not_stay() -> None:
    steps = iter([0.3, 0.05, 0.05])  # what is made at a first call is no part of a step
    assert step_tuning._as_of_now(lambda: next(steps), TABLE) is None
