"""Modules that were read ahead are what they always are."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest

from quire.engine.startup.read_modules import FOLDERS, OUR_FOLDERS, ReadModules
from quire.engine.startup.torch_library import torch_folder


def test_a_module_that_was_read_is_found_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "read_package"
    (folder / "inner").mkdir(parents=True)
    for name in ("__init__.py", "one.py", "two.py", "inner/__init__.py"):
        (folder / name).write_text("x = __name__\n")
    monkeypatch.syspath_prepend(tmp_path)
    modules = ReadModules()
    modules.read("read_package", folder, lambda name: not name.endswith("two"))
    modules.read("read_package", tmp_path / "nowhere", lambda _: True)
    for name in ("one.py", "inner/__init__.py"):
        (folder / name).write_text("x = 'read late'\n")
    before = list(sys.meta_path)
    with modules.as_finder():
        from read_package import inner, one, two  # type: ignore[import-not-found]
    assert sys.meta_path == before
    assert (one.x, inner.x) == ("read_package.one", "read_package.inner")
    assert two.x == "read_package.two"
    assert inspect.getsource(one) == "x = 'read late'\n"
    assert modules.find_spec("read_package.one", None) is None


@pytest.mark.parametrize("text", [b"def f(:\n", b"x = '\xff'\n", b"\0"])
def test_one_that_cannot_be_read_is_left_to_who_imports_it(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "one.py").write_bytes(text)
    modules = ReadModules()
    modules.read("read_package", tmp_path, lambda _: True)
    assert modules.find_spec("read_package.one", None) is None


def test_a_torch_that_is_no_folder_is_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert torch_folder() == Path("/nowhere")


def test_the_folders_are_torchs() -> None:
    """Of the version that is installed here; one that has moved its files is as quick as it is."""
    assert all((torch_folder() / folder).is_dir() for folder in FOLDERS)


def test_ours_are_there() -> None:
    assert all(Path("src/quire", folder).is_dir() for folder in OUR_FOLDERS)
