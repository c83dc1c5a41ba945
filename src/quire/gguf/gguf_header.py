"""The header of one GGUF file: metadata by key, and where each tensor's bytes are.

Owns the check of everything that the header claims, before memory is taken for a weight: counts,
lengths, types and offsets are compared with the file's size first. Versions 2 and 3, little-endian.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass, replace
from pathlib import Path

from quire.errors import CheckpointError
from quire.gguf.block_types import BLOCK_TYPES, OTHER_TYPES, BlockType
from quire.gguf.header_reader import DamagedHeaderError, HeaderReader, Value
from quire.gguf.metadata import Metadata
from quire.model_folder import check_regular, unreadable

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MOST_TENSORS = 100_000
_MOST_KEYS = 100_000
_MOST_DIMENSIONS = 4
_LARGEST_ALIGNMENT = 1 << 16
_LEAST_TENSOR, _LEAST_KEY = 8 + 4 + 8 + 4 + 8, 8 + 4 + 1  # bytes in the header
_READ = ", ".join(each.name for each in BLOCK_TYPES.values())


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor as the header describes it. shape: rows first; offset: from the file's start."""

    file: Path
    name: str
    kind: BlockType
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """A header that has been checked."""

    path: Path
    metadata: Metadata
    tensors: dict[str, GgufTensor]


def read_gguf_header(path: Path) -> GgufHeader:
    """Read and check a file's header.

    Raises CheckpointError, which names the file, and the byte or the tensor that is wrong.
    """
    try:
        size = check_regular(path)
        with path.open("rb") as file:
            if file.read(4) != MAGIC:
                raise CheckpointError(f"{path} is not a GGUF file; download it again")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(path, HeaderReader(data, size))
    except OSError as error:
        raise unreadable(path, error) from error
    except DamagedHeaderError as error:
        raise CheckpointError(
            f"{path} is damaged at byte {error.at}: {error}; download the file again"
        ) from error


def _parse(path: Path, reader: HeaderReader) -> GgufHeader:
    _check_version(path, reader)
    num_tensors = reader.count(_LEAST_TENSOR, _MOST_TENSORS, "tensors")
    num_keys = reader.count(_LEAST_KEY, _MOST_KEYS, "keys")
    values: dict[str, Value] = {}
    for _ in range(num_keys):
        key = reader.name()
        if key in values:
            raise reader.damaged(f"the key {key!r} occurs twice")
        values[key] = reader.value()
    metadata = Metadata(path, values)
    found = [_tensor(path, reader) for _ in range(num_tensors)]
    return GgufHeader(path, metadata, _placed(path, reader, metadata, found))


def _check_version(path: Path, reader: HeaderReader) -> None:
    reader.at = len(MAGIC)
    version = int(reader.number("I"))
    if version not in _VERSIONS:
        swapped = struct.unpack(">I", struct.pack("<I", version))[0] in _VERSIONS
        which = "of a big-endian machine" if swapped else f"version {version}"
        raise CheckpointError(
            f"{path} is GGUF {which}; only versions 2 and 3, little-endian, are read: convert the "
            "model again"
        )


def _tensor(path: Path, reader: HeaderReader) -> GgufTensor:
    """A tensor, with its offset as it is stored: from the start of all tensors."""
    name = reader.name()
    dimensions = int(reader.number("I"))
    if not 1 <= dimensions <= _MOST_DIMENSIONS:
        raise reader.damaged(f"{name} has {dimensions} dimensions")
    shape = tuple(int(reader.number("Q")) for _ in range(dimensions))
    number, offset = int(reader.number("I")), int(reader.number("Q"))
    kind = BLOCK_TYPES.get(number)
    if kind is None:
        raise _unread(path, reader, name, number)
    if min(shape) < 1 or math.prod(shape) >= 2**62 or shape[0] % kind.items:
        raise reader.damaged(f"{name} has the shape {list(shape)}, which {kind.name} cannot have")
    num_bytes = kind.row_bytes(shape[0]) * math.prod(shape[1:])
    return GgufTensor(path, name, kind, shape[::-1], offset, num_bytes)


def _unread(path: Path, reader: HeaderReader, name: str, number: int) -> Exception:
    if number not in OTHER_TYPES:
        return reader.damaged(f"{name} has the unknown type {number}")
    return CheckpointError(
        f"{path}: {name} has the type {OTHER_TYPES[number]}, which is not read; take a file whose "
        f"tensors are of {_READ}, such as Q4_K_M, Q4_0 or Q8_0"
    )


def _placed(
    path: Path, reader: HeaderReader, metadata: Metadata, found: list[GgufTensor]
) -> dict[str, GgufTensor]:
    """The tensors with offsets from the file's start: aligned, in the file, none over another."""
    alignment = metadata.alignment(_LARGEST_ALIGNMENT)
    start = end = -(-reader.at // alignment) * alignment
    placed: dict[str, GgufTensor] = {}
    for each in sorted(found, key=lambda tensor: tensor.offset):
        offset = start + each.offset
        if each.name in placed:
            raise reader.damaged(f"{each.name} occurs twice")
        if each.offset % alignment:
            raise reader.damaged(f"{each.name} has the offset {each.offset}, not of {alignment}")
        if offset < end:
            raise reader.damaged(f"{each.name} overlaps the tensor before")
        end = offset + each.num_bytes
        if end > reader.size:
            raise CheckpointError(
                f"{path} is cut off: {each.name} ends at byte {end}, but the file has "
                f"{reader.size}; download the file again"
            )
        placed[each.name] = replace(each, offset=offset)
    return placed
