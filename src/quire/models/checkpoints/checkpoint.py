"""Safetensors files: which tensors a checkpoint holds, and their bytes.

Owns the check of everything the files claim, before a byte of memory is taken for a weight. The
format: 8 bytes with the header's length N, N bytes of JSON, then the tensors without gaps.
(https://huggingface.co/docs/safetensors)
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.dtypes import SAFETENSORS
from quire.errors import CheckpointError
from quire.models.checkpoints.config_file import ConfigFile

if TYPE_CHECKING:
    from torch import Tensor

_LARGEST_HEADER = 100_000_000  # bytes; the format's own limit


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor as a header describes it; offset counts bytes from the start of the file."""

    name: str
    file: Path
    dtype: str  # the format's name, such as "BF16"
    shape: tuple[int, ...]
    offset: int
    num_bytes: int

    @property
    def num_items(self) -> int:
        """Numbers in it."""
        return math.prod(self.shape)

    def wrong(self, problem: str) -> CheckpointError:
        """An error that says where the tensor is."""
        return CheckpointError(
            f"{self.file}: {self.name} at byte {self.offset}: {problem}; download the file again, "
            "or check that config.json belongs to it"
        )


class Checkpoint:
    """The tensors of a folder, each once."""

    def __init__(self, folder: Path, entries: dict[str, TensorEntry]) -> None:
        self.folder = folder
        self.entries = entries

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        """Find the files of a folder, and read and check their headers.

        Raises CheckpointError naming the file and the byte where a claim is wrong.
        """
        files, promised = _find_files(folder)
        entries: dict[str, TensorEntry] = {}
        for file in files:
            for entry in read_header(file):
                if entry.name in entries:
                    first = entries[entry.name].file.name
                    raise entry.wrong(f"it is in {first} already")
                entries[entry.name] = entry
        for name, file in promised.items():
            if name not in entries or entries[name].file != file:
                raise CheckpointError(
                    f"{folder / _INDEX} puts {name} into {file.name}, which does not hold it; "
                    "download the checkpoint again"
                )
        return cls(folder, entries)

    def in_file_order(self, names: set[str]) -> list[TensorEntry]:
        """The named tensors, file by file in order of their bytes."""
        wanted = [entry for name, entry in self.entries.items() if name in names]
        return sorted(wanted, key=lambda entry: (entry.file, entry.offset))

    def tensors(self, names: set[str]) -> Iterator[tuple[TensorEntry, Tensor]]:
        """The named tensors, file by file in order of their bytes, as views of the mapped file.

        A tensor's pages are given back when the next one is asked for.
        """
        from quire.models.checkpoints.mapped_file import MappedFile

        for file, here in groupby(self.in_file_order(names), key=lambda entry: entry.file):
            try:
                mapped = MappedFile(file)
            except OSError as error:
                raise CheckpointError(
                    f"{file} cannot be read ({error.strerror}); check that it is there"
                ) from error
            for entry in here:
                yield entry, mapped.tensor(entry)
                mapped.forget(entry)


_INDEX = "model.safetensors.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")


def _find_files(folder: Path) -> tuple[list[Path], dict[str, Path]]:
    """The safetensors files that make up the checkpoint, and what its index promises."""
    single = folder / "model.safetensors"
    if single.is_file():
        return [single], {}
    if (folder / _INDEX).is_file():
        return _read_index(folder)
    files = sorted(folder.glob("*.safetensors"))
    if len(files) == 1:
        return files, {}
    if files:
        raise CheckpointError(
            f"{folder} has {len(files)} safetensors files but no {_INDEX}; download it too"
        )
    pickles = sorted(f.name for f in folder.glob("*") if f.suffix in _PICKLES)
    if pickles:
        raise CheckpointError(
            f"{folder} has its weights as a Python pickle ({pickles[0]}), which can run any code "
            "when it is opened, so it is not; take a checkpoint with safetensors files"
        )
    raise CheckpointError(
        f"{folder} has no safetensors files; give a folder with a whole checkpoint"
    )


def _read_index(folder: Path) -> tuple[list[Path], dict[str, Path]]:
    index = ConfigFile.read(folder / _INDEX)
    names = index.get("weight_map")
    if not isinstance(names, dict) or not names:
        raise index.wrong("weight_map", "must be an object from tensor names to file names")
    promised = {}
    for name, file in names.items():
        if not isinstance(file, str) or Path(file).name != file or "\0" in file:
            raise index.wrong("weight_map", f"gives {name} the file {file!r}; it must be a name")
        promised[name] = folder / file
    files = sorted(set(promised.values()))
    for path in files:
        if not path.is_file():
            raise CheckpointError(f"{path} is missing, but {_INDEX} names it; download it")
    return files, promised


def read_header(path: Path) -> list[TensorEntry]:
    """The tensors of one file, in order of their bytes, after checking all that it claims.

    Raises CheckpointError with the file's name and a byte offset.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, _LARGEST_HEADER):
                raise _damaged(
                    path, 0, f"it says that the header has {length} bytes, of {size} in all"
                )
            header = file.read(length)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read ({error.strerror}); check that it is there"
        ) from error
    start = 8 + length
    entries = [_entry(path, header, start, *item) for item in _parse(path, header)]
    entries.sort(key=lambda entry: (entry.offset, entry.num_bytes))
    end = start
    for entry in entries:
        if entry.offset != end:
            kind = "overlaps the tensor before" if entry.offset < end else "leaves a gap before"
            raise _damaged(path, entry.offset, f"{entry.name} {kind}, which ends at byte {end}")
        end += entry.num_bytes
    if end != size:
        kind = "is cut off" if end > size else "goes on after its last tensor"
        raise _damaged(path, min(end, size), f"the file {kind}: {size} bytes, not {end}")
    return entries


def _damaged(path: Path, offset: int, problem: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is damaged at byte {offset}: {problem}; download the file again"
    )


def _parse(path: Path, header: bytes) -> list[tuple[str, Any]]:
    """The (name, description) pairs of the header."""
    try:
        pairs = json.loads(header, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise _damaged(path, 8 + error.pos, f"the header is not JSON ({error.msg})") from error
    except (ValueError, RecursionError) as error:
        raise _damaged(path, 8, f"the header is not JSON ({error})") from error
    if not isinstance(pairs, dict):
        raise _damaged(path, 8, "the header is not a JSON object")
    return [(name, value) for name, value in pairs.items() if name != "__metadata__"]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys must differ."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _entry(path: Path, header: bytes, start: int, name: str, value: Any) -> TensorEntry:
    """Check one tensor's description by itself."""
    place = 8 + max(0, header.find(json.dumps(name, ensure_ascii=False).encode(errors="replace")))
    value = value if isinstance(value, dict) else {}
    dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in SAFETENSORS:
        raise _damaged(path, place, f"{name} has the unknown dtype {dtype!r}")
    if not _is_list_of_sizes(shape):
        raise _damaged(path, place, f"{name} has the shape {shape!r}")
    if not _is_list_of_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _damaged(path, place, f"{name} has the data_offsets {offsets!r}")
    begin, end = offsets
    if (end - begin) * 8 != math.prod(shape) * SAFETENSORS[dtype].bits:
        raise _damaged(
            path, place, f"{name}, {dtype} {shape}, does not fit its {end - begin} bytes"
        )
    return TensorEntry(name, path, dtype, tuple(shape), start + begin, end - begin)


def _is_list_of_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**62 for n in value
    )
