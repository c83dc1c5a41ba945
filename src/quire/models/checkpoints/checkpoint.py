"""A checkpoint's folder: its safetensors files, and the tensors that they hold together.

What one file's header claims is checked in safetensors_header.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from quire.config_file import ConfigFile
from quire.dtypes import CHECKPOINT_DTYPES, MODEL_DTYPES, SAFETENSORS
from quire.errors import CheckpointError
from quire.model_folder import GGUF_LINK, named_path, unreadable
from quire.models.checkpoints.safetensors_header import TensorEntry, read_header

if TYPE_CHECKING:
    from torch import Tensor


class Checkpoint:
    """The tensors of a checkpoint's safetensors files, each listed once.

    is_as_stored: whether tensors are the bytes of the files, without a change. mismatch_fix: what
    to do where they are not those of the model.
    """

    is_as_stored = True
    mismatch_fix = "check that config.json and the safetensors files belong together"

    def __init__(self, folder: Path, entries: dict[str, TensorEntry]) -> None:
        self.folder = folder
        self.entries = entries

    @property
    def origin(self) -> Path:
        """The folder or file that a user has, for messages."""
        return self.folder

    @property
    def missing_prefix(self) -> str:
        """The prefix that all names lack, as those of a model that was saved without its head."""
        return "" if any(name.startswith(PREFIX) for name in self.entries) else PREFIX

    def stored_name(self, name: str) -> str:
        """The name that a tensor has in the files."""
        return name

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        """Find the files of a folder, and read and check their headers.

        Raises CheckpointError naming the file and the byte where a claim is wrong.
        """
        files, promised = find_files(folder)
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
                    f"the index of {folder} puts {name} into {file.name}, which does not hold it; "
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
        from quire.models.checkpoints.mapped_file import MappedFile  # which needs NumPy

        for file, here in groupby(self.in_file_order(names), key=lambda entry: entry.file):
            try:
                mapped = MappedFile(file)
            except OSError as error:
                raise unreadable(file, error) from error
            for entry in here:
                yield entry, mapped.tensor(entry)
                mapped.forget(entry)


def has_numbers(folder: Path, name: str) -> bool:
    """Whether a folder's files have this tensor as numbers of 16 bits or more.

    False where it has no weights that are read, which is not an error here.
    """
    with suppress(CheckpointError):
        entries = (entry for file in find_files(folder)[0] for entry in read_header(file))
        return any(entry.name == name and entry.dtype in CHECKPOINT_DTYPES for entry in entries)
    return False


def stored_dtype(folder: Path) -> str:
    """The name of the data type that most numbers of a folder's weights have, codes left out.

    UNKNOWN_DTYPE where it has no weights that are read, which is not an error here.
    """
    found = Counter[str]()
    with suppress(CheckpointError):  # who loads them raises it
        for file in find_files(folder)[0]:
            for entry in read_header(file):
                found[SAFETENSORS[entry.dtype].name] += entry.num_items
    return max(MODEL_DTYPES, key=lambda name: found[name]) if found else UNKNOWN_DTYPE


# Before weights are downloaded: more would refuse, for want of memory, models that fit.
UNKNOWN_DTYPE = "bfloat16"
INDEX = "model.safetensors.index.json"
PREFIX = "model."  # of all names but the head's
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")


def find_files(folder: Path) -> tuple[list[Path], dict[str, Path]]:
    """The safetensors files of a checkpoint, and each tensor's file if it is sharded."""
    link = folder / GGUF_LINK
    if link.is_symlink():
        raise CheckpointError(
            f"{link.resolve()} is a GGUF file, which cannot be used for this; name the folder of "
            "the model that it was made of, with safetensors files"
        )
    single = folder / "model.safetensors"
    if single.is_file():
        return [single], {}
    if (folder / INDEX).is_file():
        return _read_index(folder / INDEX)
    files = sorted(folder.glob("*.safetensors"))
    if len(files) == 1:
        return files, {}
    if len(others := list(folder.glob("*.safetensors.index.json"))) == 1:  # AutoGPTQ's
        return _read_index(others[0])
    if files:
        raise CheckpointError(
            f"{folder} has {len(files)} safetensors files but no {INDEX}; download it too"
        )
    pickles = sorted(f.name for f in folder.glob("*") if f.suffix in _PICKLES)
    if pickles:
        raise CheckpointError(
            f"{named_path(folder)} has its weights as a Python pickle ({pickles[0]}), which can "
            "run any code when it is opened, so it is not; take a checkpoint with safetensors files"
        )
    raise CheckpointError(
        f"{named_path(folder)} has no safetensors files; name a folder with a complete checkpoint"
    )


def _read_index(path: Path) -> tuple[list[Path], dict[str, Path]]:
    """A sharded checkpoint by its index: its files, and each tensor's file."""
    index, folder = ConfigFile.read(path), path.parent
    names = index.get("weight_map")
    if not isinstance(names, dict) or not names:
        raise index.wrong("weight_map", "must be an object from tensor names to file names")
    for name, own in names.items():
        if not isinstance(own, str) or Path(own).name != own or "\0" in own:
            raise index.wrong(
                "weight_map", f"gives {name} the file {own!r}, which must be a file name"
            )
    files = {own: folder / own for own in sorted(set(names.values()))}
    for file in files.values():
        if not file.is_file():
            raise CheckpointError(f"{file} is missing, but {path.name} names it; download it")
    return list(files.values()), {name: files[own] for name, own in names.items()}
