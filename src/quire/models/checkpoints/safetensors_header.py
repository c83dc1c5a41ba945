"""The header of a safetensors file: which tensors it holds, and where their bytes are.

Owns the check of everything that the header claims, before a byte of memory is taken for a weight.
The format: 8 bytes with the header's length N, N bytes of JSON, then the tensors without gaps.
(https://huggingface.co/docs/safetensors)
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec

from quire.dtypes import SAFETENSORS
from quire.errors import CheckpointError
from quire.model_folder import check_regular, unreadable

STEP_BYTES = "product_bytes"  # in the metadata of prepared files: bytes that each step reads

LARGEST_HEADER = 100_000_000  # bytes; the format's own limit
_MOST_TENSORS = 100_000  # of a file; checkpoints with many experts have some thousand
_TENSOR = b'"data_offsets"'


class TensorEntry(msgspec.Struct, frozen=True):
    """One tensor as a header describes it; offset counts bytes from the start of the file."""

    name: str
    file: Path
    dtype: str  # the format's name, such as "BF16"
    shape: tuple[int, ...]
    offset: int
    num_bytes: int

    @property
    def num_items(self) -> int:
        """The number of values in the tensor."""
        return math.prod(self.shape)

    def wrong(self, problem: str) -> CheckpointError:
        """The CheckpointError for this tensor; it names file and byte."""
        is_whole = self.file.suffix == ".gguf"  # which has the config, too
        other = "" if is_whole else ", or check that config.json belongs to it"
        return CheckpointError(
            f"{self.file}: {self.name} at byte {self.offset}: {problem}; download the file again"
            f"{other}"
        )


def read_header(path: Path) -> list[TensorEntry]:
    """The tensors of one file, in order of their bytes, after checking all that it claims.

    Raises CheckpointError with the file's name and a byte offset.
    """
    try:
        size = check_regular(path)
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, LARGEST_HEADER):
                raise _damaged(
                    path, 0, f"it says that the header has {length} bytes, of {size} in all"
                )
            header = file.read(length)
        if header.count(_TENSOR) > _MOST_TENSORS:
            raise _damaged(path, 8, f"the header has more than {_MOST_TENSORS:,} tensors")
    except OSError as error:
        raise unreadable(path, error) from error
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
    """A JSON object as a dict. Raises ValueError if a key occurs twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _entry(path: Path, header: bytes, start: int, name: str, value: Any) -> TensorEntry:
    """Check one tensor's description by itself."""
    value = value if isinstance(value, dict) else {}
    dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in SAFETENSORS:
        raise _damaged(path, _position(header, name), f"{name} has the unknown dtype {dtype!r}")
    if not _is_list_of_sizes(shape):
        raise _damaged(path, _position(header, name), f"{name} has the shape {shape!r}")
    if not _is_list_of_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _damaged(path, _position(header, name), f"{name} has the data_offsets {offsets!r}")
    begin, end = offsets
    if (end - begin) * 8 != math.prod(shape) * SAFETENSORS[dtype].bits:
        problem = f"{name}, {dtype} {shape}, does not fit its {end - begin} bytes"
        raise _damaged(path, _position(header, name), problem)
    return TensorEntry(name, path, dtype, tuple(shape), start + begin, end - begin)


def _position(header: bytes, name: str) -> int:
    """The byte in the file at which a tensor is named; looked for only once something is wrong."""
    return 8 + max(0, header.find(json.dumps(name, ensure_ascii=False).encode(errors="replace")))


def _is_list_of_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**62 for n in value
    )
