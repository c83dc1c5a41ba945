"""A file of prepared weights, mapped and checked. No torch at import."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec
import numpy as np

from quire.array_types import Array
from quire.errors import CheckpointError
from quire.models.checkpoints.mapped_file import MappedFile
from quire.models.checkpoints.safetensors_header import STEP_BYTES, TensorEntry, read_header
from quire.models.prepared.prepared_files import FORMATS, note_use, read_metadata
from quire.processes import try_start
from quire.quantization.stored_weight import Description

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

CHECK = "check"  # a tensor of its own
_CHECKED = 256  # bytes at each place
_PIECE = 1 << 20  # bytes that are read at a time to check all
_CHECK_DELAY = 10.0  # seconds after a file was opened, when most starts are done
_REST = 19.0  # seconds without work for each of it, so that nothing else waits for a core

TensorBytes = Mapping[str, memoryview]  # by the name of the tensor
Kinds = Mapping[str, tuple[str, Sequence[int]]]  # type, as the format names it, and shape, by name
Formats = Mapping[str, Description]  # by the name of the module that has the weight

# a sentence on what is wrong with weights that this process has mapped, as it is found, by file
faults: dict[Path, str] = {}


class StoredArrays(msgspec.Struct, frozen=True):
    """A model's weights as arrays by name, and the formats of those of linear layers by module."""

    arrays: Mapping[str, Array]
    formats: Formats


def open_prepared(file: Path) -> PreparedFile | None:
    """The file, which has been used then; None if there is none that can be."""
    faults.pop(file, None)  # of a copy that was removed
    if not os.path.exists(file):  # nor where another user's folder hides it
        return None
    try:
        found = PreparedFile(file)
    except (CheckpointError, OSError, LookupError, ValueError) as error:
        of_system = error.__cause__ if isinstance(error, CheckpointError) else error
        if isinstance(of_system, OSError):  # another user's, or on a disk that does not answer
            logger.warning("%s cannot be used (%s)", file, of_system.strerror)
        else:
            discard(file, error)
        return None
    note_use(file)
    try_start(partial(_check_later, file), "quire-check")
    return found


def _check_later(file: Path) -> None:
    """Read all of a file that is in use, of which a start reads but a part."""
    time.sleep(_CHECK_DELAY)
    if damage := describe_damage(file, _REST):
        faults[file] = f"answers may be wrong, because {damage}"
        logger.error("%s", faults[file])


def describe_damage(file: Path, rest: float = 0.0) -> str:
    """Name a weight that is not as it was written, and what to do, once the file is removed.

    "" if there is none. rest: seconds to sleep for each second of work.
    """
    try:
        entries = {entry.name: entry for entry in read_header(file)}
        checks = MappedFile(file).array(entries.pop(CHECK))[1:]
        with file.open("rb", buffering=0) as opened:
            pairs = zip(sorted(entries), checks.tolist(), strict=True)
            damaged = [name for name, c in pairs if _crc(opened, entries[name], rest) != c]
    except (CheckpointError, OSError, LookupError, ValueError):  # another one by now, or none
        return ""
    if not damaged:
        return ""
    with contextlib.suppress(OSError):
        file.unlink()
    return (
        f"the weight {damaged[0]} in the prepared weights {file.name} is damaged; start again, "
        "which prepares them anew"
    )


def _crc(file: BinaryIO, entry: TensorEntry, rest: float) -> int:
    """The checksum of a tensor in a file. Raises OSError."""
    file.seek(entry.offset)
    check, left = 0, entry.num_bytes
    while left > 0:
        begin = time.monotonic()
        piece = file.read(min(left, _PIECE))
        if not piece:
            break
        check, left = zlib.crc32(piece, check), left - len(piece)
        time.sleep(rest * (time.monotonic() - begin))
    return check


def discard(file: Path, error: Exception) -> None:
    """Remove a file that is damaged, so that it is made again.

    What is wrong with it is for developers: a checkpoint's fix, to download it, is none for it.
    """
    logger.warning("%s is damaged, so its weights are prepared anew from the checkpoint", file)
    logger.debug("%s: %s", file, error)
    with contextlib.suppress(OSError):
        file.unlink()


class PreparedFile:
    """A mapped file. Raises CheckpointError, OSError, LookupError or ValueError if it is damaged.

    formats: of the weights of linear layers, by module.
    """

    def __init__(self, file: Path) -> None:
        self._entries = {entry.name: entry for entry in read_header(file)}
        length, metadata = read_metadata(file)
        self._mapped = MappedFile(file, 8 + length + int(metadata[STEP_BYTES]))
        self.formats: Formats = json.loads(metadata[FORMATS])
        if not isinstance(self.formats, dict):
            raise LookupError("the formats of its weights are not a table")
        stored = self._mapped.array(self._entries.pop(CHECK)).reshape(-1).tolist()
        kinds = {name: (entry.dtype, entry.shape) for name, entry in self._entries.items()}
        arrays = self.stored_arrays().arrays
        parts = {name: bytes_of(array) for name, array in arrays.items()}
        if stored[0] != check_of(parts, kinds, metadata[FORMATS], stored[1:]):
            raise LookupError("its numbers or their types are not those that were written")

    def stored_arrays(self) -> StoredArrays:
        """Its weights; those of data types that NumPy does not have are arrays of their bits."""
        arrays = {name: self._mapped.array(entry) for name, entry in self._entries.items()}
        return StoredArrays(arrays, self.formats)

    def tensors(self) -> dict[str, Tensor]:
        """The file's tensors by name."""
        return {name: self._mapped.tensor(entry) for name, entry in self._entries.items()}


def bytes_of(array: Array) -> memoryview:
    """The bytes of a contiguous array, without a copy."""
    return array.reshape(-1).view(np.uint8).data


def checks_of(parts: TensorBytes, kinds: Kinds, formats: str) -> list[int]:
    """The tensor CHECK: `check_of`, and a checksum of each tensor, sorted by names."""
    whole = [zlib.crc32(parts[name]) for name in sorted(parts)]
    return [check_of(parts, kinds, formats, whole), *whole]


def check_of(parts: TensorBytes, kinds: Kinds, formats: str, whole: Sequence[int]) -> int:
    """A checksum of what a header says, and of the begin, middle and end of each tensor.

    formats: the metadata's. whole: checksums of the tensors. A bit that flips in the header may
    leave another type of the same size. Most blocks that a disk lost are found, too; reading all
    would double a start.
    """
    header = [(name, dtype, list(shape)) for name, (dtype, shape) in sorted(kinds.items())]
    check = zlib.crc32(json.dumps([header, formats, whole]).encode())
    for name in sorted(parts):
        data = parts[name]
        for begin in (0, len(data) // 2, max(0, len(data) - _CHECKED)):
            check = zlib.crc32(data[begin : begin + _CHECKED], check)
    return check
