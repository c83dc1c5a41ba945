"""Measured times of steps, stored from one start to the next."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from quire.config import ModelSettings
from quire.engine.startup import step_tuning_file
from quire.engine.startup.step_tuning import StepTable
from quire.engine.startup.step_tuning_file import steps_of
from quire.hub import resolve_model
from quire.models.config.model_config import ModelConfig

NUMBERS = ("bfloat16", "bfloat16", 16)
TABLE = StepTable(2, {2: 0.1, 1: 0.2}, {1: 0.1, 8: 0.12}, {32: 0.3})
OTHER = StepTable(2, {2: 0.05}, {1: 0.05}, {32: 0.2})


def start(folder: Path | str, found: StepTable, **other: Any) -> tuple[StepTable, bool]:
    """One start that would measure `found`: the table that it takes, and whether it measured."""
    measure = Mock(return_value=found)
    config = ModelSettings(
        prepared_weights=str(folder), quantization=other.get("quantization", "none")
    )
    model_config = ModelConfig.from_folder(resolve_model(other.get("model", "quire-tiny")))
    numbers = other.get("numbers", NUMBERS)
    table = steps_of(config, model_config, numbers, other.get("candidates", [2, 1]), measure)
    return table, measure.called


def test_a_table_is_valid_for_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, now = tmp_path / "new", step_tuning_file._uptime()
    assert start(folder, TABLE) == (TABLE, True)
    assert start(folder, OTHER) == (TABLE, False)
    assert [file.name for file in folder.iterdir()] == ["steps.json"]
    monkeypatch.setattr(step_tuning_file, "_uptime", lambda: now + 86_401)
    assert start(folder, OTHER) == (OTHER, True)
    for boot, table in (("another", TABLE), ("", OTHER)):  # the machine was started again
        monkeypatch.setattr(step_tuning_file, "_boot", lambda boot=boot: boot)
        assert start(folder, table) == (table, True)


@pytest.mark.parametrize("seconds", [-1e6, 1e6])
def test_a_clock_that_is_set_costs_no_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    start(tmp_path, TABLE)
    start(tmp_path, TABLE, candidates=[2, 9])
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now + seconds)
    assert start(tmp_path, OTHER) == (TABLE, False)
    assert start(tmp_path, OTHER, numbers=("float32", "bfloat16", 16)) == (OTHER, True)
    assert start(tmp_path, OTHER, candidates=[2, 9]) == (TABLE, False)


def test_a_table_of_an_older_version_costs_a_measurement(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start(tmp_path, TABLE)
    file = tmp_path / "steps.json"
    entries = msgspec.json.decode(file.read_bytes())
    for entry in entries.values():
        del entry["boot"]
        entry["measured_at"] = time.time()
    file.write_bytes(msgspec.json.encode(entries))
    assert start(tmp_path, OTHER) == (OTHER, True)
    assert not caplog.text


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
    start(tmp_path, TABLE)
    assert start(tmp_path, OTHER, **other) == (OTHER, True)
    assert start(tmp_path, OTHER) == (TABLE, False)


def test_another_machine_measures_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(tmp_path, TABLE)
    monkeypatch.setattr(step_tuning_file, "_processor", lambda: "model name : another")
    assert start(tmp_path, OTHER) == (OTHER, True)


def test_another_build_measures_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(tmp_path, TABLE)
    monkeypatch.setattr(step_tuning_file.native, "identity", lambda: "another")
    assert start(tmp_path, OTHER) == (OTHER, True)


def test_without_a_folder_nothing_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert start("none", TABLE) == start("none", TABLE) == (TABLE, True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", "[]", '{"x": {"measured_at": "now"}}'])
def test_a_file_that_cannot_be_read_costs_a_measurement(tmp_path: Path, text: str) -> None:
    (tmp_path / "steps.json").write_text(text)
    assert start(tmp_path, TABLE) == (TABLE, True)
    assert start(tmp_path, OTHER) == (TABLE, False)


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
def test_implausible_tables_are_not_used(tmp_path: Path, table: StepTable) -> None:
    start(tmp_path, table)
    assert start(tmp_path, TABLE) == (TABLE, True)


def test_a_folder_that_cannot_be_written_costs_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    assert start(tmp_path / "file", TABLE) == (TABLE, True)
    assert "cannot be stored" in caplog.text


def test_one_that_came_with_its_table_costs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start(tmp_path, TABLE)
    written = "quire.models.prepared.unfinished_file.unfinished_file"
    monkeypatch.setattr(written, Mock(side_effect=PermissionError))
    assert start(tmp_path, OTHER) == (TABLE, False)
    assert not caplog.text


def test_old_tables_leave_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(tmp_path, TABLE, candidates=[2, 9])
    now = step_tuning_file._uptime()
    monkeypatch.setattr(step_tuning_file, "_uptime", lambda: now + 86_401)
    start(tmp_path, TABLE)
    assert len(msgspec.json.decode((tmp_path / "steps.json").read_bytes())) == 1
