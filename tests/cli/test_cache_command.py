"""`quire cache` lists and removes what Quire has stored, and nothing else."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path

import pytest
from prepared_files import wait_for_prepared_files
from safetensors.torch import save_file

from quire import LLM
from quire.cli import main
from quire.config import ModelSettings
from quire.kernels.cpu import native
from quire.model_folder import BUNDLED_FOLDER
from quire.models.prepared import prepared_files, prepared_weights
from quire.models.prepared.prepared_files import origin_of


def test_files_are_logged_listed_and_removed(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "model.safetensors").write_text("mine")
    monkeypatch.setattr(prepared_weights, "WORTH_BYTES", 1)
    caplog.set_level(logging.INFO, "quire")
    LLM(num_blocks=64, prepared_weights=tmp_path, quantization="int8")
    wait_for_prepared_files()
    (line,) = [
        r.getMessage() for r in caplog.records if "prepared weights stored" in r.getMessage()
    ]
    assert str(tmp_path) in line
    assert main(["cache", "--prepared-weights", str(tmp_path)]) == 0
    first, total, hub = capsys.readouterr().out.splitlines()
    assert first.split()[1] == "MiB"
    assert "  quire-tiny  bfloat16  int8  " in first
    assert total.startswith("1 file, ")
    assert "hf cache ls" in hub
    assert main(["cache", "rm", "tiny", "--prepared-weights", str(tmp_path)]) == 2
    assert "nothing is stored for 'tiny'" in capsys.readouterr().err
    assert main(["cache", "rm", "quire-tiny", "--prepared-weights", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("1 file, ")
    assert main(["cache", "clear", "--prepared-weights", str(tmp_path)]) == 0
    assert "removed" in capsys.readouterr().out
    left = {path.name for path in tmp_path.iterdir() if path.name != "steps.json"}
    assert left == {"notes.txt", "model.safetensors"}


@pytest.mark.parametrize(
    ("name", "removed"),
    [
        ("Qwen3-0.6B", ["hub", "local"]),
        ("Qwen/Qwen3-0.6B", ["hub"]),
        ("/m/Qwen3-0.6B/", ["local"]),
        ("m/Qwen3-0.6B", ["local"]),
        ("https://huggingface.co/Qwen/Qwen3-0.6B/tree/main", ["hub"]),
        ("/m/../m/Qwen3-0.6B", ["local"]),
        ("./mine/", ["here"]),
        ("link", ["here"]),
        ("~/mine", ["here"]),
        ("model.gguf", ["gguf"]),
        ("0.6B", []),
        ("Qwen", []),
        ("", None),
        ("/", None),
        (" ", None),
    ],
)
def test_a_model_by_its_names(
    name: str,
    removed: list[str] | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """removed: None where no model is named."""
    folder = tmp_path.resolve() / "mine"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "model.gguf").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    sources = {
        "hub": "/c/hub/models--Qwen--Qwen3-0.6B/snapshots/0a1b",
        "local": "/m/Qwen3-0.6B",
        "here": str(folder),
        "gguf": str(tmp_path.resolve() / "model.gguf"),
        "unknown": "",
    }
    files = {}
    for number, (kind, source) in enumerate(sources.items()):
        files[kind] = tmp_path / f"{number:024}-{'0' * 24}.safetensors"
        save_file({}, files[kind], metadata={"source": source} if source else None)
    assert main(["cache", "ls", name, "--prepared-weights", "."]) == (0 if removed else 2)
    assert all(file.exists() for file in files.values())
    assert main(["cache", "rm", name, "--prepared-weights", str(tmp_path)]) == (0 if removed else 2)
    assert [kind for kind, file in files.items() if not file.exists()] == (removed or [])
    refusal = "NAME must not be empty" if removed is None else "nothing is stored for"
    assert removed or refusal in capsys.readouterr().err


def test_several_models_are_removed_at_once_or_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {name: tmp_path / f"{name * 24}-{'0' * 24}.safetensors" for name in "abc"}
    for name, file in files.items():
        save_file({}, file, metadata={"source": f"/m/{name}"})
    own = ["--prepared-weights", str(tmp_path)]
    assert main(["cache", "rm", "a", "nothere", *own]) == 2
    assert "nothing is stored for 'nothere'" in capsys.readouterr().err
    assert all(file.exists() for file in files.values())
    assert main(["cache", "rm", "a", "c", *own]) == 0
    assert capsys.readouterr().out.startswith("2 files, ")
    assert [name for name, file in files.items() if file.exists()] == ["b"]


def test_files_of_models_that_are_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "here").mkdir()
    sources = {
        "here": str(tmp_path / "here"),
        "gone": str(tmp_path / "gone"),
        "hub": str(tmp_path / "models--a--b" / "snapshots" / "0a1b"),
        "unknown": "",
    }
    files = {}
    for number, (kind, source) in enumerate(sources.items()):
        files[kind] = tmp_path / f"{number:024}-{'0' * 24}.safetensors"
        save_file({}, files[kind], metadata={"source": source} if source else None)
    prepared = ["--prepared-weights", str(tmp_path)]
    assert main(["cache", "ls", *prepared]) == 0
    lines = capsys.readouterr().out.splitlines()
    marked = {kind for kind, file in files.items() for line in lines
              if line.endswith(f"  (gone)  {file.name}")}  # fmt: skip
    assert marked == {"gone", "hub"}
    assert main(["cache", "ls", "--gone", *prepared]) == 0
    assert capsys.readouterr().out.splitlines()[2].startswith("2 files, ")
    assert main(["cache", "rm", "gone", "--gone", *prepared]) == 0
    assert main(["cache", "rm", "here", "--gone", *prepared]) == 0
    assert [kind for kind, file in files.items() if not file.exists()] == ["gone"]
    assert main(["cache", "clear", "--gone", *prepared]) == 0
    assert [kind for kind, file in files.items() if file.exists()] == ["here", "unknown"]


def test_files_of_models_that_have_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are found by their names, so that no start uses them again."""
    monkeypatch.setattr(prepared_weights, "WORTH_BYTES", 1)
    model, prepared = tmp_path / "model", tmp_path / "prepared"
    shutil.copytree(BUNDLED_FOLDER / "quire-tiny-draft", model)
    for quantization in ("int8", "none"):
        LLM(model, num_blocks=64, prepared_weights=prepared, quantization=quantization)
        wait_for_prepared_files()
    options = ["--prepared-weights", str(prepared)]
    assert main(["cache", "ls", "--gone", *options]) == 0
    assert capsys.readouterr().out.startswith("0 files, ")
    os.utime(model / "model.safetensors", (1, 1))
    LLM(model, num_blocks=64, prepared_weights=prepared)
    wait_for_prepared_files()
    assert main(["cache", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sorted("(outdated)" in line for line in lines[:3]) == [False, True, True]
    assert main(["cache", "clear", "--gone", *options]) == 0
    assert capsys.readouterr().out.startswith("2 files, ")
    assert main(["cache", *options]) == 0
    assert "(outdated)" not in capsys.readouterr().out


def test_files_of_another_layout_are_outdated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Quire's version is the same, nothing else that is listed would say so."""
    model, config = tmp_path / "model", ModelSettings()
    model.mkdir()
    for layout in (prepared_files.LAYOUT - 1, prepared_files.LAYOUT):
        with monkeypatch.context() as then:
            then.setattr(prepared_files, "LAYOUT", layout)
            key = prepared_files.checkpoint_key(config, model)
        origin = origin_of(config, model, "float32")
        save_file({}, tmp_path / f"{key}-{'0' * 24}.safetensors", metadata=origin)
    assert main(["cache", "--prepared-weights", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()[:2]
    assert sorted("(outdated)" in line for line in lines) == [False, True]


def test_files_of_other_processors_stay_unless_they_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a shared home another machine uses them, whose models need not be on this one."""
    config, gone = ModelSettings(), str(tmp_path / "gone")
    files = {}
    for number, name in enumerate(("another", "", "here")):
        with monkeypatch.context() as there:
            there.setattr(native, "instruction_set", lambda name=name: name)
            origin = origin_of(config, Path(gone), "bfloat16")
        files[name] = tmp_path / f"{number:024}-{'0' * 24}.safetensors"
        save_file({}, files[name], metadata=origin)
    monkeypatch.setattr(native, "instruction_set", lambda: "here")
    options = ["--prepared-weights", str(tmp_path)]
    assert main(["cache", *options]) == 0
    lines = "\n".join(capsys.readouterr().out.splitlines()[:3])
    for mark in ("another", "PyTorch's kernels"):
        assert lines.count(f"{gone}  bfloat16  none  (for {mark})  ") == 1
    assert lines.count(f"{gone}  bfloat16  none  (gone)  ") == 1
    assert main(["cache", "clear", "--gone", *options]) == 0
    assert [name for name, file in files.items() if file.exists()] == ["another", ""]
    assert main(["cache", "clear", "--other-processors", *options]) == 0
    assert not any(file.exists() for file in files.values())


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        (json.dumps(["/m/mine", "int4", None]), "  int4"),
        (json.dumps(["/m/mine", "none", "*mlp*=int8"]), "  none *mlp*=int8"),
        (json.dumps(["/m/mine", "\x1b[31m", None]), ""),
        ("[1", ""),
        ("5", ""),
    ],
)  # fmt: skip
def test_the_quantization_of_a_file_is_as_its_start_was_given_it(
    key: str, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files of one model and several settings differ in nothing else that is listed."""
    file = tmp_path / f"{'0' * 24}-{'0' * 24}.safetensors"
    save_file({}, file, metadata={"source": "/m/mine", "key": key})
    assert main(["cache", "--prepared-weights", str(tmp_path)]) == 0
    (line, *_) = capsys.readouterr().out.splitlines()
    assert line.endswith(f"days  /m/mine{shown}  (gone)  {file.name}")


def test_lines_fit_a_terminal_and_their_paths_are_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / f"{'0' * 24}-{'0' * 24}.safetensors"
    save_file({}, file, metadata={"source": "/a/long/path/to/the/folder/of/models/mine"})
    command = ["cache", "ls", "--prepared-weights", str(tmp_path)]
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(command) == 0
    (line, *_) = capsys.readouterr().out.splitlines()
    assert line.endswith("days  .../folder/of/models/mine  (gone)")
    assert len(line) <= 60
    assert main([*command, "--full"]) == 0
    assert f"/to/the/folder/of/models/mine  (gone)  {file.name}\n" in capsys.readouterr().out
    assert main(["cache", "rm", ".../of/models/mine", *command[2:]]) == 0
    assert not file.exists()


def test_another_action(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "purge"]) == 2
    assert capsys.readouterr().err == "error: action must be one of ls, rm, clear, not 'purge'\n"
    assert main(["cache", "rm"]) == 2
    assert "NAME must not be empty" in capsys.readouterr().err


def test_a_folder_that_is_a_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "weights.safetensors"
    file.write_text("mine")
    assert main(["cache", "ls", "--prepared-weights", str(file)]) == 2
    assert "is a file; name its folder" in capsys.readouterr().err
