"""Models in several GGUF files: found by the name of one, refused where one is wrong or missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import write_gguf

from quire.errors import CheckpointError
from quire.gguf.gguf_parts import gguf_parts, read_gguf_parts

NAME = "m-{:05}-of-00003.gguf"


def write_parts(folder: Path, changes: dict[int, dict[str, Any]] | None = None) -> Path:
    """Three files with a tensor each; returns the first. changes: of their metadata."""
    for number in range(3):
        own = {"split.no": number, "split.count": 3, "split.tensors.count": 3}
        numbers = np.full((2, 32), number, np.float32)
        metadata = own | (changes or {}).get(number, {})
        write_gguf(folder / NAME.format(number + 1), metadata, {f"t{number}": ("F32", numbers)})
    return folder / NAME.format(1)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_all_are_found_by_the_name_of_one(number: int, tmp_path: Path) -> None:
    first = write_parts(tmp_path)
    files = gguf_parts(tmp_path / NAME.format(number))
    assert files == [tmp_path / NAME.format(each) for each in (1, 2, 3)]
    found = read_gguf_parts(files)
    assert found.path == first
    assert {name: each.file for name, each in found.tensors.items()} == {
        f"t{index}": file for index, file in enumerate(files)
    }


@pytest.mark.parametrize(
    "name", ["m.gguf", "m-1-of-3.gguf", "m-00000-of-00003.gguf", "m-00004-of-00003.gguf"]
)
def test_other_names_are_those_of_one_file(name: str) -> None:
    assert gguf_parts(Path(name)) == [Path(name)]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({1: {"split.no": 2}}, r"m-00002-of-00003.gguf: split.no is 2, but 1 by .*download all"),
        ({2: {"split.count": 4}}, r"m-00003-of-00003.gguf: split.count is 4, but 3 by"),
        ({0: {"split.tensors.count": 5}}, r"split.tensors.count is 5, but there are 3; download"),
    ],
)
def test_files_that_are_not_those_of_their_names(
    changes: dict[int, dict[str, Any]], text: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=text):
        read_gguf_parts(gguf_parts(write_parts(tmp_path, changes)))


def test_one_that_is_missing_is_named(tmp_path: Path) -> None:
    first = write_parts(tmp_path)
    (tmp_path / NAME.format(2)).unlink()
    with pytest.raises(CheckpointError, match=r"m-00002-of-00003.gguf cannot be read \(No such"):
        read_gguf_parts(gguf_parts(first))


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    first = write_parts(tmp_path)
    metadata = {"split.no": 2, "split.count": 3}
    write_gguf(tmp_path / NAME.format(3), metadata, {"t0": ("F32", np.ones(32, np.float32))})
    with pytest.raises(CheckpointError, match=r"t0 is in .*m-00001-of-00003.gguf, too; download"):
        read_gguf_parts(gguf_parts(first))


def test_a_part_under_another_name_says_what_to_do(tmp_path: Path) -> None:
    renamed = write_parts(tmp_path).rename(tmp_path / "renamed.gguf")
    with pytest.raises(CheckpointError, match=r"split.count is 3: download all .*-00001-of-00003"):
        read_gguf_parts(gguf_parts(renamed))
