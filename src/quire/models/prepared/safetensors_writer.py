"""Tensors to a safetensors file whose bytes layers can use where they are mapped.

Owns the order of such a file, and the sizes in which it is written: what linear layers read in
large pages (large_pages.py), and tables for look-ups after them in small ones, since of a large
one all would be in memory for one row.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from quire.dtypes import DTYPES
from quire.kernels.torch_dtypes import dtype_name
from quire.models.checkpoints.safetensors_header import STEP_BYTES

_PIECE_BYTES = 16 << 20  # written at a time; a multiple of large pages
_SMALL_BYTES = 64 << 10  # the same, of tables
_MOST_PARTS = 1000  # of a piece; POSIX has 1024
_ALIGNMENT = 4096  # of the first tensor; those of a multiple of 64 bytes come first
_WRITE_AND_WAIT = 7  # sync_file_range: for what is on its way, then for the rest


def write_tensors(
    path: Path,
    tensors: dict[str, Tensor],
    tables: Container[str] = (),
    stops: Callable[[float], bool] = lambda _: False,
    metadata: Mapping[str, str] | None = None,
) -> bool:
    """Write the file, most likely to the page cache; whether it is whole.

    tables: names of those that serve look-ups. stops: asked before each piece, with the share that
    is written. metadata: more entries of the header's. Raises OSError.
    """
    weights = [name for name in tensors if name not in tables]
    front = [name for name in weights if tensors[name].nbytes % 64 == 0]
    ordered = [*front, *(name for name in tensors if name in tables)]
    ordered += [name for name in weights if tensors[name].nbytes % 64]
    step_bytes = sum(tensors[name].nbytes for name in front)
    text = _header(tensors, ordered, {STEP_BYTES: str(step_bytes), **(metadata or {})})
    large = chain([memoryview(text)], (_bytes(tensors[name]) for name in front))
    small = (_bytes(tensors[name]) for name in ordered[len(front) :])
    total = len(text) + sum(tensor.nbytes for tensor in tensors.values())
    with path.open("wb", buffering=0) as file:
        for piece in chain(_pieces(large, _PIECE_BYTES), _pieces(small, _SMALL_BYTES)):
            if stops(file.tell() / total):
                return False
            if os.writev(file.fileno(), piece) < sum(map(len, piece)):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return True


def stored_dtype(tensor: Tensor) -> str:
    """The name of its data type in the format, such as "BF16"."""
    return DTYPES[dtype_name(tensor.dtype)].safetensors


def _header(tensors: dict[str, Tensor], ordered: list[str], metadata: dict[str, str]) -> bytes:
    """The header's bytes, with its length in front."""
    header: dict[str, object] = {"__metadata__": metadata}
    end = 0
    for name in ordered:
        begin, end = end, end + tensors[name].nbytes
        header[name] = {
            "dtype": stored_dtype(tensors[name]),
            "shape": list(tensors[name].shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().data


def _pieces(parts: Iterable[memoryview], num_bytes: int) -> Iterator[list[memoryview]]:
    """The parts joined, and split into pieces of this many bytes."""
    piece: list[memoryview] = []
    capacity = num_bytes
    for rest in parts:
        while rest:
            piece.append(rest[:capacity])
            rest, capacity = rest[capacity:], capacity - len(piece[-1])
            if capacity == 0 or len(piece) == _MOST_PARTS:
                yield piece
                piece, capacity = [], capacity or num_bytes
    if piece:
        yield piece


def bring_to_disk(path: Path, stops: Callable[[], bool]) -> None:
    """Wait until a file is on its disk, or until it is stopped. Raises OSError.

    By pieces where that can be: nothing can end a process that waits for all of it.
    """
    with path.open("rb") as file:
        if sys.platform == "linux":
            for begin in range(0, path.stat().st_size, _PIECE_BYTES):
                if stops():
                    return
                _write_piece(file.fileno(), begin)
        os.fsync(file.fileno())


def _write_piece(file: int, begin: int) -> None:
    """Wait until _PIECE_BYTES from this byte of a file are written; file: its descriptor."""
    sync = ctypes.CDLL(None, use_errno=True).sync_file_range
    sync.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    if sync(file, begin, _PIECE_BYTES, _WRITE_AND_WAIT) != 0:
        number = ctypes.get_errno()
        if number not in (errno.ENOSYS, errno.EINVAL, errno.ESPIPE):
            raise OSError(number, os.strerror(number))  # this thread's write alone sees it
