"""Result files and their tables: each row belongs to the run that measured it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from argparse import Namespace
from pathlib import Path

import cpu_attention
import prefix_caching
import pytest
import record
import serving_table
import tables
from child_process import run_to_end
from gpu_serving import _NO_TIME, Bench, Results
from workloads.plan import WORKLOADS

BENCHMARKS = Path(tables.__file__).parent
RUN = {"date": "2026-01-01", "command": "python first.py"}
MACHINE = {"hardware": {"cpu": "a cpu", "cores": 2}, "versions": {"torch": "2"}}


@pytest.mark.parametrize(("variable", "option", "folder"), [
    ("", [], "local-results"), ("1", [], "results"), ("", ["--save"], "results"),
])  # fmt: skip
def test_a_try_leaves_recorded_results_as_they_are(
    variable: str, option: list[str], folder: str, tmp_path: Path
) -> None:
    shutil.copy(record.__file__, tmp_path)
    code = "import record; args = record.parser('', 'x').parse_args()"
    code += "; print(record.save(args.name, {'rows': []}, args.out))"
    command = [sys.executable, "-c", code, *option]
    env = os.environ | {"QUIRE_RECORD": variable, "PYTHONPATH": ""}
    done = run_to_end(command, env=env, cwd=tmp_path, check=True)
    assert Path(done.stdout.strip()) == tmp_path / folder / "x.json"
    assert Path(done.stdout.strip()).is_file()
    assert ("QUIRE_RECORD=1 replaces" in done.stderr) == (folder != "results")


def test_a_row_that_stays_keeps_its_run(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    assert record.earlier_rows(file) == []
    file.write_text(json.dumps(RUN | {"rows": [{"a": 1}]}))
    (stored,) = record.earlier_rows(file)
    assert stored == RUN | {"a": 1}
    newer = {"date": "2026-02-02", "command": "python second.py", "rows": [stored, {"a": 2}]}
    text = tables.source("x", newer | MACHINE, "")
    assert text.startswith("2026-01-01 to 2026-02-02, a cpu, 2 cores")
    assert text.endswith("([x.json](benchmarks/results/x.json)).")
    joined = newer | {"command": "python a.py; b (2026-02-03): python c.py"} | MACHINE
    assert tables.source("x", joined, "").startswith("2026-01-01 to 2026-02-03, a cpu")
    file.write_text(json.dumps(newer))
    assert record.earlier_rows(file)[0] == stored
    assert "2026-02-02, a cpu" in tables.source("x", newer | MACHINE | {"rows": 16}, "")


def test_a_level_without_time_leaves_earlier_figures_alone(tmp_path: Path) -> None:
    bench = object.__new__(Bench)
    bench.num_failed, bench._results = 0, Results(tmp_path, "x")
    bench._row = lambda workload, level: {"workload": workload.name, "level": level}  # type: ignore[method-assign]
    bench._report_failure(WORKLOADS[0], 1, _NO_TIME)
    assert bench.num_failed == 1
    assert not [*tmp_path.iterdir()]
    bench._report_failure(WORKLOADS[0], 1, "it broke")
    assert json.loads((tmp_path / "x.json").read_text())["levels"][0]["errors"] == {"it broke": 1}


def test_a_level_that_failed_in_part_says_so() -> None:
    row = {"ok": 9, "n": 10, "errors": {"unfinished": 1}, "ttft_p50": 1.0}
    assert serving_table._cell(row, WORKLOADS[0]).endswith("(1 of 10 failed)")
    assert serving_table._cell(row | {"ok": 0}, WORKLOADS[0]) == "failed"
    assert serving_table._cell({}, WORKLOADS[0]) == "-"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("migration_tables.py", "name the page: python benchmarks/migration_tables.py"),
        ("gguf_files.py", "python gguf_files.py CHECKPOINT FILE [TYPE]; types: F32"),
        ("gguf_files.py a b c", "python gguf_files.py CHECKPOINT FILE [TYPE]; types: F32"),
        ("cpu_linear.py --layers x", "--layers: 'x' is none of "),
        ("endpoint_suites.py --rows /nope", "name a source tree by --source or --llama-cpp, or"),
    ],
)
def test_a_script_that_lacks_something_says_it_in_a_line(words: str, said: str) -> None:
    command = [sys.executable, *words.split()]
    done = run_to_end(command, cwd=BENCHMARKS)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert said in done.stderr


def test_a_program_saves_where_its_options_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["prefix_caching.py", "--prompts=2", "--input-len=48", "--shared-len=32"]
    monkeypatch.setattr(sys, "argv", [*words, "--name", "tried", "--out", str(tmp_path)])
    prefix_caching.main()
    assert "off / on: {" in capsys.readouterr().out
    assert json.loads((tmp_path / "tried.json").read_text())["prompts"] == 2


def test_attention_is_timed_compiled_and_by_pytorch() -> None:
    row = cpu_attention.measure("1B", [16], [16], Namespace(rounds=1, seconds=0.0))
    assert min(row["compiled_us"], row["torch_us"], row["floor_us"]) > 0


@pytest.mark.parametrize("name", ["markdown_table", "asdict", "Any", "_served", "__name__", "none"])
def test_what_is_no_table_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(tables.TableError, match=f"{name} is no table"):
        tables.table_maker(name)
